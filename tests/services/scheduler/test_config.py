"""What the scheduler refuses to start with."""

from __future__ import annotations

import pytest

from services.scheduler.config import SchedulerConfig
from shared.errors import StartupError


def test_constants_of_the_score_can_be_changed_by_name() -> None:
    config = SchedulerConfig(worker_id="s", weights="link_price=0.2, copy_ratio=2", ttft_slo_s=3.0)
    weights = config.placement().weights
    assert (weights.link_price, weights.copy_ratio, weights.ttft_slo_s) == (0.2, 2.0, 3.0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("tie_s=nan", "tie_s must be a finite number"),
        ("busy_most=1", "busy_most must be below 1"),
        ("copy_ratio=-1", "copy_ratio must be a finite number"),
        ("tie_s=often", "'tie_s=often' is not name=value"),
        ("kindness=1", "there are only ttft_slo_s"),
    ],
)
def test_what_is_no_weight_is_refused_by_name(weights: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        SchedulerConfig(worker_id="s", weights=weights)
