"""n > 1: several answers to one prompt, one ending, one count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from shared.wire.requests import DecodeJob
from tests.builders import until
from tests.services.gateway.rig import MODEL, Rig, chat_body, ids, rig


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        made.script.choices = {number: ids(f"answer {number}") for number in range(8)}
        yield made
        await made.settled()


def by_choice(events: list[Any]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        for choice in event["choices"] if isinstance(event, dict) else ():
            found[choice["index"]].append(choice)
    return found


@pytest.mark.parametrize("route", ["colocated", "disaggregated"])
async def test_a_whole_answer_has_all_choices(gateway: Rig, route: str) -> None:
    gateway.script.route = route
    _, body, headers = await gateway.chat(n=3, seed=5)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == [f"answer {number}" for number in range(3)]
    prompt = gateway.cluster.placed[0].prompt_tokens
    assert body["usage"]["prompt_tokens"] == prompt
    assert body["usage"]["completion_tokens"] == 3 * len(ids("answer 0"))
    assert headers["x-baton-route"] == route
    seeds = [job.sampling.seed for worker in gateway.cluster.decodes for job in worker.jobs]
    assert seeds[0] == 5 and len(set(seeds)) == 3


@pytest.mark.parametrize("route", ["colocated", "disaggregated"])
async def test_others_are_placed_once_and_where_the_pages_are(gateway: Rig, route: str) -> None:
    gateway.script.route = route
    await gateway.chat(n=3)
    asked = gateway.cluster.placed
    assert [ask.attempt for ask in asked] == [1, 1, 1]
    home = gateway.cluster.decodes[0].ref
    assert [ask.near for ask in asked] == [None, home, home]
    first = asked[0].request
    assert [ask.request for ask in asked] == [first, f"{first}-1", f"{first}-2"]
    assert len({ask.signature for ask in asked}) == 1


async def test_a_first_token_that_ends_it_says_nothing_of_pages(gateway: Rig) -> None:
    gateway.script.route = "disaggregated"
    _, body, _ = await gateway.chat(n=2, max_tokens=1)
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "length"]
    assert [ask.near for ask in gateway.cluster.placed] == [None, None]


async def test_a_stream_names_the_choice_of_each_event(gateway: Rig) -> None:
    gateway.script.delay_s = 0.002
    events = await gateway.events(n=3, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"]["completion_tokens"] == 3 * len(ids("answer 0"))  # type: ignore[index]
    for index, chunks in by_choice(events).items():
        assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(chunk["delta"].get("content", "") for chunk in chunks)
        assert text == f"answer {index}"
        reasons = [chunk["finish_reason"] for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert sorted(by_choice(events)) == [0, 1, 2]
    assert len({event["id"] for event in events if isinstance(event, dict)}) == 1


async def test_each_choice_stops_by_itself(gateway: Rig) -> None:
    _, body, _ = await gateway.chat(n=3, stop=["r 1"])
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == ["answer 0", "answe", "answer 2"]
    _, body, _ = await gateway.chat(n=2, stop=["r 0"], include_stop_str_in_output=True)
    assert [c["message"]["content"] for c in body["choices"]] == ["answer 0", "answer 1"]
    _, body, _ = await gateway.chat(stop=["a", "w"], min_tokens=2)
    assert body["choices"][0]["message"]["content"] == "ans"


async def test_token_ids_and_logprobs_of_each_choice(gateway: Rig) -> None:
    body = {"model": MODEL, "prompt": "x", "n": 2, "max_tokens": 30}
    body |= {"return_token_ids": True, "logprobs": 2}
    _, answer, _ = await gateway.post("/v1/completions", body)
    assert answer["prompt_token_ids"]
    for index, choice in enumerate(answer["choices"]):
        assert choice["token_ids"] == ids(f"answer {index}")
        assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])


async def test_a_lost_worker_costs_each_choice_one_attempt(gateway: Rig) -> None:
    gateway.script.fail_at = {1: 4}
    _, body, _ = await gateway.chat(n=3)
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == [f"answer {number}" for number in range(3)]
    attempts: dict[str, list[int]] = defaultdict(list)
    for ask in gateway.cluster.placed:
        attempts[ask.request].append(ask.attempt)
    assert list(attempts.values()) == [[1, 2]] * 3
    # A second attempt goes where it is best, not where the pages were.
    assert all(ask.near is None for ask in gateway.cluster.placed if ask.attempt > 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_one_choice_that_fails_ends_all(gateway: Rig, stream: bool) -> None:
    gateway.script.choices[1] = [*b"ok", 9_999]
    gateway.script.choices[2] = [*b"x" * 60]
    gateway.script.delay_s = 0.005
    if stream:
        events = await _broken(gateway)
        assert "error" in events[-1] and events[-1]["error"]["code"] == "internal"
    else:
        status, answer, _ = await gateway.chat(n=3)
        assert (status, answer["error"]["code"]) == (500, "internal")


async def _broken(gateway: Rig) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    with pytest.raises(aiohttp.ClientPayloadError):
        async for event in gateway.stream(n=3):
            assert isinstance(event, dict)
            events.append(event)
    return events


async def test_a_client_that_leaves_ends_all_choices(gateway: Rig) -> None:
    gateway.script.pause_after = 4
    async with gateway.http.post(
        gateway.url + "/v1/chat/completions", json=chat_body(n=4, stream=True)
    ) as answer:
        await answer.content.readany()
        await until(lambda: sum(len(w.jobs) for w in gateway.cluster.decodes) == 4)
    await gateway.settled()
    cancelled = {c.request for worker in gateway.cluster.decodes for c in worker.cancelled}
    assert len(cancelled) == 4


async def test_choices_count_as_open_requests(tmp_path: Path) -> None:
    async with rig(tmp_path, queue_limit=5) as gateway:
        gateway.script.pause_after = 3
        task = gateway.cluster.tasks.create_task(gateway.chat(n=4), name="four")
        await until(lambda: sum(len(w.jobs) for w in gateway.cluster.decodes) == 4)
        status, answer, _ = await gateway.chat(n=2)
        assert (status, answer["error"]["code"]) == (503, "queue_full")
        gateway.script.resume.set()
        assert (await task)[0] == 200


async def test_one_choice_is_as_before(gateway: Rig) -> None:
    _, alone, _ = await gateway.chat(seed=9)
    _, several, _ = await gateway.chat(seed=9, n=2)
    assert several["choices"][0] == alone["choices"][0]
    jobs = [job for worker in gateway.cluster.decodes for job in worker.jobs]
    assert isinstance(jobs[0], DecodeJob) and jobs[0].sampling == jobs[1].sampling


async def test_the_openai_client_reads_choices(gateway: Rig) -> None:
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="x", max_retries=0) as ai:
        whole = await ai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], n=2
        )
        assert [choice.message.content for choice in whole.choices] == ["answer 0", "answer 1"]
