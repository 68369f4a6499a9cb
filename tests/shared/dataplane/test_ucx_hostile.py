"""Sockets that lie, stay silent or send rubbish, from either side of a UCX link."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from shared.dataplane import link_wire as wire
from shared.dataplane import ucx_owner
from shared.dataplane.link_address import PlaneAddress, parse_address
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.observer import Cause
from shared.dataplane.region import Region
from shared.dataplane.runs import Run
from shared.dataplane.ucx import UcxSettings
from shared.dataplane.ucx_channel import Channel
from shared.dataplane.ucx_library import UcxLibrary
from shared.dataplane.ucx_owner import SLOTS
from shared.dataplane.ucx_pump import Pump
from shared.errors import Code, TransferError
from shared.ids import Generation, PageId
from tests.shared.dataplane.pages import CANARY, PAGES, TICKET, ArrayPages, reads, until
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


def ask(ticket: str = TICKET, first: int = 1, generation: int = 2, page_bytes: int = 4096) -> bytes:
    run = wire.PageRun(first, (generation,))
    return wire.Ask(1, wire.TAG_STEP, page_bytes, 1000, ticket, (run,)).encode()


def key_of(end: End) -> str:
    return parse_address(end.plane.address).key


class Heard:
    """Implements Sink: what an operation ended with."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.end: asyncio.Future[int] = loop.create_future()

    def told(self, _: object, outcome: int) -> None:
        self.end.set_result(outcome)


class Insider:
    """A peer that knows the key and opens a real link, but says what it likes over it."""

    def __init__(self, page_bytes: int = 4096) -> None:
        self.pump = Pump()
        library = UcxLibrary("127.0.0.1", cuda=False, shared_only=False)
        self.pages = ArrayPages(PAGES, page_bytes)
        self.pages.array[:] = CANARY
        region = Region(self.pages)
        self.channel = Channel(library, wire.Lane.TCP, self.pump, region, lambda: None)

    async def join(self, end: End) -> None:
        self.stream, self.writer = await dial(end)
        frames = FrameStream(self.stream, self.writer)
        hello = wire.Hello(wire.Lane.TCP, self.channel.address)
        await frames.write(wire.Kind.HELLO, hello.encode(key_of(end)))
        welcome = wire.parse_welcome(await frames.expect(wire.Kind.WELCOME))
        assert welcome.proven(key_of(end))
        assert welcome.slots == SLOTS
        self.channel.connect(welcome.address, wire.TAG_STEP)

    def say(self, data: bytes) -> None:
        self.channel.posting().say(wire.ASK_TAG, data)

    def ask(self, ticket: str = TICKET, first: int = 1, generation: int = 2) -> Heard:
        """Ask for a page into our page 0; the asks of one turn go in one message."""
        heard = Heard()
        run = Run(PageId(first), PageId(0), (Generation(generation),))
        self.channel.posting().ask((run,), ticket, 1000, heard.told, None)
        return heard

    def leave(self) -> None:
        self.channel.fence()
        self.writer.close()


async def test_a_silent_listener_does_not_hang_a_read(world: UcxWorld) -> None:
    """BR-074: accepts, and says nothing."""
    opened: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: opened.append(writer), "127.0.0.1", 0)
    reader = await world.end()
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(f"ucx://127.0.0.1:{port}/x/key", TICKET, reads([(1, 1)]), 0.3)
    assert failure.value.settled
    assert loop.time() - started_s < 5
    for writer in opened:
        writer.close()
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        wire.frame(wire.Kind.WELCOME, b"\x10" + b"p" * 16 + b"forged address"),
        wire.frame(wire.Kind.WELCOME, wire.Welcome(16, b"forged address").encode("other key")),
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
        await reader.plane.read(f"ucx://127.0.0.1:{port}/x/key", TICKET, reads([(1, 1)]), 2.0)
    assert failure.value.settled
    assert reader.pages.untouched(range(PAGES))
    server.close()


async def test_without_the_key_the_connection_ends(world: UcxWorld) -> None:
    """UCX sees no address of a stranger, and a link without its key opens nothing."""
    owner, reader = await owner_and_reader(world)
    hello = wire.Hello(wire.Lane.TCP, b"never looked at")
    for key in ("", "key", key_of(owner)[:-1], key_of(reader)):
        before = owner.observer.turned[Cause.MALFORMED]
        stream, writer = await dial(owner)
        writer.write(wire.frame(wire.Kind.HELLO, hello.encode(key)))
        assert await hung_up(stream) == b""
        assert owner.observer.turned[Cause.MALFORMED] == before + 1
        writer.close()
    address = parse_address(owner.plane.address)
    forged = str(PlaneAddress(address.host, address.port, address.domain, "guess"))
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(forged, TICKET, reads([(1, 1)]), LONG_S)
    assert failure.value.settled
    assert owner.guard.opened == 0


async def test_frames_out_of_order_end_the_connection(world: UcxWorld) -> None:
    owner = await world.end()
    for sent in (
        wire.frame(wire.Kind.ASK, ask()),
        wire.frame(wire.Kind.WELCOME, b"x" * 40),
        wire.frame(wire.Kind.HELLO, b"x" * 40),
        b"\x01\xff\xff\xff\xff",
    ):
        stream, writer = await dial(owner)
        writer.write(sent)
        assert await hung_up(stream) == b""
        writer.close()
    assert owner.observer.turned == {Cause.MALFORMED: 4}


async def test_an_insider_gets_what_its_ticket_grants(world: UcxWorld) -> None:
    owner = await world.end()
    owner.pages.stamp()
    insider, other = Insider(), Insider(page_bytes=2048)
    for peer in (insider, other):
        await peer.join(owner)
    for heard, answer, cause in (
        (insider.ask("no such ticket"), wire.Answer.REFUSED, Cause.REFUSED),
        (insider.ask(generation=99), wire.Answer.REFUSED, Cause.REFUSED),
        (insider.ask(first=PAGES), wire.Answer.OUT_OF_RANGE, Cause.OUT_OF_RANGE),
        (other.ask(), wire.Answer.PAGE_SIZE, Cause.PAGE_SIZE),
    ):
        async with asyncio.timeout(10):
            assert await heard.end == answer
        assert owner.observer.turned[cause] > 0
    assert sum(owner.observer.turned.values()) == 4
    assert insider.pages.untouched(range(PAGES))
    assert owner.guard.opened == 0
    async with asyncio.timeout(10):
        assert await insider.ask().end == wire.Answer.ACCEPTED
    assert np.array_equal(insider.pages.array[0], owner.pages.array[1])
    other.leave()
    insider.leave()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"rubbish",
        wire.frame(wire.Kind.WELCOME, b"x" * 40),
        wire.frame(wire.Kind.ASK, ask()[:-1]),
        wire.frame(wire.Kind.ASK, ask() + b"\0"),
        wire.frame(wire.Kind.ASK, ask() * (wire.MAX_ASKS + 1)),
        b"\x02\xff\xff\xff\xff",
        bytes(2 * wire.MAX_FRAME_BYTES),
    ],
)
async def test_an_insider_that_talks_rubbish_loses_its_link(world: UcxWorld, said: bytes) -> None:
    """BR-025: nothing is opened, the link ends, everyone else is served."""
    owner, reader = await owner_and_reader(world)
    insider = Insider()
    await insider.join(owner)
    insider.say(said)
    assert await hung_up(insider.stream) == b""
    assert owner.observer.turned[Cause.MALFORMED] == 1
    assert owner.guard.opened == 0
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    insider.leave()


async def test_an_insider_that_asks_without_end_is_held_to_its_slots(world: UcxWorld) -> None:
    """Its asks wait; no more reads are open than it has slots, and it never takes the data."""
    owner = await world.end(1 << 20)
    insider = Insider()
    await insider.join(owner)
    for _ in range(4 * SLOTS):
        insider.say(wire.frame(wire.Kind.ASK, ask(page_bytes=1 << 20)))
    await until(lambda: owner.guard.opened == SLOTS)
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(owner.guard.open) == SLOTS == owner.guard.opened
    insider.leave()
    await until(lambda: not owner.guard.open)


async def test_many_asks_in_one_message_wait_for_their_turn(world: UcxWorld) -> None:
    """Reads open at one time are bounded however asks are packed."""
    owner = await world.end(1 << 20)
    insider = Insider()
    await insider.join(owner)
    many = ask(page_bytes=1 << 20) * wire.MAX_ASKS
    for _ in range(3):
        insider.say(wire.frame(wire.Kind.ASK, many))
    await until(lambda: owner.guard.opened == SLOTS)
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(owner.guard.open) == SLOTS == owner.guard.opened
    insider.leave()
    await until(lambda: not owner.guard.open)


async def test_asks_of_one_message_are_judged_one_by_one(world: UcxWorld) -> None:
    owner = await world.end()
    owner.pages.stamp()
    insider = Insider()
    await insider.join(owner)
    heard = [insider.ask(), insider.ask("no such ticket")]
    async with asyncio.timeout(10):
        found = [await one.end for one in heard]
    assert found == [wire.Answer.ACCEPTED, wire.Answer.REFUSED]
    assert (owner.guard.opened, owner.guard.open) == (1, set())
    insider.leave()


async def test_a_connection_that_says_nothing_is_dropped(
    world: UcxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ucx_owner, "HELLO_S", 0.1)
    owner = await world.end()
    stream, writer = await dial(owner)
    assert await hung_up(stream) == b""
    assert owner.observer.turned == {Cause.SILENT: 1}
    writer.close()


async def test_forged_requests_are_refused_and_the_owner_lives(world: UcxWorld) -> None:
    """BR-025: damaged and random frames on the socket."""
    owner, reader = await owner_and_reader(world)
    draw = random.Random(25)
    hello = wire.Hello(wire.Lane.TCP, draw.randbytes(180)).encode("guess")
    good = wire.frame(wire.Kind.HELLO, hello) + wire.frame(wire.Kind.ASK, ask("guess"))
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
