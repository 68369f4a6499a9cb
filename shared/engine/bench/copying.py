"""Copies memory as a contender of its own: python -m shared.engine.bench.copying THREADS.

Its buffers would count as the engine's memory otherwise.
"""

from __future__ import annotations

import sys
import time
from typing import Final

import torch

from shared.engine.bench.answering import serve

_COPIES: Final = 8


def main(arguments: list[str]) -> None:
    """Answer; `tokens` are bytes here."""
    torch.set_num_threads(int(arguments[0]))
    serve({}, lambda work: copy_s(work["tokens"]))


def copy_s(size: int) -> float:
    """The best time of copying so many bytes."""
    source = torch.ones(size, dtype=torch.uint8)
    target = torch.zeros_like(source)
    seconds = []
    for _ in range(_COPIES):
        started = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
