"""Which answers miss what they should keep to, and what the root span says about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.core.events import NO_HINTS, Hints
from services.gateway.ledger import Promise
from shared.errors import StartupError
from tests.services.gateway.rig import Rig, rig


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "hints", "missed"),
    [
        (0.4, 0.04, NO_HINTS, ""),
        (0.6, 0.04, NO_HINTS, "ttft"),
        (0.6, 0.06, NO_HINTS, "ttft,tpot"),
        (None, None, NO_HINTS, "ttft"),
        (0.4, None, NO_HINTS, ""),
        (0.6, 0.06, Hints(ttft_slo_s=1.0), "tpot"),
        (0.4, 0.04, Hints(ttft_slo_s=0.1, tpot_slo_s=0.01), "ttft,tpot"),
    ],
)
def test_what_is_missed(
    ttft_s: float | None, tpot_s: float | None, hints: Hints, missed: str
) -> None:
    assert Promise(0.5, 0.05).missed(ttft_s, tpot_s, hints) == missed
    assert Promise().missed(ttft_s, tpot_s, NO_HINTS) == ""


async def root_of(gateway: Rig, **headers: str) -> dict[str, object]:
    body = {"model": "hashchain", "messages": [{"role": "user", "content": "x"}], "stream": True}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"{gateway.url}/v1/chat/completions"
    async with gateway.http.post(url, json=body, headers=named) as answer:
        assert answer.status == 200
        await answer.read()
    spans = gateway.spans.get_finished_spans()
    return dict(spans[-1].attributes or {})


async def test_the_root_tells_first_byte_pace_and_misses(tmp_path: Path) -> None:
    async with rig(tmp_path, slo_ttft_ms=0.001) as gateway:
        said = await root_of(gateway)
        assert said["baton.slo.missed"] == "ttft" and said["baton.tenant"] == "public"
        first_s, pace_s = said["gen_ai.response.time_to_first_chunk"], said["baton.tpot_s"]
        assert isinstance(first_s, float) and isinstance(pace_s, float) and first_s > 0
        said = await root_of(
            gateway,
            x_baton_ttft_slo_ms="60000",
            x_baton_affinity="my-session",
            x_baton_run="run-7",
            X_Request_Id="mine",
        )
        assert "baton.slo.missed" not in said and said["baton.run"] == "run-7"
        assert said["baton.hint.ttft_slo_s"] == "applied"
        assert said["baton.hint.affinity_key"] == "ignored:overridden"
        conversation = str(said["gen_ai.conversation.id"])
        assert len(conversation) == 16 and "my-session" not in str(said)
        assert said["baton.client_request_id"] == "mine"
        async with gateway.http.get(f"{gateway.admin_url}/metrics") as answer:
            told = await answer.text()
        labels = 'dialect="header",fate="ignored:overridden",hint="affinity_key"'
        assert f"baton_hints_total{{{labels}}} 1.0" in told


@pytest.mark.parametrize(
    "wrong", [{"trace_share": 1.5}, {"slo_ttft_ms": -1.0}, {"store_hours": -1.0}]
)
def test_settings_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(StartupError):
        GatewayConfig(**wrong)  # type: ignore[arg-type]
