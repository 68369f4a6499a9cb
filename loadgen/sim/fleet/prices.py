"""What engine work costs in truth: the price list of one kind of worker.

prefill = a + b*n + c*((n+p)^2 - p^2)      decode = alpha + beta*context + gamma*sequences
mixed   = max(decode, a + b*(n+B) + c*(...) + beta*context)            (seconds; algorithms, 0)

What workers report of themselves is another object: policies meet wrong beliefs too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from shared.engine.batch import StepItem
from shared.wire.workers import CostModel, StepSample

_BIG_BATCH: Final = 95
"""From here on DistServe's profiles have coefficients of their own."""


class Work(NamedTuple):
    """What an engine is asked for at once, and what it takes."""

    seconds: float
    new: int
    """Prompt tokens."""
    pairs: int
    """(n+p)^2 - p^2, summed over the prompt chunks."""
    sequences: int
    """That take one token each."""
    context: int
    """Of theirs, together."""
    owed_s: float = 0.0
    """What its sequences have not been charged for: the next step without prompts takes longer by
    it."""

    def sample(self, stride: int) -> StepSample:
        """As a worker reports it: several chunks count as one of as many tokens and pairs."""
        new = self.new
        cached = max(0, self.pairs - new**2) // (2 * new) if new else 0
        seconds = self.seconds if new else self.seconds / stride
        return StepSample(new, cached, self.sequences, self.context, seconds)


@dataclass(frozen=True, slots=True)
class DecodePrice:
    """alpha + beta*context + gamma*sequences, in seconds."""

    alpha_s: float
    beta_s: float
    gamma_s: float

    def step_s(self, sequences: int, context: int) -> float:
        return self.alpha_s + self.beta_s * context + self.gamma_s * sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One worker, which is a whole group of devices."""

    name: str
    step_s: float
    token_s: float
    pair_s: float
    decode: DecodePrice
    decode_big: DecodePrice | None = None
    devices: int = 1
    kv_token_bytes: int = 0
    kv_tokens: int = 0
    """Room for so many tokens; 0: not published."""
    pauses: bool = False
    """Sequences wait while a prompt is computed, as in vLLM before chunked prefills. A step with
    both ends with the prompts, so that these come first; what its sequences took is owed."""
    stages: int = 1
    """Of a pipeline. `devices` and `kv_tokens` count all stages; the times above are of a step that
    has gone through all of them."""
    hop_s: float = 0.0
    """From one stage to the next, for each step."""
    hop_token_s: float = 0.0
    """The same for each token in it."""

    def step(self, items: Sequence[StepItem], stride: int = 1) -> Work:
        """One step of prompt chunks and sequences that take one token each. Without chunks it
        stands for `stride` decode steps."""
        new = pairs = context = chunks = 0
        for item in items:
            start, count = item.start, len(item.tokens)
            if count == 1:
                context += start + 1
            else:
                chunks += 1
                new += count
                pairs += count * (2 * start + count)
        sequences = len(items) - chunks
        if new and self.pauses:
            prompts_s, owed_s = self.mixed_s(new, pairs, 0, 0), self.decode_s(sequences, context)
            return Work(prompts_s, new, pairs, sequences, context, owed_s)
        if new or stride == 1:
            seconds = self.mixed_s(new, pairs, sequences, context)
            return Work(seconds, new, pairs, sequences, context)
        drawn = sum([item.draw.position for item in items if item.draw is not None])
        # Contexts are longer than they look, and grow while the step lasts.
        context += (drawn - sequences) * (stride - 1) + sequences * (stride - 1) // 2
        return Work(stride * self.decode_s(sequences, context), 0, 0, sequences, context)

    def mixed_s(self, new: int, pairs: int, sequences: int, context: int) -> float:
        """`pairs` = (n+p)^2 - p^2, summed over the prompt chunks."""
        memory_s = self.decode_s(sequences, context)
        if not new:
            return memory_s
        if self.pauses:
            return memory_s + self.step_s + self.token_s * new + self.pair_s * pairs
        compute_s = self.step_s + self.token_s * (new + sequences) + self.pair_s * pairs
        return max(memory_s, compute_s + self.decode.beta_s * context)

    def decode_s(self, sequences: int, context: int) -> float:
        if not sequences:
            return 0.0
        big = self.decode_big is not None and sequences >= _BIG_BATCH
        price = self.decode_big if big and self.decode_big is not None else self.decode
        return price.step_s(sequences, context)

    def hops_s(self, tokens: int) -> float:
        """Between all stages, for one step."""
        return (self.stages - 1) * (self.hop_s + self.hop_token_s * tokens)

    def reported(self, bias: float = 1.0) -> CostModel:
        """What a worker says of itself after its profile at start, wrong by a factor."""
        hops_s = self.hops_s(0)
        return CostModel(
            step_s=(self.step_s + hops_s) * bias,
            token_s=self.token_s * bias,
            pair_s=self.pair_s * bias,
            decode_step_s=(self.decode.alpha_s + self.decode.gamma_s + hops_s) * bias,
            decode_sequence_s=self.decode.gamma_s * bias,
        )


_KIB: Final = 1024


def _distserve(
    name: str,
    devices: int,
    kv_kib: int,
    kv_tokens: int,
    prefill: tuple[float, float, float],
    small: tuple[float, float, float],
    big: tuple[float, float, float],
) -> Price:
    """Published in milliseconds: prefill a, b, c; decode alpha, beta, gamma below and from 95."""
    a, b, c = (value / 1000 for value in prefill)
    decode, decode_big = (DecodePrice(*(value / 1000 for value in row)) for row in (small, big))
    return Price(
        name=name,
        step_s=a,
        token_s=b,
        pair_s=c,
        decode=decode,
        decode_big=decode_big,
        devices=devices,
        kv_token_bytes=kv_kib * _KIB,
        kv_tokens=kv_tokens,
    )


# fmt: off
_OPT_13B, _OPT_66B = 800, 2_304
_PUBLISHED: Final = (
    _distserve("opt-13b:tp1", 1, _OPT_13B, 66_144, (18.10, .10191, 7.12e-6), (19.93, 6.27e-4, .0385), (7.17, 5.80e-4, .1583)),  # noqa: E501
    _distserve("opt-13b:tp2", 2, _OPT_13B, 163_008, (14.74, .06858, 2.45e-6), (13.29, 3.41e-4, .0630), (10.64, 3.12e-4, .0856)),  # noqa: E501
    _distserve("opt-13b:tp4", 4, _OPT_13B, 356_736, (12.06, .03808, 5.23e-7), (10.26, 1.88e-4, .0327), (10.48, 1.71e-4, .0457)),  # noqa: E501
    _distserve("opt-66b:tp2", 2, _OPT_66B, 11_600, (43.06, .27423, 2.25e-5), (48.29, 9.42e-4, .1276), (28.73, 4.74e-4, .2962)),  # noqa: E501
    _distserve("opt-66b:tp3", 3, _OPT_66B, 45_056, (33.00, .19568, 1.22e-5), (35.80, 5.85e-4, .0953), (22.65, 5.36e-4, .2085)),  # noqa: E501
    _distserve("opt-66b:tp4", 4, _OPT_66B, 78_496, (29.44, .15135, 8.32e-6), (30.76, 4.52e-4, .0633), (27.47, 4.05e-4, .1248)),  # noqa: E501
    _distserve("opt-66b:tp8", 8, _OPT_66B, 212_304, (25.49, .10659, 3.39e-6), (23.16, 2.27e-4, .0480), (21.72, 3.76e-4, .0898)),  # noqa: E501
    _distserve("vllm-opt-13b:tp1", 1, _OPT_13B, 66_144, (22.05, .14051, 8.08e-6), (23.48, 5.93e-4, .0607), (20.21, 4.91e-4, .1200)),  # noqa: E501
    _distserve("vllm-opt-13b:tp2", 2, _OPT_13B, 163_008, (27.44, .09055, 8.45e-6), (24.54, 2.24e-4, .0872), (17.95, 4.57e-4, .1118)),  # noqa: E501
    _distserve("vllm-opt-13b:tp4", 4, _OPT_13B, 356_736, (30.54, .05151, 4.23e-7), (25.90, 7.75e-5, .0553), (23.88, 2.84e-4, .0628)),  # noqa: E501
    _distserve("vllm-opt-66b:tp4", 4, _OPT_66B, 78_496, (42.97, .21287, 4.60e-5), (39.58, 6.95e-4, .1358), (40.86, 4.26e-4, .1951)),  # noqa: E501
    _distserve("vllm-opt-66b:tp8", 8, _OPT_66B, 212_304, (38.93, .15737, 4.53e-6), (31.18, 2.76e-4, .0680), (29.09, 6.03e-4, .1390)),  # noqa: E501
)
# fmt: on

TOY: Final = Price(
    name="toy",
    step_s=0.0,
    token_s=40e-6,
    pair_s=0.2e-9,
    decode=DecodePrice(0.006, 0.0, 0.0),
    kv_token_bytes=320 * _KIB,
    kv_tokens=3_000_000,
)
"""The toy model of placement runs (algorithms, 16.7)."""

PRICES: Final = {price.name: price for price in (*_PUBLISHED, TOY)}
"""DistServe's fits on A100-80G (OSDI 2024, appendix A; algorithms, 16.2), and the toy."""


def scaled(price: Price, factor: float, name: str = "") -> Price:
    """All times by a factor: a slower or faster device of the same kind."""

    def slower(decode: DecodePrice) -> DecodePrice:
        return DecodePrice(decode.alpha_s * factor, decode.beta_s * factor, decode.gamma_s * factor)

    return replace(
        price,
        name=name or price.name,
        step_s=price.step_s * factor,
        token_s=price.token_s * factor,
        pair_s=price.pair_s * factor,
        decode=slower(price.decode),
        decode_big=None if price.decode_big is None else slower(price.decode_big),
    )


def free(like: Price) -> Price:
    """Takes no time and no room, and needs no GPU."""
    none = DecodePrice(0.0, 0.0, 0.0)
    return replace(
        like,
        name="free",
        step_s=0.0,
        token_s=0.0,
        pair_s=0.0,
        decode=none,
        decode_big=None,
        devices=0,
        kv_tokens=1 << 24,
        stages=1,
    )


def piped(price: Price, stages: int, kv_tokens: int, hop_s: float, hop_token_s: float) -> Price:
    """As many groups of these devices as stages, each with its share of the layers. `kv_tokens` is
    the room of them all."""
    if stages == 1:
        return price
    return replace(
        price,
        name=f"{price.name}pp{stages}",
        devices=price.devices * stages,
        stages=stages,
        kv_tokens=kv_tokens,
        hop_s=hop_s,
        hop_token_s=hop_token_s,
    )
