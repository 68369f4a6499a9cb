"""Chooses at start how this host computes: threads, and how the weights are kept in memory.

Only forms that give the same tokens compete: matrices as the file stores them, and the same values
in float32. Rounding (to 16 or 8 bits) changes tokens, so it is never chosen, only asked for.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import torch

from shared.checkpoint.tensors import TensorSource
from shared.engine.native.library import rounds
from shared.engine.native.packing import PackedMatrix
from shared.engine.team import Alone
from shared.engine.tensor_reader import KEPT, TensorReader
from shared.errors import StartupError

AUTO: Final = "auto"
WEIGHTS: Final = (AUTO, *KEPT)
_MATRIX: Final = "layers.0.gate"
_TRIES: Final = 5
_BATCH_ROWS: Final = 32
_COPIED_BYTES: Final = 32 << 20
_CLEAR: Final = 1.25


@dataclass(frozen=True, slots=True)
class HostSetup:
    """What was asked for; 0 and 'auto' are measured."""

    threads: int = 0
    weights: str = AUTO
    kernels: bool = False
    """The GPU's kernels on the CPU, too, in Triton's interpreter: for tests."""

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise StartupError(f"weights {self.weights!r} are not one of {', '.join(WEIGHTS)}")


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was chosen, and the figures that say why."""

    threads: int
    weights: str
    figures: dict[str, float]


def tune(
    source: TensorSource, dtype: torch.dtype, library: ctypes.CDLL | None, setup: HostSetup
) -> Tuned:
    """Set the process's torch threads and choose; tens of milliseconds. Raises CheckpointError."""
    fair = setup.threads or fair_threads()
    torch.set_num_threads(fair)
    with suppress(RuntimeError):  # Set before, or too late: then it stays as it is.
        torch.set_num_interop_threads(1)
    if library is None:
        return Tuned(fair, "torch", {})
    rounded = dtype == torch.bfloat16 and rounds(library, "bfloat16")
    forms = {kept: _form(source, dtype, kept, rounded) for kept in _forms(setup.weights, dtype)}
    # One thread, which no other process holds up by taking a second one's processor.
    torch.set_num_threads(1)
    figures, copied_s = {}, _best(_copier()) / _COPIED_BYTES / 2
    for kept, matrix in forms.items():
        # A model's weights are not in the cache, as this one matrix is.
        read_s = matrix.nbytes * copied_s
        figures[f"{kept}_row_us"] = 1e6 * max(_best(_product(library, matrix, 1)), read_s)
    # The first form takes least memory: another must be clearly faster, not just luckier.
    first = next(iter(forms))
    weights = min(
        forms, key=lambda kept: figures[f"{kept}_row_us"] * (1 if kept == first else _CLEAR)
    )
    threads = fair
    if not setup.threads:
        taken = {count: _threaded(library, forms[weights], count) for count in _counts(fair)}
        threads = min(taken, key=lambda count: taken[count])
        figures |= {f"threads_{count}_us": 1e6 * seconds for count, seconds in taken.items()}
    torch.set_num_threads(threads)
    return Tuned(threads, weights, {name: round(value, 1) for name, value in figures.items()})


def fair_threads() -> int:
    """Half of the CPUs: a decode worker shares a host with a prefill worker, and threads spin, so
    two that claim every CPU run several times slower than two that share."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def _forms(weights: str, dtype: torch.dtype) -> tuple[str, ...]:
    if weights != AUTO:
        return (weights,)
    return ("stored", "dense") if dtype == torch.float32 else ("stored",)


def _form(source: TensorSource, dtype: torch.dtype, kept: str, rounded: bool) -> PackedMatrix:
    place = torch.device("cpu")
    matrix = TensorReader(source, place, dtype, Alone(), kept, rounded).rows(_MATRIX)
    if not isinstance(matrix, PackedMatrix):
        raise StartupError(f"matrix {_MATRIX} was not packed")
    return matrix


def _counts(most: int) -> list[int]:
    """1, 2, 4, … and the most."""
    return sorted({most, *(1 << power for power in range(most.bit_length() - 1))})


def _threaded(library: ctypes.CDLL, matrix: PackedMatrix, threads: int) -> float:
    """A token's share of decoding alone and of decoding in company."""
    torch.set_num_threads(threads)
    many = _best(_product(library, matrix, _BATCH_ROWS)) / _BATCH_ROWS
    return _best(_product(library, matrix, 1)) + many


def _product(library: ctypes.CDLL, matrix: PackedMatrix, rows: int) -> Callable[[], None]:
    given, out = torch.ones(rows, matrix.ins), torch.empty(rows, matrix.outs)
    threads = torch.get_num_threads()

    def run() -> None:
        library.baton_linear(matrix.address, given.data_ptr(), out.data_ptr(), rows, 0, threads)

    return run


def _copier() -> Callable[[], None]:
    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8)
    target = torch.zeros_like(source)

    def run() -> None:
        target.copy_(source)

    return run


def _best(work: Callable[[], None]) -> float:
    work()
    seconds = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
