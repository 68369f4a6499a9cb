"""The library as other processors would have it, of those that this one can stand in for."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Final

import pytest
import torch

from shared.engine.native.library import RECIPE, Native, native, opened, rounds
from shared.native.library import Recipe, abilities

_NO_TILES: Final = ("-mno-amx-tile", "-mno-amx-bf16")
_LESS: Final = {
    "vectors": ("amx_bf16", _NO_TILES),
    "plain": ("avx512_bf16", (*_NO_TILES, "-mno-avx512bf16")),
    "narrow": ("avx2", (*_NO_TILES, "-mno-avx512f")),
}
"""What this processor must have so that it is another library than its own, and what it goes
without: tiles, products of bfloat16, vectors of 64 bytes."""


def names(*wanted: str) -> list[str]:
    """This processor's own, and those of the wanted ones that differ from it."""
    mine = abilities() if platform.machine() == "x86_64" else frozenset()
    return ["native", *(name for name in wanted if _LESS[name][0] in mine)]


def library_of(name: str) -> Native:
    """Compiled where that was not done yet."""
    return native() if name == "native" else opened(_recipe(name))


def use(name: str, module: str, monkeypatch: pytest.MonkeyPatch, rounded: bool) -> None:
    """Let a module's tests, and engines that they build, run this library on one thread: under
    load two would mostly wait for each other. Skips where there is none that does so."""
    found = library_of(name)
    if found.functions is None:
        pytest.skip(f"no library: {found.reason}")
    if rounded and not rounds(found.functions, "bfloat16"):
        pytest.skip("this processor does not multiply bfloat16")
    monkeypatch.setattr(f"{module}.LIBRARY", found.functions)
    monkeypatch.setattr("shared.engine.attention.native", lambda: found)
    torch.set_num_threads(1)


def _recipe(name: str) -> Recipe:
    return replace(RECIPE, flags=(*RECIPE.flags, *_LESS[name][1]))
