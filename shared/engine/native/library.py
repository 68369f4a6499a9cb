"""The library of the CPU engine's C sources; knows nothing of models.

Without a GNU C compiler there is none, and torch's own operations do the work.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.native.library import BuildError, Recipe, build

RECIPE: Final = Recipe(
    "baton",
    Path(__file__).parent,
    (
        *("linear.c", "planes.c", "attention.c", "elements.c", "layers.c"),
        *("rounded_rows.c", "rounded_linear.c", "rounded_attention.c", "rounded_layers.c"),
    ),
    (
        *("-O2", "-march=native", "-ffp-contract=fast", "-fno-math-errno"),
        *("-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden"),
    ),
    ("-lm",),
)


@dataclass(frozen=True, slots=True)
class Native:
    """The loaded library, or why there is none."""

    functions: ctypes.CDLL | None
    reason: str = ""


def native() -> Native:
    """Compile where that was not done yet (a few seconds) and load; never raises."""
    return opened(RECIPE)


@functools.cache
def opened(recipe: Recipe) -> Native:
    """The same for another way of compiling these sources."""
    try:
        functions = ctypes.CDLL(str(build(recipe)))
    except BuildError as error:
        return Native(None, str(error))
    except OSError as error:
        return Native(None, f"{type(error).__name__}: {error}")
    _typed(functions)
    return Native(functions)


def rounds(library: ctypes.CDLL | None, dtype: str) -> bool:
    """Whether products round their rows and weights to bfloat16: in that dtype, on processors
    that multiply it, in tiles or vectors. Elsewhere rows are float32 in every dtype."""
    return library is not None and dtype == "bfloat16" and bool(library.baton_rounds())


def _typed(library: ctypes.CDLL) -> None:
    """Argument types once, so that calls convert nothing twice."""
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    signatures = {
        "baton_linear": [pointer, pointer, pointer, number, number, number],
        "baton_rows": [pointer, pointer, pointer, number, number],
        "baton_norm": [pointer, pointer, pointer, number, number, real, number],
        "baton_turn": [pointer, number, pointer, pointer, pointer, number, number],
        "baton_gate": [pointer, pointer, number, number, number],
        "baton_attention": [pointer, number, pointer, pointer, number],
        "baton_layers": [pointer, number, pointer],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = None
    library.baton_rounds.argtypes = []
    library.baton_rounds.restype = number
