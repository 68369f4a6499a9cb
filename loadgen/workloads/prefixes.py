"""Generators of prompts that share prefixes: families with an exact share, Zipf, one hot prefix,
and the five workloads of Preble (ICLR 2025, table 1) by their published moments.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from loadgen.workloads.request import Request, Workload, WorkloadError, build

BLOCK_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Family:
    """`groups` prefixes of `shared_tokens`, each prompt with `own_tokens` of its own."""

    groups: int
    shared_tokens: int
    own_tokens: int
    output_tokens: int
    zipf: float = 0.0
    """Exponent of the groups' popularity; 0: all alike."""


class Ids:
    """Hands out block ids, each once."""

    def __init__(self) -> None:
        self._next = itertools.count()

    def take(self, count: int) -> tuple[int, ...]:
        return tuple(itertools.islice(self._next, count))


def families(name: str, family: Family, times: Sequence[float], seed: int = 0) -> Workload:
    """Shared parts are whole blocks, so the share is exact. Raises WorkloadError."""
    if family.groups < 1 or family.shared_tokens % BLOCK_TOKENS:
        raise WorkloadError(
            f"{name}: needs at least one group, and shared_tokens a multiple of {BLOCK_TOKENS}"
        )
    chance, ids = random.Random(f"families:{seed}"), Ids()
    prefixes = [ids.take(family.shared_tokens // BLOCK_TOKENS) for _ in range(family.groups)]
    weights = [1 / (rank + 1) ** family.zipf for rank in range(family.groups)]
    own = -(-family.own_tokens // BLOCK_TOKENS)
    groups = chance.choices(range(family.groups), weights, k=len(times))
    return build(
        name,
        BLOCK_TOKENS,
        (
            Request(
                at_s=at_s,
                prompt_tokens=family.shared_tokens + family.own_tokens,
                output_tokens=family.output_tokens,
                blocks=prefixes[group] + ids.take(own),
                session=group,
            )
            for at_s, group in zip(times, groups, strict=True)
        ),
    )


@dataclass(frozen=True, slots=True)
class Moments:
    """A row of Preble's table 1: mean and deviation of tokens, shares, requests a prefix."""

    prompt: tuple[float, float]
    output: tuple[float, float]
    key_share: float
    """Share of the prompt that is the key part: the prefix that many requests have in common."""
    sharing: tuple[float, float]
    """Requests that have one key part in common."""


PREBLE: Final = {
    "toolbench": Moments((1_835, 742), (43, 16), 0.76, (39, 64)),
    "embodied": Moments((2_285, 471), (16, 13), 0.76, (48, 8)),
    "programming": Moments((3_871, 1_656), (190, 343), 0.78, (126, 2_157)),
    "videoqa": Moments((9_865, 5_976), (4, 1.5), 0.99, (8.6, 2)),
    "loogle": Moments((23_474, 6_105), (16, 9.9), 0.94, (18, 8.6)),
}


def preble(
    kind: str, times: Sequence[float], seed: int = 0, sharing: tuple[float, float] | None = None
) -> Workload:
    """Lengths and group sizes are log-normal with the published moments, or of groups of another
    size; requests of all groups are mixed. Raises WorkloadError for an unknown kind."""
    moments = PREBLE.get(kind)
    if moments is None:
        raise WorkloadError(f"Preble has no workload {kind!r}; it has {', '.join(PREBLE)}")
    chance, ids = random.Random(f"preble:{kind}:{seed}"), Ids()
    rows: list[tuple[int, tuple[int, ...], int]] = []
    for group in itertools.count():
        if len(rows) >= len(times):
            break
        prompt = max(2 * BLOCK_TOKENS, log_normal(chance, *moments.prompt))
        key = ids.take(max(1, int(prompt * moments.key_share) // BLOCK_TOKENS))
        for _ in range(max(1, min(log_normal(chance, *(sharing or moments.sharing)), len(times)))):
            own = max(1, round(prompt - len(key) * BLOCK_TOKENS))
            rows.append((own, key, group))
    chance.shuffle(rows)
    return build(f"preble:{kind}", BLOCK_TOKENS, _rows(rows, times, moments, chance, ids))


def _rows(
    rows: Sequence[tuple[int, tuple[int, ...], int]],
    times: Sequence[float],
    moments: Moments,
    chance: random.Random,
    ids: Ids,
) -> Iterator[Request]:
    for at_s, (own, key, group) in zip(times, rows, strict=False):
        yield Request(
            at_s=at_s,
            prompt_tokens=len(key) * BLOCK_TOKENS + own,
            output_tokens=max(1, log_normal(chance, *moments.output)),
            blocks=key + ids.take(-(-own // BLOCK_TOKENS)),
            session=group,
        )


def log_normal(chance: random.Random, mean: float, deviation: float) -> int:
    """A positive draw with this mean and standard deviation, rounded."""
    spread = math.log1p((deviation / mean) ** 2)
    return max(1, round(chance.lognormvariate(math.log(mean) - spread / 2, math.sqrt(spread))))
