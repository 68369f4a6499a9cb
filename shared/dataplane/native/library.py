"""The compiled half of a link, built from the C sources here: headers of Python and libucx."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sysconfig
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any, Final

from shared.native.library import BuildError, Recipe, build

_NAME: Final = "exchange"
_CALLS: Final = (
    "ucp_worker_progress",
    "ucp_tag_send_nbx",
    "ucp_tag_recv_nbx",
    "ucp_request_cancel",
    "ucp_request_free",
)
"""As `Calls` in operations.h has them."""


def addresses(ucp: ctypes.CDLL) -> tuple[int, ...]:
    """Where the functions are that the exchange calls."""
    return tuple(ctypes.cast(getattr(ucp, name), ctypes.c_void_p).value or 0 for name in _CALLS)


def recipe() -> Recipe | None:
    """How it is compiled; None without libucx."""
    libucx = importlib.util.find_spec("libucx")
    if libucx is None or not libucx.submodule_search_locations:
        return None
    headers = (
        Path(sysconfig.get_path("include")),
        Path(libucx.submodule_search_locations[0]) / "include",
    )
    flags = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", *(f"-isystem{h}" for h in headers))
    return Recipe(_NAME, Path(__file__).parent, ("exchange.c",), flags)


@functools.cache
def compiled() -> Any:
    """A module with `Exchange`, `DirectReads` and `asks_in`, compiled where that was not done yet
    (a second); None: it cannot be."""
    how = recipe()
    if how is None:
        return None
    try:
        path = build(how)
        loader = ExtensionFileLoader(_NAME, str(path))
        spec = importlib.util.spec_from_loader(_NAME, loader)
        if spec is None:
            return None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (BuildError, ImportError):
        return None
    return module
