"""Sockets that lie, stay silent or send rubbish, from either side of a UCX link."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from shared.dataplane import ucx_owner
from shared.dataplane import ucx_wire as wire
from shared.dataplane.observer import Cause
from shared.dataplane.ucx import UcxSettings
from shared.dataplane.ucx_address import parse_address
from shared.errors import Code, TransferError
from tests.shared.dataplane.pages import PAGES, TICKET, reads
from tests.shared.dataplane.worlds import End, UcxWorld, owner_and_reader

LONG_S = 20.0


async def dial(end: End) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = parse_address(end.plane.address)
    return await asyncio.open_connection(address.host, address.port)


async def hung_up(stream: asyncio.StreamReader, within_s: float = 5.0) -> bytes:
    """What the peer still said before it closed."""
    async with asyncio.timeout(within_s):
        try:
            return await stream.read()
        except ConnectionError:
            return b""


def ask(ticket: str = TICKET, hello: bytes = b"", first: int = 1, page_bytes: int = 4096) -> bytes:
    body = wire.Ask(
        1, 0, page_bytes, 1000, ticket, wire.prove(ticket, hello), (wire.PageRun(first, (2,)),)
    ).encode()
    return wire.frame(wire.Kind.ASK, body)


async def test_a_silent_listener_does_not_hang_a_read(world: UcxWorld) -> None:
    """BR-074: accepts, and says nothing."""
    opened: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: opened.append(writer), "127.0.0.1", 0)
    reader = await world.end()
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(f"ucx://127.0.0.1:{port}/x", TICKET, reads([(1, 1)]), 0.3)
    assert failure.value.settled
    assert loop.time() - started_s < 5
    for writer in opened:
        writer.close()
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        wire.frame(wire.Kind.WELCOME, b"p" * 16 + b"forged address"),
        wire.frame(wire.Kind.VERDICT, wire.Verdict(1, wire.Answer.ACCEPTED).encode()),
        wire.frame(wire.Kind.HELLO, b""),
    ],
)
async def test_a_listener_that_answers_nonsense(world: UcxWorld, answer: bytes) -> None:
    """Also an acceptance without a link behind it: refused, nothing is posted."""

    async def reply(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stream.read(1)
        writer.write(answer)
        await stream.read()
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    reader = await world.end()
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(f"ucx://127.0.0.1:{port}/x", TICKET, reads([(1, 1)]), 2.0)
    assert failure.value.settled
    assert reader.pages.untouched(range(PAGES))
    server.close()


async def test_without_a_valid_ticket_first_the_connection_ends(world: UcxWorld) -> None:
    owner = await world.end()
    hello = wire.Hello(wire.Lane.TCP, b"never looked at").encode()
    greeting = wire.frame(wire.Kind.HELLO, hello)
    for sent, answer, cause in (
        (greeting + ask("no such ticket", hello), wire.Answer.REFUSED, Cause.REFUSED),
        (greeting + ask(TICKET, b"other hello"), wire.Answer.MALFORMED, Cause.MALFORMED),
        (greeting + ask(TICKET, hello, first=PAGES), wire.Answer.OUT_OF_RANGE, Cause.OUT_OF_RANGE),
        (greeting + ask(TICKET, hello, page_bytes=1), wire.Answer.PAGE_SIZE, Cause.PAGE_SIZE),
    ):
        before = owner.observer.turned[cause]
        stream, writer = await dial(owner)
        writer.write(sent)
        verdict = wire.Verdict(1, answer).encode()
        assert await hung_up(stream) == wire.frame(wire.Kind.VERDICT, verdict)
        assert owner.observer.turned[cause] == before + 1
        writer.close()
    assert owner.guard.opened == 0


async def test_frames_out_of_order_end_the_connection(world: UcxWorld) -> None:
    owner = await world.end()
    hello = wire.frame(wire.Kind.HELLO, wire.Hello(wire.Lane.TCP, b"address").encode())
    for sent in (
        ask(),
        hello + hello,
        wire.frame(wire.Kind.WELCOME, b"x" * 40),
        b"\x01\xff\xff\xff\xff",
    ):
        stream, writer = await dial(owner)
        writer.write(sent)
        assert await hung_up(stream) == b""
        writer.close()
    assert owner.observer.turned == {Cause.MALFORMED: 4}


async def test_a_connection_that_says_nothing_is_dropped(
    world: UcxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ucx_owner, "FIRST_ASK_S", 0.1)
    owner = await world.end()
    stream, writer = await dial(owner)
    assert await hung_up(stream) == b""
    assert owner.observer.turned == {Cause.SILENT: 1}
    writer.close()


async def test_forged_requests_are_refused_and_the_owner_lives(world: UcxWorld) -> None:
    """BR-025: damaged and random frames, before and after a valid ticket."""
    owner, reader = await owner_and_reader(world)
    draw = random.Random(25)
    hello = wire.Hello(wire.Lane.TCP, draw.randbytes(180)).encode()
    good = wire.frame(wire.Kind.HELLO, hello) + ask("guess", hello)
    for attempt in range(200):
        sent = bytearray(good)
        match attempt % 3:
            case 0:
                for _ in range(draw.randint(1, 8)):
                    sent[draw.randrange(len(sent))] = draw.randrange(256)
            case 1:
                sent = bytearray(draw.randbytes(draw.randint(1, 400)))
            case _:
                del sent[draw.randrange(len(sent)) :]
        stream, writer = await dial(owner)
        writer.write(bytes(sent))
        writer.write_eof()
        await hung_up(stream)
        writer.close()
    assert owner.guard.opened == 0
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    assert np.array_equal(reader.pages.array[1], owner.pages.array[1])


async def test_random_descriptors_with_a_valid_ticket(world: UcxWorld) -> None:
    """BR-025: an insider names random pages and generations through the real reader's link."""
    owner, reader = await owner_and_reader(world)
    draw = random.Random(26)
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    reader.pages.array[:] = 0xEE
    for _ in range(100):
        pages = reads([(draw.choice([0, 63, 64, 2**31, 2**32 - 1]), 2)])
        ticket = draw.choice([TICKET, TICKET[:-1], "\x00", "ü" * 100])
        if ticket == TICKET and pages[0].source < PAGES:
            continue
        with pytest.raises(TransferError) as refusal:
            await reader.plane.read(owner.plane.address, ticket, pages, LONG_S)
        assert refusal.value.code is Code.STALE
    assert reader.pages.untouched(range(PAGES))
    assert owner.guard.opened == 1


async def test_connections_are_bounded() -> None:
    observer_world = UcxWorld("tcp")
    observer_world.settings = UcxSettings(transport="tcp", max_links=2)
    owner = await observer_world.end()
    kept = [await dial(owner) for _ in range(2)]
    await asyncio.sleep(0.05)
    stream, writer = await dial(owner)
    assert await hung_up(stream) == b""
    assert owner.observer.turned == {Cause.TOO_MANY: 1}
    for _, open_writer in [*kept, (stream, writer)]:
        open_writer.close()
    await observer_world.close()
