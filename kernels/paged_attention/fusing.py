"""When one fused launch of prefill and decode attention pays, and what the two halves cost alone.

serial = prefill + decode       fused = max(prefill, decode) + 10 %
fuse  <=>  the shorter half is above 25 us  and  fused is more than 5 % below serial
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kernels.paged_attention.plan import AttentionPlan

FUSED_LOSS: Final = 0.10
LEAST_GAIN: Final = 0.05
LEAST_HALF_S: Final = 25e-6


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """Seconds of a launch over its work: a measured table, straight lines between its points."""

    works: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.works, self.works[1:], strict=False))
        if len(self.works) != len(self.seconds) or len(self.works) < 2 or not ascending:
            raise ValueError("a cost table needs two or more ascending points")

    def at(self, work: float) -> float:
        """Below the first point as cheap as there, past the last at the last slope."""
        if work <= self.works[0]:
            return self.seconds[0]
        pairs = zip(self.works[1:-1], range(len(self.works) - 2), strict=True)
        left = next((place for bound, place in pairs if work <= bound), len(self.works) - 2)
        (x0, x1), (y0, y1) = self.works[left : left + 2], self.seconds[left : left + 2]
        return y0 + (work - x0) * max(0.0, y1 - y0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class AttentionCosts:
    """Measured once at start for the model's heads: `paged_attention.measure` makes it."""

    prefill: LaunchCost
    """Over query-key pairs of one head."""
    decode: LaunchCost
    """Over keys of one kv head."""

    def fusing_pays(self, plan: AttentionPlan) -> bool:
        """Whether the rule above picks one launch for this step."""
        if plan.entries is None:
            return False
        return pays(self.prefill.at(plan.prefill_pairs), self.decode.at(plan.decode_keys))


def pays(prefill_s: float, decode_s: float) -> bool:
    """The rule, on the seconds of both halves alone."""
    serial = prefill_s + decode_s
    fused = max(prefill_s, decode_s) * (1 + FUSED_LOSS)
    return min(prefill_s, decode_s) > LEAST_HALF_S and fused < serial * (1 - LEAST_GAIN)


def table(points: Sequence[tuple[float, float]]) -> LaunchCost:
    """(work, seconds) points in any order."""
    works, seconds = zip(*sorted(points), strict=True)
    return LaunchCost(works, seconds)
