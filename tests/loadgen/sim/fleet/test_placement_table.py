"""The table of policies: every policy serves everything; reuse and balance show in the figures."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.placement_scenes import COLD, scenes, under_heat
from loadgen.sim_placement import Drawn, against, measure
from services.scheduler.core.placement.registry import POLICIES

_SCENES = {scene.name: scene for scene in scenes(1.0)}
_HOT = _SCENES["one hot prefix"]
_SMALL = replace(_HOT, wish=replace(_HOT.wish, count=40))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_every_request(policy: str) -> None:
    found = measure(_SMALL, policy, Path()).figures
    assert found.failed == 0
    assert found.requests == 36
    assert 0.0 < found.hit < 1.0


def test_one_hot_prefix_is_spread_and_still_reused() -> None:
    ours = measure(_SMALL, "baton", Path()).figures
    sticky = measure(_SMALL, "session_hash", Path()).figures
    assert ours.max_over_mean < sticky.max_over_mean
    assert ours.ttft_mean_s < sticky.ttft_mean_s


def test_names_of_scenes_are_unique() -> None:
    assert len(_SCENES) == len(list(scenes(1.0)))


def test_cold_requests_start_within_their_bound() -> None:
    scene = _SCENES["cold under 95 % hot"]
    small = replace(scene, wish=replace(scene.wish, count=200))
    apart = [request.tenant for request in under_heat(small.wish)].count(COLD)
    found = measure(small, "baton", Path())
    assert found.cold is not None and found.cold.requests == apart > 0
    assert found.cold.beyond == 0
    assert found.cold.wait_p99_s < found.cold.bound_s
    assert measure(_SMALL, "baton", Path()).cold is None


def test_ours_is_compared_with_rivals_that_were_drawn_as_often() -> None:
    drawn = measure(_SMALL, "baton", Path())

    def cell(*ttfts_s: float) -> tuple[Drawn, ...]:
        return tuple(
            replace(drawn, figures=replace(drawn.figures, ttft_mean_s=ttft_s)) for ttft_s in ttfts_s
        )

    row = {"baton": cell(1.0, 2.0), "local_ttft": cell(1.0, 4.0), "lucky": cell(0.1)}
    found = against("here", row)
    assert found["best_ttft"] == "local_ttft" and found["draws"] == 2
    assert found["baton_vs_best_ttft"] == found["baton_vs_cost_minimum_ttft"] == 0.6
    assert found["error"] == round(statistics.stdev([1.0, 0.5]) / 2**0.5, 3)
    assert found["baton_vs_best_goodput"] == 1.0


def test_links_carry_what_the_recorded_rows_hand_over() -> None:
    for name, scene in _SCENES.items():
        if name.startswith("mooncake"):
            tokens = 12_035 if "conversation" in name else 15_325
            handed = scene.wish.rate_per_s * tokens * scene.design("baton").prefill.kv_token_bytes
            assert handed <= 0.7001 * min(scene.workers, scene.decodes) * scene.link_gb * 1e9
