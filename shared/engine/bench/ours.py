"""Baton's engine as a contender: python -m shared.engine.bench.ours MODEL THREADS WEIGHTS DTYPE."""

from __future__ import annotations

import gc
import sys
import time
from typing import Final

from shared.checkpoint import open_checkpoint
from shared.engine.batch import Draw, StepItem
from shared.engine.bench.answering import prompts, serve
from shared.engine.building import EngineOptions, build_engine, engine_facts
from shared.engine.runner import TorchEngine
from shared.ids import PageId

_BLOCK: Final = 16
_PAGES: Final = 640
_CHUNK_TOKENS: Final = 1024
_GREEDY: Final = Draw(temperature=0.0, top_p=1.0, seed=0, position=0)


def main(arguments: list[str]) -> None:
    """Load, then answer."""
    model, threads, weights, dtype = arguments
    options = EngineOptions(threads=int(threads), weights=weights)
    checkpoint = open_checkpoint(model)
    engine = build_engine(checkpoint, "cpu", dtype, _PAGES, _BLOCK, "torch", options)
    # As every service does once it serves, and as vLLM does.
    gc.collect()
    gc.freeze()

    def prefill(tokens: list[int], table: tuple[PageId, ...]) -> int:
        for start in range(0, len(tokens), _CHUNK_TOKENS):
            part = tuple(tokens[start : start + _CHUNK_TOKENS])
            draw = _GREEDY if start + len(part) == len(tokens) else None
            (drawn,) = engine.step([StepItem(part, start, table, draw)]).tokens
        if drawn is None:
            raise ValueError("a prompt has tokens")
        return drawn

    def measure(work: dict[str, int]) -> float:
        width = -(-(work["prompt_tokens"] + work["tokens"] + 1) // _BLOCK)
        tables = [
            tuple(PageId(page) for page in range(row * width, (row + 1) * width))
            for row in range(work["batch"])
        ]
        given = prompts(work, engine.vocab_size)
        started = time.perf_counter()
        drawn = [prefill(tokens, table) for tokens, table in zip(given, tables, strict=True)]
        if work["kind"] == "prefill":  # type: ignore[comparison-overlap]
            return time.perf_counter() - started
        started = time.perf_counter()
        for step in range(work["tokens"]):
            position = work["prompt_tokens"] + step
            items = [
                StepItem((token,), position, table, _GREEDY)
                for token, table in zip(drawn, tables, strict=True)
            ]
            found = engine.step(items).tokens
            drawn = [token for token in found if token is not None]
        return time.perf_counter() - started

    read = engine.matrix_bytes if isinstance(engine, TorchEngine) else 0
    serve({"chosen": engine_facts(engine), "matrix_bytes": read}, measure)


if __name__ == "__main__":
    main(sys.argv[1:])
