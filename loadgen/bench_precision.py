"""`make bench-precision`: bfloat16 and 8-bit weights against float32, on the golden prompts.

The engine's part runs in a process of its own; the last line is its JSON.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from services.fetch import resolve


def main(argv: list[str]) -> int:
    """Find the model, pass the other flags on."""
    parser = argparse.ArgumentParser(prog="bench_precision", description=__doc__)
    parser.add_argument("--model", default="", help="the golden file's model")
    options, others = parser.parse_known_args(argv)
    model = resolve(options.model, lambda text: print(text, file=sys.stderr))
    command = [sys.executable, "-m", "shared.engine.bench.precision", model, *others]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
