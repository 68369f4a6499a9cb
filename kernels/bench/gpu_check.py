"""Checks every kernel on this machine's GPU and times it; JSON on stdout. At most five minutes.

    python -m kernels.bench.gpu_check [--out FILE] [--seconds 240] [--seed N]
    python -m kernels.bench.gpu_check --dry        toy sizes in Triton's interpreter, without a GPU

Every kernel meets fresh random data and its reference in higher precision; exit 1 where one is off.
Seconds are medians by CUDA events, beside PyTorch's way to the same result and beside the copy and
matrix ceilings of the same run. Cases that the time did not reach are named, not forgotten.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import secrets
import sys
from pathlib import Path
from typing import Any, Final

DEFAULT_SECONDS: Final = 240.0


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="check and time the kernels")
    parser.add_argument("--dry", action="store_true", help="toy sizes in the interpreter")
    parser.add_argument("--seconds", type=float, default=None, help="start no case later")
    parser.add_argument("--seed", type=int, default=None, help="fresh by default")
    parser.add_argument("--out", type=Path, default=None, help="also write the JSON here")
    given = parser.parse_args(arguments)
    # Triton reads it when kernels are imported.
    os.environ["TRITON_INTERPRET"] = "1" if given.dry else "0"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    limit_s = given.seconds or (math.inf if given.dry else DEFAULT_SECONDS)
    found = run(dry=given.dry, limit_s=limit_s, seed=seed)
    if found is None:
        sys.stderr.write("no CUDA device; --dry runs in the interpreter\n")
        return 2
    text = json.dumps(found)
    if given.out is not None:
        given.out.write_text(text + "\n", "utf-8")
    for check in found["checks"]:
        if not check["ok"]:
            sys.stderr.write(f"wrong: {check}\n")
    sys.stdout.write(text + "\n")
    return 0 if found["ok"] else 1


def run(*, dry: bool, limit_s: float, seed: int) -> dict[str, Any] | None:
    """All checks, then all timings. None where there is no device for them."""
    torch = importlib.import_module("torch")
    if not dry and not torch.cuda.is_available():
        return None
    results, *rooms = (
        importlib.import_module(f"kernels.bench.{name}")
        for name in ("results", "row_checks", "attention_checks")
    )
    device = torch.device("cpu" if dry else "cuda")
    bench = results.Bench(device, dry, limit_s, seed)
    for room in rooms:
        room.check(bench)
    ceilings = bench.ceilings()
    for room in rooms:
        if bench.has_time(f"timings of {room.__name__}"):
            room.time(bench)
    found: dict[str, Any] = bench.summary(ceilings)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
