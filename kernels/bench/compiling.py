"""Compiles the kernels for GPU generations that need not be here, and reads what they would use.

Run as a script in its own process, one JSON line a kernel: `python -m kernels.bench.compiling
80,90 [name …]`. The kernels must be imported without the interpreter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.bench.variants import Variant, everything

WARP_LANES = 32


def usage(cubin: bytes) -> dict[str, int]:
    """Registers a thread, and bytes of stack and local memory a thread: where spills go. From the
    tool in the Triton wheel."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", printed)
    if len(found) != 1:
        raise SystemExit(f"no resource usage in: {printed}")
    registers, stack, local = (int(value) for value in found[0])
    return {"registers": registers, "spill_bytes": stack + local}


def build(variant: Variant, capability: int) -> dict[str, Any]:
    """Compile one variant and tell its costs."""
    source = ASTSource(variant.kernel, variant.signature(), variant.constants, variant.attributes())
    target = GPUTarget("cuda", capability, WARP_LANES)
    built = triton.compile(source, target=target, options=variant.options)
    return {
        "sm": capability,
        "kernel": variant.name,
        "warps": built.metadata.num_warps,
        "shared_bytes": built.metadata.shared,
        **usage(built.asm["cubin"]),
    }


def main(capabilities: str, names: list[str]) -> None:
    """All variants, or those whose name starts with one of `names`."""
    for capability in map(int, capabilities.split(",")):
        for variant in everything(capability):
            if not names or variant.name.startswith(tuple(names)):
                sys.stdout.write(json.dumps(build(variant, capability)) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
