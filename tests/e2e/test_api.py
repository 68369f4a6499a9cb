"""The API as its users meet it, on real processes: what only a real cluster can show."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.e2e.clients import Door, longest_answer_s, metric_sum
from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.e2e.streams import Answer

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

DRAIN_S = 5.0
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TestCluster]:
    """One for all tests of this file; each leaves it as it was."""
    wish = Wish(settings={"gateway": {"drain_s": DRAIN_S}})
    async with running_cluster(tmp_path_factory.mktemp("api"), wish) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def door(cluster: TestCluster) -> AsyncIterator[Door]:
    """The public port by hand; afterwards nobody holds anything."""
    yield Door(cluster.url)
    await cluster.until_nothing_is_held()


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "hashchain", "messages": USER, "max_tokens": 8} | more


def prompt(length: int, seed: int) -> list[int]:
    chance = random.Random(f"{seed}:{length}")
    return [chance.randrange(32, 127) for _ in range(length)]


# -- bad input -----------------------------------------------------------------------------

BAD: list[tuple[str, bytes | dict[str, Any], int, str, str | None]] = [
    (CHAT, b"{", 400, "invalid_json", None),
    (CHAT, b'{"model": "a", "model": "hashchain"}', 400, "invalid_json", None),
    (CHAT, b'{"temperature": NaN}', 400, "invalid_json", None),
    (CHAT, b'{"model": "\\ud800"}', 400, "invalid_json", None),
    (CHAT, b'{"a": ' + b"[" * 5_000, 400, "invalid_json", None),
    (CHAT, chat(model="other"), 404, "model_not_found", "model"),
    (CHAT, chat(messages=[]), 400, "invalid_parameter", "messages"),
    (CHAT, chat(messages=[{"role": "wizard", "content": "x"}]), 400, "invalid_parameter", None),
    (CHAT, chat(max_tokens=-1), 400, "invalid_parameter", "max_tokens"),
    (CHAT, chat(temperature="hot"), 400, "invalid_parameter", "temperature"),
    (CHAT, chat(seed=2**64), 400, "invalid_parameter", "seed"),
    (CHAT, chat(stream="yes"), 400, "invalid_parameter", "stream"),
    (CHAT, chat(n=9), 400, "invalid_parameter", "n"),
    (CHAT, chat(kv_transfer_params={}), 400, "forbidden_parameter", "kv_transfer_params"),
    (CHAT, chat(max_tokens=8_192), 400, "context_length_exceeded", "max_tokens"),
    (CHAT, chat(messages=[{"role": "user", "content": "x " * 2_000_000}]), 400, "", "messages"),
    (CHAT, chat(messages=[{"role": "user", "content": "x" * 9_000_000}]), 413, "", None),
    (COMPLETIONS, {"model": "hashchain", "prompt": ""}, 400, "invalid_parameter", "prompt"),
    (COMPLETIONS, {"model": "hashchain", "prompt": [-1]}, 400, "invalid_parameter", "prompt"),
    (COMPLETIONS, {"model": "hashchain", "prompt": [1] * 8_192}, 400, "", "prompt"),
    ("/v1/embeddings", chat(), 404, "not_offered", None),
]


async def places_asked(cluster: TestCluster) -> float:
    """Placement requests that have left the gateway."""
    text = await cluster.metrics("gateway-0")
    return metric_sum(text, "baton_bus_messages_total", subject="scheduler.place", direction="out")


async def test_bad_input_is_refused_fast_and_costs_nothing(
    cluster: TestCluster, door: Door
) -> None:
    before = await places_asked(cluster)
    for path, body, status, code, param in BAD:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = await door.post(path, payload)
        error = reply.error
        assert (reply.status, error["code"]) == (status, code or error["code"]), payload[:80]
        assert error["param"] == param or param is None, payload[:80]
        assert reply.seconds < 1.0, (reply.seconds, payload[:80])
        assert error["message"] and error["type"] and error["request_id"]
    assert await places_asked(cluster) == before


CHUNKED = b"Host: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
TRICKS: list[tuple[bytes, set[int]]] = [
    (CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", {400}),
    (CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n", {400}),
    (CHUNKED + b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n", {400}),
    (CHUNKED + b"2\r\n{}X0\r\n\r\n", {400}),
    (CHUNKED + b"2;a=\nb\r\n{}\r\n0\r\n\r\n", {400}),
    (CHUNKED + b"2\n{}\n0\n\n", {400}),
    (b"Host: x\r\nContent-Length: 2\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b", {415}),
    (b"Host: x\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\n{}", {415}),
    (b"Host: x\r\nContent-Length: +2\r\nContent-Type: application/json\r\n\r\n{}", {400}),
    (b"Host: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", {400}),
]


@pytest.mark.parametrize("number", range(len(TRICKS)))
async def test_tricks_with_bodies(door: Door, number: int) -> None:
    rest, statuses = TRICKS[number]
    answer = await door.talk(b"POST /v1/chat/completions HTTP/1.1\r\n" + rest)
    assert answer.status in statuses, answer
    assert answer.error["code"]


async def test_half_sent_requests_end_at_their_deadline(cluster: TestCluster, door: Door) -> None:
    """Heads, bodies, and heads that come byte by byte; meanwhile others are served at once."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    body = b'Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"model"'
    async with asyncio.timeout(30):
        held = [asyncio.create_task(door.hold(head), name="head") for _ in range(100)]
        held += [asyncio.create_task(door.hold(head + body), name="body") for _ in range(100)]
        held += [asyncio.create_task(door.dribble(head), name="dribble") for _ in range(10)]
        await door.connected(210)
        served = await door.post(CHAT, json.dumps(chat()).encode())
        assert served.status == 200 and served.seconds < 1.0
        ended = await asyncio.gather(*held)
    assert all(end.status == 408 for end in ended if end.bytes), ended
    assert all(9.0 < end.seconds < 20.0 for end in ended), sorted(end.seconds for end in ended)


async def test_probes_stay_fast_while_large_bodies_are_read(
    cluster: TestCluster, door: Door
) -> None:
    """The best of a few tries: other processes can take the processor from us at any time."""
    emoji = json.dumps(chat(messages=[{"role": "user", "content": "\U0001f600" * 600_000}]))
    plain = json.dumps(chat(messages=[{"role": "user", "content": "a b c " * 1_390_000}]))
    probe = f"{cluster.local.members['gateway-0'].probe_url}/livez"
    for payload in (emoji.encode(), plain.encode()):
        worst = []
        for _ in range(4):
            async with longest_answer_s(probe, f"{cluster.url}/health") as longest:
                refused = await door.post(CHAT, payload)
            assert refused.status == 400
            worst.append(longest())
        assert min(worst) < 0.1, worst


# -- clients that misbehave ----------------------------------------------------------------


async def test_three_hundred_clients_cut_at_once_twice(cluster: TestCluster, door: Door) -> None:
    async def cut(number: int, round_: int) -> None:
        body: dict[str, Any] = {"model": "hashchain", "max_tokens": 3_000}
        body |= {"prompt": prompt(400, 1_000 * round_ + number), "stream": number % 2 == 0}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(1.0 + 0.005 * number):
                    async with http.post(f"{cluster.url}{COMPLETIONS}", json=body) as answer:
                        await answer.read()

    for round_ in range(2):
        await asyncio.gather(*(cut(number, round_) for number in range(300)))
        await cluster.until_nothing_is_held(30)
    assert (await cluster.complete(prompt(50, 1))).complete


async def test_a_client_that_stops_reading_holds_up_nobody(
    cluster: TestCluster, door: Door
) -> None:
    body = {"model": "hashchain", "prompt": prompt(20, 2), "max_tokens": 8_000}
    body |= {"stream": True, "ignore_eos": True}
    async with door.deaf(COMPLETIONS, json.dumps(body).encode()):
        answers = [await cluster.complete(prompt(30, n), max_tokens=20) for n in range(3)]
    assert all(answer.complete for answer in answers)


# -- the answer ----------------------------------------------------------------------------


async def test_equal_seeds_give_equal_tokens_on_all_routes_and_among_batch_mates(
    cluster: TestCluster, door: Door
) -> None:
    async def ask(route: str, seed: int) -> str:
        headers = {"x-baton-route": route}
        answer = await cluster.complete(
            prompt(70, 3), seed=seed, temperature=1.1, top_p=0.95, ignore_eos=True, headers=headers
        )
        assert answer.complete and answer.headers["x-baton-route"] == route
        return answer.text

    alone = [await ask(route, 7) for route in ("colocated", "disaggregated")]
    assert alone[0] == alone[1]
    routes = [("disaggregated", "colocated")[n % 2] for n in range(12)]
    crowd = await asyncio.gather(*(ask(route, 7 + n // 6) for n, route in enumerate(routes)))
    assert crowd[:6] == [alone[0]] * 6
    assert set(crowd[6:]) == {crowd[6]} != {alone[0]}


@pytest.mark.parametrize("route", ["colocated", "disaggregated"])
async def test_br_051_stop_and_length_hold_for_the_first_token(
    cluster: TestCluster, door: Door, route: str
) -> None:
    wanted: dict[str, Any] = {"headers": {"x-baton-route": route}}
    full = await cluster.complete(prompt(40, 4), max_tokens=5, **wanted)
    for count in (1, 2, 3):
        cut = await cluster.complete(prompt(40, 4), max_tokens=count, **wanted)
        assert cut.usage is not None and cut.usage["completion_tokens"] == count
        assert (cut.text, cut.finish_reason) == (full.text[:count], "length")
    stopped = await cluster.complete(prompt(40, 4), stop=full.text[0], **wanted)
    assert (stopped.text, stopped.finish_reason) == ("", "stop")
    assert stopped.usage is not None and stopped.usage["completion_tokens"] == 1


@pytest.mark.parametrize("route", ["colocated", "disaggregated"])
async def test_br_055_handed_over_pages_are_no_cache_hits(
    cluster: TestCluster, door: Door, route: str
) -> None:
    wanted: dict[str, Any] = {"headers": {"x-baton-route": route}, "max_tokens": 4}
    tokens = prompt(100, 5 if route == "colocated" else 6)
    first, second = [await cluster.complete(tokens, **wanted) for _ in range(2)]
    longer = await cluster.complete(tokens + prompt(40, 7), **wanted)
    assert [first.cached_tokens, second.cached_tokens, longer.cached_tokens] == [0, 96, 96]


# -- figures -------------------------------------------------------------------------------


def idle_pages(metrics: str) -> float:
    """Pages that nobody holds, as last shown (gauges follow the state a moment later)."""
    return sum(metric_sum(metrics, "baton_pages", state=state) for state in ("free", "cached"))


async def test_counters_tell_what_happened(cluster: TestCluster, door: Door) -> None:
    """BR-130 to BR-132: exact differences, and gauges of zero at rest."""
    before = await cluster.metrics("gateway-0")
    for _ in range(2):
        assert (await cluster.complete(prompt(33, 8), max_tokens=6)).complete
    assert (await door.post(CHAT, b"{")).status == 400
    await cluster.until_nothing_is_held()
    after = await cluster.metrics("gateway-0")

    def grown(name: str, **labels: str) -> float:
        return metric_sum(after, name, **labels) - metric_sum(before, name, **labels)

    assert grown("baton_requests_total", outcome="finished") == 2
    assert grown("baton_generated_tokens_total") == 12
    assert grown("baton_prompt_tokens_total", source="computed") == 33 + 1
    assert grown("baton_prompt_tokens_total", source="device") == 32
    assert grown("baton_refusals_total", status="400", reason="invalid_json") == 1
    assert grown("baton_ttft_seconds_count") == grown("baton_e2e_seconds_count") == 2
    assert metric_sum(after, "baton_requests_running") == 0
    assert metric_sum(after, "baton_streams_open") == 0
    for worker in ("prefill-0", "decode-0"):
        async with asyncio.timeout(5):
            while idle_pages(await cluster.metrics(worker)) < 1024:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)


# -- standing ------------------------------------------------------------------------------


async def readiness(cluster: TestCluster) -> tuple[int, str]:
    async with cluster.http.get(f"{cluster.url}/ready") as answer:
        return answer.status, answer.headers.get("x-baton-reason", "")


async def until_readiness(cluster: TestCluster, *expected: tuple[int, str]) -> None:
    async with asyncio.timeout(20):
        while await readiness(cluster) not in expected:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("victim", "reason"), [("decode-0", "no_worker"), ("scheduler-0", "control_plane_down")]
)
async def test_ready_means_that_a_request_can_be_placed(
    cluster: TestCluster, door: Door, victim: str, reason: str
) -> None:
    assert await readiness(cluster) == (200, "")
    await cluster.kill(victim)
    await until_readiness(cluster, (503, reason))
    async with cluster.http.get(f"{cluster.url}/health") as answer:
        assert answer.status == 200
    await cluster.restart(victim)
    await until_readiness(cluster, (200, ""))
    assert (await cluster.complete(prompt(20, 9))).complete


async def open_sessions(cluster: TestCluster) -> int:
    return int(str((await cluster.accounting())["gateway-0"]["sessions"]))


async def test_f08_a_drained_gateway_finishes_what_it_can_and_says_what_it_cannot(
    cluster: TestCluster, door: Door
) -> None:
    def ask(number: int, count: int) -> asyncio.Task[Answer]:
        work = cluster.complete(prompt(20, number), max_tokens=count, ignore_eos=True)
        return asyncio.create_task(work, name=f"stream-{number}")

    async def begun(count: int, *tasks: asyncio.Task[Answer]) -> None:
        seen = 0
        async with asyncio.timeout(30):
            while seen < count:
                ended = sum(task.done() for task in tasks)
                seen = ended + await open_sessions(cluster)

    gateway = cluster.local.members["gateway-0"].child
    long = [ask(number, 8_000) for number in range(12)]
    await begun(12)
    short = [ask(number, 60) for number in range(12, 15)]
    await begun(15, *short)
    began_s = time.monotonic()
    gateway.signal(signal.SIGTERM)
    await until_readiness(cluster, (503, "draining"))
    assert (await door.post(CHAT, json.dumps(chat()).encode())).error["code"] == "draining"
    assert all(answer.complete for answer in await asyncio.gather(*short))
    for answer in await asyncio.gather(*long):
        # Who still waited for pages has no stream yet and gets the same as a whole answer.
        assert answer.broken or answer.status == 503, answer
        assert answer.error and answer.error["code"] == "draining", answer
        assert not answer.done and answer.finish_reason is None
    assert await gateway.wait() == 0
    assert time.monotonic() - began_s < DRAIN_S + 10
    await cluster.restart("gateway-0")
    assert (await cluster.complete(prompt(20, 9))).complete
