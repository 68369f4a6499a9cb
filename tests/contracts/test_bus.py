"""The bus contract, held by the memory adapter and by NATS against a real server."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.errors import (
    BusError,
    BusTimeout,
    BusUnavailable,
    Code,
    NoResponder,
    PayloadTooLarge,
    RefusedError,
)
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import (
    Acknowledged,
    CancelRequest,
    Ended,
    LeaseKey,
    LeasesRenewed,
    Refused,
    ResendTokens,
    TokenChunk,
    TokenEntry,
)
from tests.contracts.wires import (
    CANCEL,
    ENDED,
    JOB,
    JOBS,
    PLAIN,
    Recorder,
    Wire,
    until,
)


async def test_a_published_message_arrives_with_subject_type_and_headers(wire: Wire) -> None:
    gateway, decode, told = await wire.join("gateway"), await wire.join("decode"), Recorder()
    await decode.bus.subscribe(JOB, told)
    sent = Headers(traceparent=f"00-{'a' * 32}-{'b' * 16}-01", deadline_s=1.5, epoch=7)
    await gateway.bus.publish(JOB, CANCEL, sent)
    await told.wait(1)
    assert told.got == [Delivery(JOB, CANCEL, sent)]


async def test_messages_of_one_publisher_and_subject_keep_their_order(wire: Wire) -> None:
    gateway, decode, told = await wire.join("gateway"), await wire.join("decode"), Recorder()
    await decode.bus.subscribe(JOB, told, concurrency=1)
    asked = [ResendTokens(RequestId("r1"), Attempt(1), index) for index in range(200)]
    for message in asked:
        await gateway.bus.publish(JOB, message, PLAIN)
    await told.wait(200)
    assert [delivery.message for delivery in told.got] == asked


async def test_a_request_gets_its_reply_and_carries_the_time_left(wire: Wire) -> None:
    gateway, decode, told = await wire.join("gateway"), await wire.join("decode"), Recorder(ENDED)
    await decode.bus.subscribe(JOB, told)
    assert await gateway.bus.request(JOB, CANCEL, PLAIN, 2.0) == ENDED
    assert told.got[0].headers.deadline_s == 2.0


async def test_many_requests_at_once_each_get_their_own_reply(wire: Wire) -> None:
    gateway, decode = await wire.join("gateway"), await wire.join("decode")

    async def echo(delivery: Delivery) -> Message:
        assert isinstance(delivery.message, CancelRequest)
        await asyncio.sleep(0.001 * (hash(delivery.message.request) % 5))
        return Ended(delivery.message.request, delivery.message.attempt)

    await decode.bus.subscribe(JOB, echo)
    names = [RequestId(f"r{number}") for number in range(300)]
    replies = await asyncio.gather(
        *(gateway.bus.request(JOB, CancelRequest(n, Attempt(1), ""), PLAIN, 5.0) for n in names)
    )
    assert replies == [Ended(name, Attempt(1)) for name in names]


async def test_a_request_without_responder_fails_at_once(wire: Wire) -> None:
    gateway = await wire.join("gateway")
    async with asyncio.timeout(1.0):
        with pytest.raises(NoResponder):
            await gateway.bus.request(JOB, CANCEL, PLAIN, 30.0)


async def test_a_silent_responder_is_a_timeout_and_its_late_reply_is_counted(wire: Wire) -> None:
    gateway, decode = await wire.join("gateway"), await wire.join("decode")
    go_on = asyncio.Event()

    async def late(delivery: Delivery) -> Message:
        await go_on.wait()
        return ENDED

    await decode.bus.subscribe(JOB, late)
    with pytest.raises(BusTimeout):
        await gateway.bus.request(JOB, CANCEL, PLAIN, 0.05)
    go_on.set()
    dropped = "baton_bus_dropped_total"
    await until(lambda: gateway.metrics.value(dropped, reason="late_reply") == 1)


async def test_reply_and_timeout_race_to_one_outcome(wire: Wire) -> None:
    """BR-067: whatever wins, the request ends once and nothing strays into the next one."""
    gateway, decode = await wire.join("gateway"), await wire.join("decode")

    async def slow(delivery: Delivery) -> Message:
        assert isinstance(delivery.message, ResendTokens)
        await asyncio.sleep(0.02 + 0.0002 * (delivery.message.index % 11 - 5))
        return Ended(delivery.message.request, Attempt(delivery.message.index))

    await decode.bus.subscribe(JOB, slow, concurrency=400)

    async def ask(index: int) -> bool:
        message = ResendTokens(RequestId("r1"), Attempt(1), index)
        try:
            reply = await gateway.bus.request(JOB, message, PLAIN, 0.02)
        except BusTimeout:
            return False
        assert reply == Ended(RequestId("r1"), Attempt(index))
        return True

    outcomes = await asyncio.gather(*(ask(index) for index in range(300)))
    assert len(outcomes) == 300
    dropped, lost = "baton_bus_dropped_total", outcomes.count(False)
    await until(lambda: gateway.metrics.value(dropped, reason="late_reply") == lost)


async def test_a_cancelled_request_stays_cancelled(wire: Wire) -> None:
    gateway, decode, told = await wire.join("gateway"), await wire.join("decode"), Recorder(None)
    await decode.bus.subscribe(JOB, told)
    task = asyncio.create_task(gateway.bus.request(JOB, CANCEL, PLAIN, 30.0))
    await told.wait(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_wildcards_cover_one_token_each(wire: Wire) -> None:
    gateway, decode, told = await wire.join("gateway"), await wire.join("decode"), Recorder()
    await decode.bus.subscribe(JOBS, told)
    for worker in ("d0", "d1"):
        await gateway.bus.publish(subjects.job("decode", WorkerId(worker)), CANCEL, PLAIN)
    await told.wait(2)
    got = sorted(delivery.subject for delivery in told.got)
    assert got == ["baton.decode.d0.job", "baton.decode.d1.job"]


async def test_a_queue_group_shares_and_others_still_hear_all(wire: Wire) -> None:
    gateway, decode = await wire.join("gateway"), await wire.join("decode")
    members, outsider = [Recorder(), Recorder()], Recorder()
    for member in members:
        await decode.bus.subscribe(JOB, member, queue="pool")
    await decode.bus.subscribe(JOB, outsider)
    for _ in range(60):
        await gateway.bus.publish(JOB, CANCEL, PLAIN)
    await outsider.wait(60)
    await until(lambda: sum(len(member.got) for member in members) == 60)
    assert all(member.got for member in members)


async def test_a_message_above_the_limit_is_refused_before_sending(wire: Wire) -> None:
    decode = await wire.join("decode")
    entry = TokenEntry(RequestId("r1"), Attempt(1), 0, tuple([12345678] * 1_000_000), None)
    chunk = TokenChunk(WorkerId("d0"), Epoch(1), (entry,))
    subject = subjects.tokens(WorkerId("g0"))
    with pytest.raises(PayloadTooLarge):
        await decode.bus.publish(subject, chunk, PLAIN)
    assert decode.bus.connected
    assert 8_000_000 < decode.bus.max_payload_bytes < 8 * 1024 * 1024


async def test_a_long_prompt_fits(wire: Wire) -> None:
    decode, gateway, told = await wire.join("decode"), await wire.join("gateway"), Recorder()
    subject = subjects.tokens(WorkerId("g0"))
    await gateway.bus.subscribe(subject, told)
    entry = TokenEntry(RequestId("r1"), Attempt(1), 0, tuple(range(1_000_000)), None)
    await decode.bus.publish(subject, TokenChunk(WorkerId("d0"), Epoch(1), (entry,)), PLAIN)
    await told.wait(1)
    assert isinstance(told.got[0].message, TokenChunk)


async def test_an_answer_above_the_limit_becomes_a_refusal(wire: Wire) -> None:
    decode, prefill = await wire.join("decode"), await wire.join("prefill")
    gone = tuple(LeaseKey(RequestId("r" * 26), Attempt(1)) for _ in range(200_000))
    subject = subjects.leases(WorkerId("p0"))
    await prefill.bus.subscribe(subject, Recorder(LeasesRenewed(gone)))
    reply = await decode.bus.request(subject, CANCEL, PLAIN, 5.0)
    assert isinstance(reply, Refused)
    assert reply.code == Code.BODY_TOO_LARGE


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"{}", b'{"v":1,"t":"Os","m":{}}', b"[" * 99])
async def test_bytes_that_are_no_message_are_counted_and_never_handled(
    wire: Wire, data: bytes
) -> None:
    decode, told = await wire.join("decode"), Recorder()
    await decode.bus.subscribe(JOB, told)
    await wire.say_raw(JOB, data)
    counted = "baton_bus_undecodable_total"
    await until(lambda: decode.metrics.value(counted, subject="decode.job") == 1)
    assert told.got == []


async def test_a_raised_error_of_ours_becomes_a_typed_refusal(wire: Wire) -> None:
    gateway, decode = await wire.join("gateway"), await wire.join("decode")

    async def refuse(delivery: Delivery) -> None:
        raise RefusedError("no pages", Code.KV_PAGES_EXHAUSTED, retry_after_s=2.5)

    await decode.bus.subscribe(JOB, refuse)
    reply = await gateway.bus.request(JOB, CANCEL, PLAIN, 2.0)
    assert reply == Refused("kv_pages_exhausted", "no pages", 2.5)


async def test_a_bug_in_a_handler_is_answered_counted_and_survived(wire: Wire) -> None:
    gateway, decode = await wire.join("gateway"), await wire.join("decode")

    async def broken(delivery: Delivery) -> None:
        raise ZeroDivisionError("secret prompt text")

    await decode.bus.subscribe(JOB, broken)
    for _ in range(2):
        reply = await gateway.bus.request(JOB, CANCEL, PLAIN, 2.0)
        assert isinstance(reply, Refused)
        assert reply.code == Code.INTERNAL
        assert "secret" not in reply.message
    assert decode.metrics.value("baton_bus_handler_failures_total", subject="decode.job") == 2


async def test_concurrency_is_bounded_and_used(wire: Wire) -> None:
    gateway, decode = await wire.join("gateway"), await wire.join("decode")
    running, most, go_on, done = 0, 0, asyncio.Event(), 0

    async def count(delivery: Delivery) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        done += 1

    await decode.bus.subscribe(JOB, count, concurrency=3)
    for _ in range(10):
        await gateway.bus.publish(JOB, CANCEL, PLAIN)
    await until(lambda: running == 3)
    go_on.set()
    await until(lambda: done == 10)
    assert most == 3


async def test_closing_waits_for_handlers_and_their_replies_arrive(wire: Wire) -> None:
    """BR-069: completed = received."""
    gateway, decode = await wire.join("gateway"), await wire.join("decode")
    begun, go_on, completed = 0, asyncio.Event(), 0

    async def work(delivery: Delivery) -> Message:
        nonlocal begun, completed
        begun += 1
        await go_on.wait()
        completed += 1
        return Acknowledged()

    await decode.bus.subscribe(JOB, work, concurrency=4)
    asked = [asyncio.create_task(gateway.bus.request(JOB, CANCEL, PLAIN, 5.0)) for _ in range(10)]
    await until(lambda: begun == 4)
    closing = asyncio.create_task(decode.bus.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    go_on.set()
    await closing
    assert completed == 10
    assert await asyncio.gather(*asked) == [Acknowledged()] * 10
    assert not decode.bus.connected


async def test_a_closed_subscription_is_silent_and_its_subject_has_no_responder(
    wire: Wire,
) -> None:
    gateway, decode, told = await wire.join("gateway"), await wire.join("decode"), Recorder(ENDED)
    subscription = await decode.bus.subscribe(JOB, told)
    assert await gateway.bus.request(JOB, CANCEL, PLAIN, 2.0) == ENDED
    await subscription.close()
    with pytest.raises(NoResponder):
        await gateway.bus.request(JOB, CANCEL, PLAIN, 2.0)
    assert len(told.got) == 1


async def test_a_handler_may_close_its_own_subscription(wire: Wire) -> None:
    gateway, decode = await wire.join("gateway"), await wire.join("decode")

    async def once(delivery: Delivery) -> Message:
        await subscription.close()
        return ENDED

    subscription = await decode.bus.subscribe(JOB, once)
    async with asyncio.timeout(5.0):
        assert await gateway.bus.request(JOB, CANCEL, PLAIN, 5.0) == ENDED


async def test_after_close_everything_says_unavailable(wire: Wire) -> None:
    gateway = await wire.join("gateway")
    await gateway.bus.close()
    with pytest.raises(BusUnavailable):
        await gateway.bus.publish(JOB, CANCEL, PLAIN)
    with pytest.raises(BusUnavailable):
        await gateway.bus.request(JOB, CANCEL, PLAIN, 1.0)
    await gateway.bus.close()


async def test_whoever_may_know_hears_of_each_client_that_leaves(wire: Wire) -> None:
    scheduler, decode = await wire.join("scheduler"), await wire.join("decode")
    told: list[str] = []
    await scheduler.bus.watch(lambda role, name: told.append(role))
    other = await wire.join("kvpool")
    await other.bus.close()
    await until(lambda: "kvpool" in told)
    assert decode.bus.connected and "decode" not in told
    with pytest.raises(BusError, match="may not subscribe"):
        await decode.bus.watch(lambda role, name: None)
