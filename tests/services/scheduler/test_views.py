"""Settings reach the core, and people can see what it thinks."""

from __future__ import annotations

import orjson
import pytest

from services.scheduler import views
from services.scheduler.config import SchedulerConfig
from shared.errors import StartupError
from tests.services.scheduler.builders import placed
from tests.services.scheduler.placement.scenes import add, cluster, whole


def test_settings_name_the_rules() -> None:
    config = SchedulerConfig(
        policy="preble_e2", split="baton_cost", decode_placement="least_pages", ttft_slo_s=2.0
    )
    placement = config.placement()
    assert (placement.policy, placement.split, placement.decode) == (
        "preble_e2",
        "baton_cost",
        "least_pages",
    )
    assert placement.weights.ttft_slo_s == 2.0
    for wrong in ({"decode_placement": "x"}, {"tpot_slo_s": 0.0}, {"index_bytes": 5}):
        with pytest.raises(StartupError):
            SchedulerConfig(**wrong)  # type: ignore[arg-type]


def test_models_placements_and_the_index_are_shown_as_json() -> None:
    machine = cluster("baton", {"prefill-0": (50, 0.0), "prefill-1": (0, 0.0)})
    add(machine, "kvpool-0", holds=70)
    placed(machine, whole(), 0.5)
    models = orjson.loads(orjson.dumps(views.view(machine, "models")))
    assert {worker["worker"] for worker in models["workers"]} == {
        *("prefill-0", "prefill-1", "decode-0")
    }
    assert models["links"]["bytes_per_s"] > 0
    (shown,) = orjson.loads(orjson.dumps(views.view(machine, "placements")))["placements"]
    assert shown["request"] == "r1" and len(shown["candidates"]) == 2
    index = orjson.loads(orjson.dumps(views.view(machine, "index")))
    assert index["blocks"] == 70 and index["bytes"] > 0
    assert views.view(machine, "secrets") is None
