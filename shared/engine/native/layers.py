"""Whole layers of the plain form in one call of the library: Llama's, without biases or more norms.

They give the same bits as the operations one by one; what is saved is the time between them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import torch

from shared.checkpoint.spec import ModelSpec
from shared.engine.native.attention import NativeAttention
from shared.engine.native.operations import NativeOperations
from shared.engine.native.packing import BLOCK, LANES, PackedMatrix
from shared.engine.rope import Turn
from shared.engine.weights import LayerWeights

_TOGETHER: Final = 256
"""Rows that pass the gated half at a time."""


class _Layer(ctypes.Structure):
    """`Layer` in layers.h."""

    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("qkv", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("gate_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("window", ctypes.c_int64),
    )


class _Step(ctypes.Structure):
    """`Step` in layers.h."""

    _fields_ = (
        ("store", ctypes.c_void_p),
        ("attention", ctypes.c_void_p),
        ("hidden", ctypes.c_void_p),
        ("room", ctypes.c_void_p),
        ("last", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("together", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("rounded", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
    )


class PlainLayers:
    """The layers of one model, and room for what a step needs between them."""

    def __init__(
        self, spec: ModelSpec, layers: Sequence[LayerWeights], operations: NativeOperations
    ) -> None:
        """`layers`: for which `plain` holds."""
        self._layers = layers  # Keeps the memory that the structs point to.
        self._operations = operations
        self._spec = spec
        self._structs = (_Layer * len(layers))(*map(_struct, layers))
        for number, struct in enumerate(self._structs):
            struct.window = spec.window(number)
        self._room = torch.empty(0)
        first = layers[0].qkv
        self._rounded = isinstance(first, PackedMatrix) and first.rounded and _whole_blocks(spec)

    def rounded(self, attention: NativeAttention) -> bool:
        """Whether this step is of the bfloat16 setting, all in tiles."""
        return self._rounded and attention.rounded

    def run(
        self,
        count: int,
        hidden: torch.Tensor,
        turns: tuple[Turn, Turn],
        new_rows: torch.Tensor,
        attention: NativeAttention,
    ) -> None:
        """The first `count` layers over [row, hidden], in place. `turns`: of layers without and
        with a window."""
        self._call(count, self._step(hidden, new_rows, attention), turns)

    def run_all(
        self,
        hidden: torch.Tensor,
        turns: tuple[Turn, Turn],
        new_rows: torch.Tensor,
        attention: NativeAttention,
    ) -> torch.Tensor:
        """All layers, for which `rounded` holds: [drawn row, hidden]."""
        step = self._step(hidden, new_rows, attention)
        found = torch.empty(attention.drawn_rows, hidden.shape[1])
        step.last = found.data_ptr() or hidden.data_ptr()  # Some address for no rows, too.
        self._call(len(self._layers), step, turns)
        return found

    def _step(
        self, hidden: torch.Tensor, new_rows: torch.Tensor, attention: NativeAttention
    ) -> _Step:
        rows = hidden.shape[0]
        together = min(rows, _TOGETHER)
        return _Step(
            store=self._operations.store_of(new_rows, self._spec.heads),
            attention=attention.address,
            hidden=hidden.data_ptr(),
            room=self._room_of(rows, together),
            rows=rows,
            together=together,
            threads=self._operations.threads,
            rounded=self.rounded(attention),
            epsilon=self._spec.rms_eps,
        )

    def _call(self, count: int, step: _Step, turns: tuple[Turn, Turn]) -> None:
        for struct in self._structs[:count]:
            cosines, sines = turns[struct.window > 0]
            struct.cosines, struct.sines = cosines.data_ptr(), sines.data_ptr()
        self._operations.library.baton_layers(
            ctypes.addressof(self._structs), count, ctypes.addressof(step)
        )

    def _room_of(self, rows: int, together: int) -> int:
        if self._rounded:
            return 0
        spec = self._spec
        heads = 2 * spec.heads + 2 * spec.kv_heads
        floats = rows * (spec.hidden + heads * spec.head_dim) + together * 3 * spec.ffn
        if self._room.numel() < floats:
            self._room = torch.empty(floats)
        return self._room.data_ptr()


def _whole_blocks(spec: ModelSpec) -> bool:
    """Whether rounded layers find their widths in whole tiles."""
    return spec.hidden % BLOCK == spec.head_dim % (2 * BLOCK) == spec.ffn % LANES == 0


def plain(spec: ModelSpec, layers: Sequence[LayerWeights]) -> bool:
    """Whether these layers are of the form that the library runs."""
    return spec.activation == "silu" and all(
        layer.qkv_bias is layer.q_norm is layer.k_norm is None
        and layer.attn_post_norm is layer.ffn_post_norm is None
        for layer in layers
    )


def _struct(layer: LayerWeights) -> _Layer:
    matrices = (layer.qkv, layer.out, layer.gate_up, layer.down)
    addresses = [one.address for one in matrices if isinstance(one, PackedMatrix)]
    return _Layer(layer.attn_norm.data_ptr(), layer.ffn_norm.data_ptr(), *addresses)
