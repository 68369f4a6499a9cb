"""Every kernel in the configurations that the launchers choose by default, named and typed.

Imported only where kernels are compiled: the interpreter must be off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.activation import silu
from kernels.kv_codec import quantise
from kernels.kv_pages import copy
from kernels.norm import rms
from kernels.paged_attention import decode, launch, plan, pod, prefill
from kernels.rope import shift, write
from kernels.sampling import draw

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
GEMMA_CAP = 50.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel with the types of its pointers and its compile-time constants."""

    name: str
    kernel: Any
    types: dict[str, str]
    """Pointer name to type; a pointer that is not here is *i32, a scalar i32."""
    constants: dict[str, Any]
    options: dict[str, int] = field(default_factory=dict)

    def signature(self) -> dict[str, str]:
        """The type of each argument, in order."""
        return {name: self._type(name) for name in self.kernel.arg_names}

    def _type(self, name: str) -> str:
        if name in self.constants:
            return "constexpr"
        return self.types.get(name, "*i32" if name.endswith("_ptr") else "i32")

    def attributes(self) -> dict[tuple[int], list[list[Any]]]:
        """What Triton's launcher sees by itself in our tensors: pointers and strides, but those of
        page tables, are multiples of 16, so wide loads are allowed."""
        aligned = [
            place
            for place, name in enumerate(self.kernel.arg_names)
            if name.endswith(("_ptr", "_stride")) and not name.endswith("table_stride")
        ]
        return {(place,): [["tt.divisibility", 16]] for place in aligned}


def everything(capability: int) -> Iterator[Variant]:
    """All default configurations on one GPU generation."""
    for head_dim in (64, 96, 128, 256):
        yield from _attention("bf16", head_dim, group=4, capability=capability)
    for head_dim in (128, 256):
        yield from _attention("bf16", head_dim, group=2, capability=capability, cap=GEMMA_CAP)
    yield from _attention("fp16", 128, group=4, capability=capability)
    for head_dim in (64, 96, 128, 256):
        yield from _attention("fp32", head_dim, group=4, capability=capability)
    for dtype in DTYPES:
        yield from _pages(dtype)
        yield from _layer(dtype)
        for head_dim in (64, 96, 128) if dtype == "bf16" else (128,):
            yield from _rope(dtype, head_dim)
            yield from _codec(dtype, head_dim)
        types = {name: "*fp32" for name in draw.draw_rows.arg_names if name.endswith("_ptr")}
        types |= {"logit_ptr": f"*{dtype}", "top_k_ptr": "*i32", "token_ptr": "*i32"}
        sizes = {"TILE": draw.TILE}
        yield Variant(f"draw_rows {dtype}", draw.draw_rows, types, sizes, {"num_warps": draw.WARPS})


def _pages(dtype: str) -> Iterator[Variant]:
    for kernel in (copy.gather_runs, copy.scatter_runs):
        for other in sorted({dtype, "fp16"}):
            types = {"page_ptr": f"*{dtype}", "staging_ptr": f"*{other}"}
            name = f"{kernel.__name__} {dtype} {other}"
            yield Variant(name, kernel, types, {"CHUNK": copy.CHUNK})


def _layer(dtype: str) -> Iterator[Variant]:
    for block in (1024, 4096, 8192) if dtype == "bf16" else (4096,):
        for kernel in (rms.rms_rows, rms.add_rms_rows):
            types = {name: f"*{dtype}" for name in kernel.arg_names if name.endswith("_ptr")}
            options = {"num_warps": rms.warps(block)}
            name = f"{kernel.__name__} {dtype} {block}"
            yield Variant(name, kernel, {**types, "eps": "fp32"}, {"BLOCK": block}, options)
    types = {"gate_up_ptr": f"*{dtype}", "out_ptr": f"*{dtype}"}
    yield Variant(f"silu_mul_rows {dtype}", silu.silu_mul_rows, types, {"BLOCK": silu.BLOCK})


def _rope(dtype: str, head_dim: int) -> Iterator[Variant]:
    half_dim = 1 << (head_dim // 2 - 1).bit_length()
    turns = {"cosine_ptr": "*fp32", "sine_ptr": "*fp32"}
    sizes = {"HEAD_DIM": head_dim, "HALF_DIM": half_dim, "BLOCK_TOKENS": 16}
    tensors = dict.fromkeys(("mixed_ptr", "kv_ptr", "page_ptr"), f"*{dtype}")
    rows = {**sizes, "HEAD_TILE": write.HEAD_TILE}
    label = f"{dtype} {head_dim}"
    yield Variant(f"rope_write_rows {label}", write.rope_write_rows, {**turns, **tensors}, rows)
    moved = {**sizes, "TOKENS": 16}
    yield Variant(f"shift_keys {label}", shift.shift_keys, {**turns, **tensors}, moved)


def _codec(dtype: str, head_dim: int) -> Iterator[Variant]:
    channels = 8 * head_dim
    width = 1 << (channels - 1).bit_length()
    sizes = {"HEAD_DIM": head_dim, "CHANNELS": channels, "WIDTH": width, "BLOCK_TOKENS": 16}
    types = {"page_ptr": f"*{dtype}", "symbol_ptr": "*u8", "scale_ptr": "*fp16"}
    for kernel in (quantise.encode_groups, quantise.decode_groups):
        name = f"{kernel.__name__} {dtype} {head_dim}"
        yield Variant(name, kernel, types, sizes, {"num_warps": quantise.warps(width)})


def _attention(
    dtype: str, head_dim: int, group: int, capability: int, cap: float = 0.0
) -> Iterator[Variant]:
    chosen = launch.tiles(DTYPES[dtype], head_dim, capability)
    sizes = {"GROUP": group, "HEAD_DIM": head_dim, "DIM": 1 << (head_dim - 1).bit_length()}
    paged = {**sizes, "BLOCK_TOKENS": 16, "STAGES": chosen.stages}
    bounded: dict[str, Any] = {"UPCAST": dtype == "fp32", "CAP": cap * launch.LOG2_E}
    paged |= bounded
    partial = dict.fromkeys(("acc_ptr", "max_ptr", "sum_ptr"), "*fp32")
    types = {**dict.fromkeys(("q_ptr", "kv_ptr", "out_ptr"), f"*{dtype}"), **partial}
    types["scale"] = "fp32"
    options = {"num_warps": chosen.warps}
    rows = {"decode": launch.decode_rows(group), "prefill": launch.prefill_rows(group)}
    label = f"{dtype} {head_dim} x{group}{' capped' if cap else ''}"
    span = {"SPAN": plan.DECODE_SPAN_TOKENS}
    split = {**paged, **span, "ROWS": rows["decode"], "TILE": chosen.decode_keys}
    yield Variant(f"decode_split {label}", decode.decode_split, types, split, options)
    if not cap:
        join = {**sizes, "ROWS": rows["decode"]}
        yield Variant(f"decode_join {label}", decode.decode_join, types, join)
    tile = {**paged, "ROWS": rows["prefill"], "TILE": chosen.prefill_keys}
    for windowed in (False, True) if dtype == "bf16" else (False,):
        name = f"prefill_tile {label}{' windowed' if windowed else ''}"
        constants = {**tile, "MASK_ALL": windowed or chosen.mask_all}
        yield Variant(name, prefill.prefill_tile, types, constants, options)
    if dtype == "fp32":
        return
    pair = {
        **paged,
        **span,
        "PREFILL_ROWS": rows["prefill"],
        "DECODE_ROWS": rows["decode"],
        "PREFILL_TILE": chosen.prefill_keys,
        "DECODE_TILE": chosen.decode_keys,
        "MASK_ALL": chosen.fused_mask_all,
        "STAGES": chosen.fused_stages,
        "HARDWARE_SM": True,
    }
    yield Variant(f"pod_step {label}", pod.pod_step, types, pair, options)
