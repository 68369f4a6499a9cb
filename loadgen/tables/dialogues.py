"""Lengths of prompts and answers in the evaluations whose claims are simulated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from loadgen import arrivals
from loadgen.sim.fleet.goodput import Draw
from loadgen.workloads.prefixes import log_normal
from loadgen.workloads.request import Request, Workload, build

_MOST: Final = 2_048
"""Positions of OPT: longer dialogues were cut."""


class Lengths(Protocol):
    """Where prompts and answers of a workload are drawn from."""

    @property
    def name(self) -> str: ...

    def one(self, chance: random.Random) -> tuple[int, int]:
        """Tokens of a prompt and of its answer."""
        ...


@dataclass(frozen=True, slots=True)
class Moments:
    """Published means, and our guess at their spread (deviation / mean): log-normal."""

    name: str
    prompt: float
    output: float
    prompt_spread: float
    output_spread: float

    def one(self, chance: random.Random) -> tuple[int, int]:
        output = log_normal(chance, self.output, self.output * self.output_spread)
        prompt = log_normal(chance, self.prompt, self.prompt * self.prompt_spread)
        return prompt, output


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The 0th, 5th, ... 100th percentile of each, linear between them. Independent: the rank
    correlation of prompts and answers is -0.07."""

    name: str
    prompts: Sequence[int]
    outputs: Sequence[int]

    def one(self, chance: random.Random) -> tuple[int, int]:
        return _between(self.prompts, chance.random()), _between(self.outputs, chance.random())


# fmt: off
SHAREGPT: Final = Quantiles(
    "ShareGPT",
    (2, 31, 91, 166, 254, 335, 386, 460, 550, 616, 724, 795, 863, 964, 1022, 1147, 1307, 1421, 1512,
     1696, 2003),
    (2, 6, 9, 11, 14, 18, 23, 32, 36, 53, 81, 118, 162, 199, 239, 291, 351, 400, 477, 560, 1085),
)
"""Of the 400 requests in simdistserve/benchmarks/alignment of github.com/LLMServe/DistServe (means
of 763 and 176 tokens; the paper has 755.5 and 200.3 for all of its dialogues)."""
# fmt: on
HUMANEVAL: Final = Moments("HumanEval", 171.3, 98.2, 0.5, 0.5)
LONGBENCH: Final = Moments("LongBench", 1_738.3, 90.7, 0.3, 0.3)


def drawn(kind: Lengths, count: int, seed: int = 1) -> Draw:
    """The same dialogues at any rate, prompt and answer within the model's positions."""
    chance = random.Random(f"lengths:{kind.name}:{seed}")
    pairs = []
    for _ in range(count):
        prompt, output = kind.one(chance)
        output = min(_MOST // 2, output)
        pairs.append((max(4, min(prompt, _MOST - output)), max(2, output)))

    def draw(rate_per_s: float) -> Workload:
        times = arrivals.poisson(rate_per_s, count, seed)
        rows = (
            Request(at_s=at_s, prompt_tokens=prompt, output_tokens=output)
            for at_s, (prompt, output) in zip(times, pairs, strict=True)
        )
        return build(kind.name, 64, rows)

    return draw


def _between(points: Sequence[int], share: float) -> int:
    place = share * (len(points) - 1)
    low = int(place)
    return round(points[low] + (place - low) * (points[low + 1] - points[low]))
