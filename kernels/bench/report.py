"""Registers, spills and shared memory of every kernel on three GPU generations, without a GPU.

    python -m kernels.bench.report      writes report.json and report.md beside this file

Exit 1 where a default configuration spills or does not fit. The report names the digest of the
sources it was made from, so that a test can tell whether it is theirs.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
SHARED_BYTES: Final = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Most shared memory of one program."""
SM_REGISTERS: Final = 65536
SM_THREADS: Final = 2048
SM_PROGRAMS: Final = 32
SYSTEM_SHARED_BYTES: Final = 1024


def sources() -> str:
    """Digest of all files that decide what is compiled."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("kernels/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("kernels/bench/") and path.name != "variants.py":
            continue
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def programs_per_sm(kernel: dict[str, Any]) -> int:
    """How many programs of a kernel fit on an SM at once."""
    threads = kernel["warps"] * 32
    registers: int = -(-kernel["registers"] // 8) * 8 * threads
    shared = kernel["shared_bytes"] + SYSTEM_SHARED_BYTES
    memory = SHARED_BYTES[kernel["sm"]] + SYSTEM_SHARED_BYTES
    fitting: int = min(
        SM_REGISTERS // registers, memory // shared, SM_THREADS // threads, SM_PROGRAMS
    )
    return fitting


def wrong(kernels: Sequence[dict[str, Any]]) -> list[str]:
    """What is not as it must be, in words."""
    found = []
    for kernel in kernels:
        name = f"sm_{kernel['sm']} {kernel['kernel']}"
        if kernel["spill_bytes"]:
            found.append(f"{name} spills {kernel['spill_bytes']} bytes a thread")
        if kernel["shared_bytes"] > SHARED_BYTES[kernel["sm"]]:
            found.append(f"{name} takes {kernel['shared_bytes']} bytes of shared memory")
    return found


def markdown(report: dict[str, Any]) -> str:
    """A table for people: one line a kernel, one column a generation."""
    names = list(dict.fromkeys(kernel["kernel"] for kernel in report["kernels"]))
    cells = {(kernel["kernel"], kernel["sm"]): kernel for kernel in report["kernels"]}
    lines = [
        "# Kernels: registers / spilled bytes / shared KiB / programs per SM",
        "",
        f"Triton {report['triton']}, sources {report['sources']}; made by `make kernels-report`.",
        "Names: kernel, dtype, then head_dim and query heads per kv head, or the padded width.",
        "",
        "| kernel | warps | " + " | ".join(f"sm_{sm}" for sm in SHARED_BYTES) + " |",
        "|---|---|" + "---|" * len(SHARED_BYTES),
    ]
    for name in names:
        found = [cells[name, sm] for sm in SHARED_BYTES]
        row = " | ".join(
            f"{k['registers']} / {k['spill_bytes']} / {k['shared_bytes'] / 1024:.1f} / "
            f"{programs_per_sm(k)}"
            for k in found
        )
        lines.append(f"| {name} | {found[0]['warps']} | {row} |")
    return "\n".join(lines) + "\n"


def compile_for(capability: int) -> list[dict[str, Any]]:
    """All kernels of one generation, in a process of their own. Raises where one does not build."""
    done = subprocess.run(
        [sys.executable, "-m", "kernels.bench.compiling", str(capability)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    """Compile, write, print; the number of faults decides the exit status."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        built = [kernel for found in pool.map(compile_for, SHARED_BYTES) for kernel in found]
    report = {"triton": version("triton"), "sources": sources(), "kernels": built}
    lines = ",\n".join(json.dumps(kernel) for kernel in built)
    head = json.dumps({**report, "kernels": []})
    (HERE / "report.json").write_text(head.replace("[]", f"[\n{lines}\n]") + "\n", "utf-8")
    text = markdown(report)
    (HERE / "report.md").write_text(text, "utf-8")
    faults = wrong(built)
    sys.stdout.write(text + "\n".join(["", *faults, ""]))
    sys.stdout.write(
        json.dumps({"bench": "kernels-report", "kernels": len(built), "faults": len(faults)}) + "\n"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
