"""Whole answers and event streams over a real listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.builders import until
from tests.services.gateway.rig import MODEL, Rig, chat_body, ids, rig, text_of


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def client(gateway: Rig) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)


async def test_a_whole_chat(gateway: Rig) -> None:
    status, body, headers = await gateway.chat()
    assert status == 200
    assert body["object"] == "chat.completion" and body["model"] == MODEL
    choice = body["choices"][0]
    assert choice["message"]["content"] == "Hello" and choice["finish_reason"] == "stop"
    prompt = gateway.cluster.placed[0].prompt_tokens
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 6,
        "total_tokens": prompt + 6,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert headers["x-baton-route"] == "colocated"
    assert headers["x-baton-cache"] == f"hit=3;of={prompt}"
    assert headers["x-baton-ttft-estimate-ms"] == "12"
    assert body["id"] == "chatcmpl-" + headers["x-baton-request-id"]
    assert len(headers["x-baton-trace-id"]) == 32
    await gateway.settled()


async def test_the_order_of_a_stream(gateway: Rig) -> None:
    events = await gateway.events(stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    chunks = [event for event in events if isinstance(event, dict)]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 6
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert reasons[:-1] == [None] * (len(reasons) - 1) and reasons[-1] == "stop"
    assert chunks[-2]["choices"][0]["delta"] == {}
    deltas = [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-2]]
    assert "".join(deltas) == "Hello" and all(deltas)


async def test_a_stream_without_usage_says_nothing_of_it(gateway: Rig) -> None:
    events = await gateway.events()
    assert all("usage" not in event for event in events if isinstance(event, dict))


async def test_prefill_sends_the_first_token_and_decode_the_rest(gateway: Rig) -> None:
    gateway.script.route = "disaggregated"
    status, body, headers = await gateway.chat()
    assert (status, body["choices"][0]["message"]["content"]) == (200, "Hello")
    assert headers["x-baton-route"] == "disaggregated"
    assert len(gateway.cluster.prefill.jobs) == 1
    await gateway.settled()


async def test_the_stop_token_is_counted_and_has_no_text(gateway: Rig) -> None:
    gateway.script.tokens = [257]
    events = await gateway.events(stream_options={"include_usage": True})
    chunks = [event for event in events if isinstance(event, dict)]
    assert text_of(events) == "" and chunks[-1]["usage"]["completion_tokens"] == 1
    assert [bool(chunk["choices"]) for chunk in chunks] == [True, True, False]


async def test_max_tokens_is_a_length_finish(gateway: Rig) -> None:
    _status, body, _ = await gateway.chat(max_tokens=3)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["content"] == "Hel"
    assert gateway.cluster.placed[0].max_tokens == 3
    _, body, _ = await gateway.chat(max_tokens=3, max_completion_tokens=2)
    assert body["usage"]["completion_tokens"] == 2


async def test_defaults_reach_the_workers(gateway: Rig) -> None:
    body = chat_body()
    del body["max_tokens"]
    await gateway.post("/v1/chat/completions", body)
    await gateway.chat(temperature=0, top_p=0.5, seed=-5, ignore_eos=True)
    first, second = [job.sampling for job in gateway.cluster.decodes[0].jobs]
    prompt = gateway.cluster.placed[0].prompt_tokens
    assert (first.temperature, first.top_p, first.max_tokens) == (1.0, 1.0, 8192 - prompt)
    assert 257 in first.stop_token_ids and first.seed >= 0
    assert (second.temperature, second.top_p, second.seed) == (0.0, 0.5, -5)
    assert second.ignore_eos and second.stop_token_ids == ()


async def test_completions_whole_and_streamed(gateway: Rig) -> None:
    ask = {"model": MODEL, "prompt": "Once"}
    status, body, _ = await gateway.post("/v1/completions", ask)
    assert status == 200 and body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "Hello"
    job = gateway.cluster.decodes[0].jobs[0]
    assert job.tokens == tuple(b"Once") and job.sampling.max_tokens == 16
    async with client(gateway) as api:
        stream = await api.completions.create(model=MODEL, prompt=[72, 105], stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello"


@pytest.mark.parametrize("stop", [["lo"], "lo", ["zzz", "lo", "o"]])
@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
async def test_stop_strings_over_chunk_borders(gateway: Rig, stop: Any, chunk: int) -> None:
    gateway.script.chunk = chunk
    events = await gateway.events(stop=stop)
    assert text_of(events) == "Hel"
    _status, body, _ = await gateway.chat(stop=stop)
    assert body["choices"][0]["message"]["content"] == "Hel"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 5
    await gateway.settled()


async def test_a_stop_string_cancels_the_work(gateway: Rig) -> None:
    gateway.script.tokens = ids("x;" + "y" * 5000)
    gateway.script.pause_after = 10
    await gateway.chat(stop=";", max_tokens=6000)
    await until(lambda: len(gateway.cluster.decodes[0].cancelled) == 1)
    assert gateway.cluster.decodes[0].cancelled[0].cause == "stop"
    await until(lambda: [end.outcome for end in gateway.cluster.ended] == ["finished"])


@pytest.mark.parametrize(
    "text", ["안녕하세요", "👩\u200d👩\u200d👧\u200d👦", "e\u0301x", "a\u2028b\u0085c\u2029d"]
)
async def test_characters_are_never_split(gateway: Rig, text: str) -> None:
    gateway.script.tokens = ids(text)
    events = await gateway.events()
    assert text_of(events) == text
    assert "\ufffd" not in str(events)
    _, body, _ = await gateway.chat()
    assert body["choices"][0]["message"]["content"] == text


async def test_bytes_that_are_no_text_are_replaced(gateway: Rig) -> None:
    gateway.script.tokens = [*range(0x80, 0x90), 257]
    assert set(text_of(await gateway.events())) == {"\ufffd"}


async def test_the_openai_client_agrees(gateway: Rig) -> None:
    api = client(gateway)
    answer = await api.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_completion_tokens=20
    )
    assert answer.choices[0].message.content == "Hello"
    assert answer.usage and answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    stream = await api.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello"
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == 6
    models = await api.models.list()
    assert [model.id for model in models.data] == [MODEL]
    assert (await api.models.retrieve(MODEL)).owned_by == "baton"
    with pytest.raises(openai.NotFoundError) as missing:
        await api.models.retrieve("other")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await api.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=7
        )
    assert (bad.value.code, bad.value.param) == ("invalid_parameter", "temperature")
    await api.close()


async def test_the_status_line_waits_for_the_first_token(gateway: Rig) -> None:
    gateway.script.pause_after = 0
    gateway.script.fail_at = {1: 0, 2: 0, 3: 0}
    status, body, _ = await gateway.chat(stream=True)
    assert status == 500 and body["error"]["code"] == "attempts_exhausted"


async def test_many_streams_at_once(gateway: Rig) -> None:
    async with asyncio.TaskGroup() as tasks:
        found = [tasks.create_task(gateway.events(), name=f"s{n}") for n in range(40)]
    assert {text_of(task.result()) for task in found} == {"Hello"}
    await gateway.settled()


async def test_models_tokenize_and_status(gateway: Rig) -> None:
    status, body, _ = await gateway.post("/tokenize", {"model": MODEL, "prompt": "abc"})
    assert (status, body["tokens"], body["count"]) == (200, [97, 98, 99], 3)
    _, chat, _ = await gateway.post("/tokenize", {"messages": chat_body()["messages"]})
    await gateway.chat()
    assert chat["count"] == gateway.cluster.placed[0].prompt_tokens
    for path in ("/health", "/livez", "/ready", "/readyz", "/version", "/metrics", "/v1/models"):
        async with gateway.http.get(gateway.url + path) as answer:
            assert answer.status == 200, path
            text = await answer.text()
    async with gateway.http.get(gateway.admin_url + "/metrics") as answer:
        text = await answer.text()
    assert 'baton_requests_total{outcome="finished",route="colocated"} 1.0' in text
    assert 'baton_ttft_seconds_count{route="colocated"} 1.0' in text


async def test_a_client_trace_goes_on_through_the_cluster(gateway: Rig) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    parent = f"00-{trace}-b7ad6b7169203331-01"
    _status, _, headers = await gateway.post(
        "/v1/chat/completions", chat_body(), traceparent=parent, X_Request_Id="mine-1"
    )
    assert headers["x-baton-trace-id"] == trace and headers["x-request-id"] == "mine-1"
    assert gateway.cluster.place_headers[0].traceparent.split("-")[1] == trace
    assert gateway.cluster.decodes[0].headers[0].traceparent.split("-")[1] == trace


async def test_a_hostile_request_id_is_not_echoed(gateway: Rig) -> None:
    _, _, headers = await gateway.post("/v1/chat/completions", chat_body(), X_Request_Id="a b" * 99)
    assert headers["x-request-id"] == headers["x-baton-request-id"]


async def test_ignored_parameters_are_named(gateway: Rig) -> None:
    _, _, headers = await gateway.chat(store=True, verbosity="low", user="u", **{"bad\nname": 1})
    assert headers["x-baton-ignored-params"] == "store, verbosity, user"


async def test_a_route_can_be_asked_for(gateway: Rig) -> None:
    _, _, headers = await gateway.post(
        "/v1/chat/completions", chat_body(), x_baton_route="disaggregated"
    )
    assert headers["x-baton-route"] == "disaggregated"


async def test_admin_is_for_this_host_only(gateway: Rig) -> None:
    for headers in ({"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        async with gateway.http.get(gateway.admin_url + "/metrics", headers=headers) as answer:
            assert answer.status == 404
    async with gateway.http.get(gateway.url + "/admin/traces") as answer:
        assert answer.status == 404


async def test_a_connection_is_kept_for_the_next_request(gateway: Rig) -> None:
    async with aiohttp.ClientSession() as http:
        for _ in range(3):
            async with http.post(gateway.url + "/v1/chat/completions", json=chat_body()) as answer:
                assert answer.status == 200
