"""`make bench-engine`: Baton's engine beside vLLM and llama.cpp, in turn on the same machine.

Decode at batch 1, 8 and 32, prefill of 1k and 4k tokens, peak memory. Ratios are Baton's tokens/s
÷ the peer's, round by round; the last line is JSON with their medians. vLLM computes in bfloat16
and llama.cpp rounds rows to 8 bits, so the ratios are of Baton's bfloat16 setting; those of its
default, float32, stand beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from loadgen.engine import peers
from loadgen.engine.contender import Contender, ContenderError
from loadgen.engine.export import export
from loadgen.engine.work import FULL, QUICK, Work
from services.fetch import resolve
from shared.checkpoint import open_checkpoint

_HERE: Final = Path(__file__).parent / "engine"
_COPIED_BYTES: Final = 256 << 20

_EXACT: Final = "baton_float32"

Times = dict[str, dict[str, list[float]]]
"""[contender][work]: tokens/s of each round."""


def main(options: argparse.Namespace) -> int:
    """Measure, print the table and the line of JSON; always 0."""
    model = resolve(options.model, note)
    missing = {} if options.no_install else peers.bring(note)
    works = QUICK if options.quick else FULL
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running, facts = _start(stack, model, folder, options, missing)
        times = _measure(running, works, options.rounds, missing)
        roof = _roof(facts["baton"], options.threads, folder / "copy.log")
        peaks = _peaks(running, missing)
    print_table(times, works)
    print(json.dumps(summary(times, peaks, roof, missing, facts, options.vllm_dtype)))
    return 0


def summary(
    times: Times,
    peaks: dict[str, int],
    roof: float,
    missing: dict[str, str],
    facts: dict[str, object],
    setting: str,
) -> dict[str, object]:
    """The last line. `roof`: steps/s at which one reads all weights as fast as memory copies."""
    sides = ("baton", _EXACT)
    found = {
        side: {
            f"{peer}_{work}": ratio
            for peer in times
            if peer not in sides
            for work, ratio in _ratios(times.get(side, {}), times[peer]).items()
        }
        for side in sides
    }
    ones = {side: times[side]["decode_b1"] for side in sides if times.get(side)}
    shares = {side: round(median(one) / roof, 3) for side, one in ones.items() if one and roof}
    return {
        "bench": "engine",
        "setting": setting,
        "ratios": found["baton"],
        "ratios_float32": found[_EXACT],
        "bandwidth_share_b1": shares.get("baton"),
        "bandwidth_share_b1_float32": shares.get(_EXACT),
        "tokens_per_s": {
            name: {work: round(median(found), 1) for work, found in works.items() if found}
            for name, works in times.items()
        },
        "peak_mib": {name: peak >> 20 for name, peak in peaks.items()},
        "missing": missing,
        "facts": facts,
    }


def _ratios(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> dict[str, float]:
    """By work, the median of ours ÷ theirs round by round."""
    return {
        work: round(median(a / b for a, b in zip(ours[work], found, strict=False)), 3)
        for work, found in theirs.items()
        if found and ours.get(work)
    }


def print_table(times: Times, works: Sequence[Work]) -> None:
    """tokens/s as median (least, most)."""
    print(f"{'tokens/s':<14}" + "".join(f"{work.name:>26}" for work in works))
    for name, found in times.items():
        cells = [_cell(found[work.name]) for work in works]
        print(f"{name:<14}" + "".join(f"{cell:>26}" for cell in cells))


def _cell(rates: list[float]) -> str:
    if not rates:
        return "-"
    return f"{median(rates):.1f} ({min(rates):.1f}, {max(rates):.1f})"


def _start(
    stack: ExitStack,
    model: str,
    folder: Path,
    options: argparse.Namespace,
    missing: dict[str, str],
) -> tuple[list[Contender], dict[str, object]]:
    threads = str(options.threads)
    environ = {
        "OMP_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{options.threads - 1}",
        "VLLM_CPU_SGL_KERNEL": str(int(options.vllm_dtype == "bfloat16")),
        "VLLM_NO_USAGE_STATS": "1",
    }
    mode = "eager" if options.vllm_eager else "compiled"
    ours = [sys.executable, "-m", "shared.engine.bench.ours", model, threads, "auto"]
    commands = {"baton": [*ours, options.vllm_dtype]}
    if options.vllm_dtype != "float32":
        commands[_EXACT] = [*ours, "float32"]
    if "vllm" not in missing:
        exported = str(export(open_checkpoint(model), folder / "model"))
        script = str(_HERE / "vllm_peer.py")
        commands["vllm"] = [peers.python(), script, exported, options.vllm_dtype, mode]
    if "llamacpp" not in missing:
        commands["llamacpp"] = [peers.python(), str(_HERE / "llama_peer.py"), model, threads]
    running: list[Contender] = []
    facts: dict[str, object] = {}
    for name, command in commands.items():
        note(f"loading {name}")
        try:
            one = Contender(name, command, environ, folder / f"{name}.log")
            stack.callback(one.close)
            facts[name] = one.start()
            running.append(one)
        except (ContenderError, OSError) as error:
            missing[name] = str(error)
    return running, facts


def _measure(
    running: Sequence[Contender], works: Sequence[Work], rounds: int, missing: dict[str, str]
) -> Times:
    """In turn, each round in another order; the first of each is a warm-up on short work."""
    times: Times = {one.name: {work.name: [] for work in works} for one in running}
    warm = Work("decode", 2, 2)
    for number in range(rounds + 1):
        for work in works if number else [warm]:
            shift = number % max(1, len(running))
            for one in [*running[shift:], *running[:shift]]:
                if one.name in missing:
                    continue
                try:
                    seconds = one.measure(work, number)
                except ContenderError as error:
                    missing[one.name] = str(error)
                    continue
                if number:
                    times[one.name][work.name].append(work.counted / seconds)
                    note(f"{one.name:<14}{work.name:<12}{work.counted / seconds:10.1f} tokens/s")
    return times


def _peaks(running: Sequence[Contender], missing: dict[str, str]) -> dict[str, int]:
    return {one.name: one.peak_bytes() for one in running if one.name not in missing}


def _roof(facts: object, threads: int, log: Path) -> float:
    """Steps/s if all weights of a step were read as fast as memory is copied (read + write)."""
    read = facts.get("matrix_bytes") if isinstance(facts, dict) else None
    command = [sys.executable, "-m", "shared.engine.bench.copying", str(threads)]
    copier = Contender("copy", command, {"OMP_NUM_THREADS": str(threads)}, log)
    try:
        copier.start()
        copied = 2 * _COPIED_BYTES / copier.measure(Work("copy", 1, _COPIED_BYTES), 1)
    finally:
        copier.close()
    return copied / read if isinstance(read, int) and read else 0.0


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_engine", description=__doc__)
    parser.add_argument("--model", default="", help="a GGUF file of a llama model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--vllm-dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--vllm-eager", action="store_true", help="skip its compiling (minutes)")
    parser.add_argument("--quick", action="store_true", help="shorter work, for a trial")
    parser.add_argument("--no-install", action="store_true", help="take the peers as they are")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(parse(sys.argv[1:])))
