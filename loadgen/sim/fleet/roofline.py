"""A price from a datasheet: compute and memory roofs, tensor parallelism, and a few efficiencies.

The efficiencies were chosen once so that OPT-13B and OPT-66B on A100 come near DistServe's measured
fits (the test states how near); they are the only numbers here that are not from a datasheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from loadgen.sim.fleet.design import DesignError
from loadgen.sim.fleet.devices import DEVICES, MODELS, Device, ModelShape
from loadgen.sim.fleet.prices import PRICES, DecodePrice, Price

_WEIGHT_BYTES: Final = 2
_RESERVED: Final = 0.10
"""Of the memory: activations, graphs, fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the roofs that real kernels reach, and the fixed cost of a layer."""

    matrix: float = 0.82
    attention: float = 0.35
    weights_read: float = 0.85
    cache_read: float = 0.64
    peer: float = 0.3
    batch: float = 0.5
    """Of a token's compute in a decode step: that much does not hide behind reading weights."""
    layer_s: float = 75e-6
    """Launches and host work of one layer."""
    hop_s: float = 18e-6
    """Latency of one all-reduce step between two GPUs."""


USUAL: Final = Efficiency()


def price(
    model: ModelShape, device: Device, tensor_parallel: int = 1, eff: Efficiency = USUAL
) -> Price:
    """One worker of `tensor_parallel` GPUs. Raises DesignError where the heads do not split or the
    weights do not fit."""
    tp = tensor_parallel
    if tp < 1 or model.heads % tp or model.ffn % tp:
        raise DesignError(f"{model.name}: {model.heads} heads do not split over {tp} GPUs")
    weight_bytes = model.weights * _WEIGHT_BYTES
    room = device.memory_bytes * (1 - _RESERVED) * tp - weight_bytes
    # KV heads are copied where there are fewer of them than GPUs.
    copies = max(1, tp // model.kv_heads)
    kv_tokens = int(room // (model.kv_token_bytes * copies))
    if kv_tokens < 1:
        raise DesignError(
            f"{model.name} has {weight_bytes / 1e9:.0f} GB of weights: {tp} x {device.name} "
            f"({device.memory_bytes * tp / 1e9:.0f} GB) are too small"
        )
    flops = device.flops * tp * eff.matrix
    token_s = 2 * model.active_weights / flops + _reduce_s(model, device, tp, eff)
    # A batch reaches every expert, so a step reads all weights.
    read_s = weight_bytes / (device.memory_bytes_per_s * tp * eff.weights_read)
    fixed_s = read_s + model.layers * (eff.layer_s + 2 * (tp > 1) * _rounds(tp) * eff.hop_s)
    attention = device.flops * tp * eff.attention
    cache = device.memory_bytes_per_s * tp * eff.cache_read
    return Price(
        name=f"{model.name}:{device.name}:tp{tp}",
        step_s=fixed_s,
        token_s=token_s,
        pair_s=2 * model.heads * model.head_dim * model.layers / attention,
        decode=DecodePrice(fixed_s, model.kv_token_bytes * copies / cache, eff.batch * token_s),
        devices=tp,
        kv_token_bytes=model.kv_token_bytes,
        kv_tokens=kv_tokens,
    )


def find(text: str) -> Price:
    """A published price by name ('opt-13b:tp1'), or MODEL:GPU[:tpN]. Raises DesignError."""
    if text in PRICES:
        return PRICES[text]
    name, _, rest = text.partition(":")
    gpu, _, parallel = rest.partition(":")
    if name not in MODELS:
        raise DesignError(f"unknown model {name!r}; there are: {', '.join(MODELS)}")
    if gpu not in DEVICES:
        raise DesignError(f"unknown GPU {gpu!r}; there are: {', '.join(DEVICES)}")
    digits = parallel.removeprefix("tp") or "1"
    if not digits.isdecimal():
        raise DesignError(f"{text!r}; expected MODEL:GPU:tpN")
    return price(MODELS[name], DEVICES[gpu], int(digits))


def _rounds(tp: int) -> int:
    return (tp - 1).bit_length()


def _reduce_s(model: ModelShape, device: Device, tp: int, eff: Efficiency) -> float:
    """Two all-reduces a layer of one token's hidden state."""
    if tp == 1:
        return 0.0
    size = 2 * model.layers * model.hidden * _WEIGHT_BYTES
    return size * 2 * (tp - 1) / tp / (device.peer_bytes_per_s * eff.peer)
