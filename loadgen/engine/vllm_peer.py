"""vLLM as a contender, in the peers' environment: python vllm_peer.py FOLDER DTYPE eager|compiled.

Knows nothing of Baton but the talk. Decoding counts from when all sequences have one token.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "shared" / "engine" / "bench"))
answering: Any = importlib.import_module("answering")


def main(arguments: list[str]) -> None:
    """Load, then answer."""
    folder, dtype, mode = arguments
    eager = mode == "eager"
    vllm: Any = importlib.import_module("vllm")
    engine = vllm.LLM(
        model=folder,
        dtype=dtype,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=4608,
        max_num_seqs=32,
        max_num_batched_tokens=4608,
        enforce_eager=eager,
    )
    vocabulary = engine.llm_engine.model_config.get_vocab_size()

    core = engine.llm_engine
    calls = iter(range(1 << 40))

    def measure(work: dict[str, Any]) -> float:
        tokens = 1 if work["kind"] == "prefill" else work["tokens"] + 1
        sampling = vllm.SamplingParams(
            temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False
        )
        made: dict[str, int] = {}
        started = time.perf_counter()
        for one in answering.prompts(work, vocabulary):
            name = str(next(calls))
            made[name] = 0
            core.add_request(name, {"prompt_token_ids": one}, sampling)
        first = 0
        while core.has_unfinished_requests():
            for output in core.step():
                made[output.request_id] = len(output.outputs[0].token_ids)
            if not first and all(made.values()):
                first = sum(made.values())
                if work["kind"] != "prefill":
                    started = time.perf_counter()
        seconds = time.perf_counter() - started
        if work["kind"] == "prefill":
            return seconds
        # Steps may have begun to decode some sequences while others were prefilled.
        return float(seconds * work["batch"] * work["tokens"] / (sum(made.values()) - first))

    answering.serve({"version": vllm.__version__, "dtype": dtype, "eager": eager}, measure)


if __name__ == "__main__":
    main(sys.argv[1:])
