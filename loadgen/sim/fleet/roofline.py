"""A price from a datasheet: compute and memory roofs, tensor parallelism, and a few efficiencies.

The efficiencies were chosen once so that OPT-13B and OPT-66B on A100 come near DistServe's measured
fits (the test states how near); they are the only numbers here that are not from a datasheet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from loadgen.sim.fleet.design import DesignError
from loadgen.sim.fleet.devices import DEVICES, MODELS, Device, ModelShape
from loadgen.sim.fleet.prices import PRICES, DecodePrice, Price, piped

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
    stage_s: float = 100e-6
    """From one stage of a pipeline to the next, beside the bytes."""


USUAL: Final = Efficiency()
_PARALLEL: Final = re.compile(r"tp(\d+)(?:pp(\d+))?")
_FIT_HOP_S, _FIT_HOP_TOKEN_S = 1e-4, 2e-6
"""Of the published fits: about the millisecond that DistServe's simulator adds to a stage that
computes a prompt of 512 tokens."""


def price(
    model: ModelShape,
    device: Device,
    tensor_parallel: int = 1,
    eff: Efficiency = USUAL,
    stages: int = 1,
) -> Price:
    """One worker: `stages` of a pipeline, each of `tensor_parallel` GPUs. Raises DesignError where
    heads or layers do not split, or the weights do not fit."""
    tp, gpus = tensor_parallel, tensor_parallel * stages
    if tp < 1 or model.heads % tp or model.ffn % tp:
        raise DesignError(f"{model.name}: {model.heads} heads do not split over {tp} GPUs")
    if not 1 <= stages <= model.layers:
        raise DesignError(f"{model.name}: {model.layers} layers do not split into {stages} stages")
    weight_bytes = model.weights * _WEIGHT_BYTES
    room = device.memory_bytes * (1 - _RESERVED) * gpus - weight_bytes
    # KV heads are copied where there are fewer of them than GPUs.
    copies = max(1, tp // model.kv_heads)
    kv_tokens = int(room // (model.kv_token_bytes * copies))
    if kv_tokens < stages:
        raise DesignError(
            f"{model.name} has {weight_bytes / 1e9:.0f} GB of weights: {gpus} x {device.name} "
            f"({device.memory_bytes * gpus / 1e9:.0f} GB) are too small"
        )
    flops = device.flops * tp * eff.matrix
    token_s = 2 * model.active_weights / flops + _reduce_s(model, device, tp, eff)
    # A batch reaches every expert, so a step reads all weights.
    read_s = weight_bytes / (device.memory_bytes_per_s * tp * eff.weights_read)
    fixed_s = read_s + model.layers * (eff.layer_s + 2 * (tp > 1) * _rounds(tp) * eff.hop_s)
    attention = device.flops * tp * eff.attention
    cache = device.memory_bytes_per_s * tp * eff.cache_read
    whole = Price(
        name=f"{model.name}:{device.name}:tp{tp}",
        step_s=fixed_s,
        token_s=token_s,
        pair_s=2 * model.heads * model.head_dim * model.layers / attention,
        decode=DecodePrice(fixed_s, model.kv_token_bytes * copies / cache, eff.batch * token_s),
        devices=tp,
        kv_token_bytes=model.kv_token_bytes,
        kv_tokens=kv_tokens,
    )
    hop_token_s = model.hidden * _WEIGHT_BYTES / (device.peer_bytes_per_s * eff.peer)
    return piped(whole, stages, kv_tokens, eff.stage_s, hop_token_s)


def parallel(tp: int, stages: int = 1) -> str:
    """As prices are named: `tp2`, `tp2pp4`."""
    return f"tp{tp}" if stages == 1 else f"tp{tp}pp{stages}"


def find(text: str) -> Price:
    """A published price by name ('opt-13b:tp1', 'opt-66b:tp2pp2'), or MODEL:GPU[:tpN[ppM]]. Raises
    DesignError."""
    if text in PRICES:
        return PRICES[text]
    name, _, rest = text.partition(":")
    gpu, _, split = rest.partition(":")
    fit = _PARALLEL.fullmatch(rest)
    if fit is not None and f"{name}:tp{fit[1]}" in PRICES:
        return _published(name, int(fit[1]), int(fit[2] or 1))
    if name not in MODELS:
        raise DesignError(f"unknown model {name!r}; there are: {', '.join(MODELS)}")
    if gpu not in DEVICES:
        raise DesignError(f"unknown GPU {gpu!r}; there are: {', '.join(DEVICES)}")
    how = _PARALLEL.fullmatch(split or "tp1")
    if how is None:
        raise DesignError(f"{text!r}; expected MODEL:GPU:tpN or MODEL:GPU:tpNppM")
    return price(MODELS[name], DEVICES[gpu], int(how[1]), stages=int(how[2] or 1))


def _published(name: str, tp: int, stages: int) -> Price:
    """A pipeline of a measured fit. Each GPU more has been found to add as much room as the one
    before. Raises DesignError."""
    if stages < 1:
        raise DesignError(f"{name}: {stages} stages; expected at least 1")
    rooms = sorted(
        (price.devices, price.kv_tokens)
        for known, price in PRICES.items()
        if known.startswith(f"{name}:tp")
    )
    (few, less), (many, more) = rooms[0], rooms[-1]
    each = (more - less) / (many - few)
    gpus = tp * stages
    found = PRICES[f"{name}:tp{tp}"]
    kv_tokens = found.kv_tokens + round((gpus - tp) * each)
    return piped(found, stages, kv_tokens, _FIT_HOP_S, _FIT_HOP_TOKEN_S)


def _rounds(tp: int) -> int:
    return (tp - 1).bit_length()


def _reduce_s(model: ModelShape, device: Device, tp: int, eff: Efficiency) -> float:
    """Two all-reduces a layer of one token's hidden state."""
    if tp == 1:
        return 0.0
    size = 2 * model.layers * model.hidden * _WEIGHT_BYTES
    return size * 2 * (tp - 1) / tp / (device.peer_bytes_per_s * eff.peer)
