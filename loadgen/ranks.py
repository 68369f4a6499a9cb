"""The one percentile of the load generator: a value that was seen, by nearest rank."""

from __future__ import annotations

import math
from collections.abc import Sequence


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The smallest value of a sorted, non-empty list that at least `share` of it (0..1) do not
    exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
