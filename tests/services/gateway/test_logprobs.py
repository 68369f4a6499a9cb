"""Log-probabilities in whole answers and streams, of both endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from services.gateway.logprobs import LogprobForm, Spellings, Told
from shared.wire.sampling import TokenLogprobs
from tests.services.gateway.rig import END, MODEL, Rig, ids, rig

FAMILY = "\U0001f469\u200d\U0001f467"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def expected(token: int, top: int) -> dict[str, Any]:
    def one(token: int, value: float) -> dict[str, Any]:
        control = token >= 256
        text = "<|end|>" if token == END else chr(token)
        return {"token": text, "logprob": value, "bytes": None if control else [token]}

    value = round(-token / 64, 6)
    alternatives = [one(token + at, round(-token / 64 - at, 6)) for at in range(top)]
    return {**one(token, value), "top_logprobs": alternatives}


async def test_a_whole_chat_tells_every_token(gateway: Rig) -> None:
    gateway.script.chunk = 4
    _, body, _ = await gateway.chat(logprobs=True, top_logprobs=2)
    told = body["choices"][0]["logprobs"]
    assert told["refusal"] is None
    assert told["content"][:5] == [expected(token, 2) for token in b"Hello"]
    assert len(told["content"]) == body["usage"]["completion_tokens"] == 6
    assert told["content"][5]["bytes"] is None
    _, plain, _ = await gateway.chat()
    assert plain["choices"][0]["logprobs"] is None
    _, own, _ = await gateway.chat(logprobs=True)
    assert own["choices"][0]["logprobs"]["content"][0] == expected(ord("H"), 0)


async def test_a_stream_tells_the_same_with_its_text(gateway: Rig) -> None:
    gateway.script.tokens = ids(f"a{FAMILY}b")
    _, body, _ = await gateway.chat(logprobs=True, top_logprobs=1)
    whole = body["choices"][0]["logprobs"]["content"]
    found: list[Any] = []
    for event in await gateway.events(logprobs=True, top_logprobs=1):
        if isinstance(event, dict):
            choice = event["choices"][0]
            told = choice["logprobs"]
            text = choice["delta"].get("content")
            assert told is not None or not text
            found += [] if told is None else told["content"]
            if text:
                spelt = bytes(byte for one in told["content"] for byte in one["bytes"])
                assert spelt.decode() == text
    assert found == whole
    assert len(whole) == len(ids(f"a{FAMILY}b"))


async def test_completions_have_four_lists(gateway: Rig) -> None:
    gateway.script.tokens = [0xC3, 0xA9, ord("z"), END]
    body = {"model": MODEL, "prompt": "x", "max_tokens": 9, "logprobs": 1}
    _, answer, _ = await gateway.post("/v1/completions", body)
    told = answer["choices"][0]["logprobs"]
    assert told["tokens"][:3] == ["bytes:\\xc3", "bytes:\\xa9", "z"]
    assert told["text_offset"] == [0, 0, 1, 2]
    assert told["token_logprobs"][2] == round(-ord("z") / 64, 6)
    assert told["top_logprobs"][2] == {"z": round(-ord("z") / 64, 6)}
    _, answer, _ = await gateway.post("/v1/completions", {**body, "logprobs": 0})
    assert answer["choices"][0]["logprobs"]["top_logprobs"][2] == {"z": round(-ord("z") / 64, 6)}
    _, answer, _ = await gateway.post("/v1/completions", {**body, "logprobs": None})
    assert answer["choices"][0]["logprobs"] is None


async def test_they_survive_a_lost_worker_and_lost_messages(gateway: Rig) -> None:
    _, calm, _ = await gateway.chat(logprobs=True, top_logprobs=3)
    gateway.script.fail_at = {1: 3}
    gateway.script.lose = {1, 4}
    _, body, _ = await gateway.chat(logprobs=True, top_logprobs=3)
    assert body["choices"] == calm["choices"]
    await gateway.settled()


async def test_the_openai_client_reads_them(gateway: Rig) -> None:
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="x", max_retries=0) as ai:
        whole = await ai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            logprobs=True,
            top_logprobs=2,
        )
        told = whole.choices[0].logprobs
        assert told is not None and told.content is not None
        assert [one.token for one in told.content][:5] == list("Hello")
        assert len(told.content[0].top_logprobs) == 2


def test_the_lowest_values_are_json() -> None:
    """What cannot be drawn is told as the floor: minus infinity would be no JSON (BR-101)."""
    form = LogprobForm(Spellings((b"a", b"\xff", b""), {"<|end|>": 2}))
    told = [Told(2, 0, TokenLogprobs(-9999.0, (0, 1, 7), (-0.1, -9999.0, -9999.0)))]
    for answer in (form.chat(told), form.completion(told)):
        assert orjson.loads(orjson.dumps(answer)) == answer
    top = form.completion(told)["top_logprobs"]
    assert top == [{"a": -0.1, "bytes:\\xff": -9999.0, "": -9999.0, "<|end|>": -9999.0}]
