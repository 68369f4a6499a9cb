"""Two dialects for how soon a request wants its turn."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from services.gateway.priority import read_priority
from shared.errors import ClientError


@pytest.mark.parametrize(
    ("body", "priority"),
    [
        ({}, 0),
        ({"priority": None, "service_tier": None}, 0),
        ({"priority": -30}, 30),
        ({"priority": 100}, -100),
        ({"service_tier": "priority"}, 50),
        ({"service_tier": "flex"}, -50),
        ({"service_tier": "auto"}, 0),
        ({"service_tier": "priority", "priority": -50}, 50),
    ],
)
def test_higher_is_sooner(body: Mapping[str, object], priority: int) -> None:
    assert read_priority(dict(body)) == priority


@pytest.mark.parametrize(
    "body",
    [
        {"priority": 101},
        {"priority": "1"},
        {"priority": True},
        {"service_tier": "gold"},
        {"service_tier": 1},
        {"service_tier": "flex", "priority": -50},
    ],
)
def test_anything_else_is_refused(body: Mapping[str, object]) -> None:
    with pytest.raises(ClientError):
        read_priority(dict(body))
