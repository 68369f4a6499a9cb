"""Frozen messages whose fields are set without their guard, for the length of a run.

A frozen dataclass sets each field through `object.__setattr__`, five times as slow as a plain
store, and a request makes some six hundred of them: a seventh of a run's time. What mypy has
checked needs no guard while millions of them are made.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

_ROOMS: Final = ("services.", "shared.")
_GUARDS: Final = ("__init__", "__setattr__", "__delattr__")
_unguarded: Final[list[type]] = []
"""While a run lasts."""


@contextmanager
def unguarded() -> Iterator[None]:
    """All frozen messages that are there; nested runs change nothing."""
    if _unguarded:
        yield
        return
    _unguarded.extend(_frozen())
    kept = [(kind, name, vars(kind)[name]) for kind in _unguarded for name in _GUARDS]
    try:
        for kind in _unguarded:
            type.__setattr__(kind, "__init__", _storing(kind))
            type.__delattr__(kind, "__setattr__")
            type.__delattr__(kind, "__delattr__")
        yield
    finally:
        for kind, name, guard in kept:
            type.__setattr__(kind, name, guard)
        _unguarded.clear()


def _frozen() -> list[type]:
    """Those that have no parents and whose fields have no factories: nearly all."""
    modules = [module for name, module in sys.modules.items() if name.startswith(_ROOMS)]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and _simple(kind)
    ]


def _simple(kind: type) -> bool:
    params = getattr(kind, "__dataclass_params__", None)
    if params is None or not params.frozen or kind.__bases__ != (object,):
        return False
    fields = dataclasses.fields(kind)
    made = all(field.init and field.default_factory is dataclasses.MISSING for field in fields)
    return made and "__slots__" in vars(kind) and "__post_init__" not in vars(kind)


@cache
def _storing(kind: type) -> Callable[..., None]:
    """The `__init__` that it would have if it were not frozen."""
    fields = [
        (field.name, field.type, dataclasses.field(default=field.default, kw_only=field.kw_only))
        for field in dataclasses.fields(kind)
    ]
    init: Callable[..., None] = vars(dataclasses.make_dataclass("_Plain", fields))["__init__"]
    return init
