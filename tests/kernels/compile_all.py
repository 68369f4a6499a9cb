"""Compiles every kernel for one GPU generation, without a GPU, and prints one JSON line each.

Run as a script in its own process: the kernels must be imported without the interpreter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.dispatch import DECODE_TILE, PREFILL_TILE
from kernels.paged_attention.decode import decode_join, decode_split
from kernels.paged_attention.plan import DECODE_SPAN_TOKENS, PREFILL_ROWS
from kernels.paged_attention.prefill import prefill_tile

SHAPES = (("fp32", 64), ("fp16", 128), ("bf16", 64), ("bf16", 128))


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """(name, kernel, pointer types, constants) of everything that dispatch can launch."""
    for dtype, head_dim in SHAPES:
        sizes = {
            "GROUP": 4,
            "HEAD_DIM": head_dim,
            "DIM": head_dim,
            "BLOCK_TOKENS": 16,
            "UPCAST": dtype == "fp32",
        }
        pages = dict.fromkeys(("q_ptr", "kv_ptr", "out_ptr"), f"*{dtype}")
        yield (
            f"decode_split {dtype} {head_dim}",
            decode_split,
            pages,
            {**sizes, "ROWS": 16, "TILE": DECODE_TILE, "SPAN": DECODE_SPAN_TOKENS},
        )
        yield (
            f"decode_join {dtype} {head_dim}",
            decode_join,
            pages,
            {"HEAD_DIM": head_dim, "DIM": head_dim},
        )
        yield (
            f"prefill_tile {dtype} {head_dim}",
            prefill_tile,
            pages,
            {**sizes, "ROWS": PREFILL_ROWS, "TILE": PREFILL_TILE},
        )


def signature(kernel: Any, pages: dict[str, str], constants: dict[str, Any]) -> dict[str, str]:
    """Types of all arguments: page tensors by dtype, scratch fp32, tables int32."""
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name in pages:
            types[name] = pages[name]
        elif name in ("acc_ptr", "max_ptr", "sum_ptr"):
            types[name] = "*fp32"
        elif name.endswith("_ptr"):
            types[name] = "*i32"
        else:
            types[name] = "fp32" if name == "scale" else "i32"
    return types


def spills(cubin: bytes) -> int:
    """Bytes of local memory per thread, from the tool in the Triton wheel."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        printed = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    found = re.findall(r"LOCAL:(\d+)", printed)
    if not found:
        raise SystemExit(f"no resource usage in: {printed}")
    return max(int(value) for value in found)


def main(capability: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    for name, kernel, pages, constants in variants():
        source = ASTSource(kernel, signature(kernel, pages, constants), constants)
        built = triton.compile(source, target=target)
        line = {
            "kernel": name,
            "shared_bytes": built.metadata.shared,
            "local_bytes": spills(built.asm["cubin"]),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
