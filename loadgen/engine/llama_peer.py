"""llama.cpp as a contender, in the peers' environment: python llama_peer.py FILE THREADS.

Knows nothing of Baton but the talk. Uses the library's batch interface, greedy by hand.
"""

from __future__ import annotations

import ctypes
import importlib
import pathlib
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "shared" / "engine" / "bench"))
answering: Any = importlib.import_module("answering")
BATCH_TOKENS = 2048
FLASH_ATTENTION = 1
"""LLAMA_FLASH_ATTN_TYPE_ENABLED: measured, the fastest on long prompts."""


def main(arguments: list[str]) -> None:
    """Load, then answer."""
    file, threads = arguments
    library: Any = importlib.import_module("llama_cpp")
    numpy: Any = importlib.import_module("numpy")
    library.llama_backend_init()
    model = library.llama_model_load_from_file(file.encode(), library.llama_model_default_params())
    wanted = library.llama_context_default_params()
    wanted.n_ctx, wanted.n_batch, wanted.n_ubatch = 32 * 256, BATCH_TOKENS, 512
    wanted.n_seq_max, wanted.kv_unified = 32, True
    wanted.flash_attn_type = FLASH_ATTENTION
    wanted.n_threads = wanted.n_threads_batch = int(threads)
    context = library.llama_init_from_model(model, wanted)
    vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    batch = library.llama_batch_init(BATCH_TOKENS, 0, 1)

    def put(entries: list[tuple[int, int, int, bool]]) -> None:
        for place, (token, position, sequence, wanted_logits) in enumerate(entries):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = wanted_logits
        batch.n_tokens = len(entries)
        if library.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")

    def best(place: int) -> int:
        row = library.llama_get_logits_ith(context, place)
        kind = ctypes.POINTER(ctypes.c_float * vocabulary)
        return int(numpy.frombuffer(ctypes.cast(row, kind).contents, numpy.float32).argmax())

    def prefill(tokens: list[int], sequence: int) -> int:
        for start in range(0, len(tokens), BATCH_TOKENS):
            part = tokens[start : start + BATCH_TOKENS]
            last = start + len(part) == len(tokens)
            put(
                [
                    (token, start + place, sequence, last and place + 1 == len(part))
                    for place, token in enumerate(part)
                ]
            )
        return best(len(part) - 1)

    def measure(work: dict[str, Any]) -> float:
        library.llama_memory_clear(library.llama_get_memory(context), True)
        given = answering.prompts(work, vocabulary)
        started = time.perf_counter()
        drawn = [prefill(tokens, sequence) for sequence, tokens in enumerate(given)]
        if work["kind"] == "prefill":
            return time.perf_counter() - started
        started = time.perf_counter()
        for step in range(work["tokens"]):
            position = work["prompt_tokens"] + step
            put([(token, position, sequence, True) for sequence, token in enumerate(drawn)])
            drawn = [best(place) for place in range(len(drawn))]
        return time.perf_counter() - started

    version = importlib.import_module("llama_cpp").__version__
    answering.serve({"version": version}, measure)


if __name__ == "__main__":
    main(sys.argv[1:])
