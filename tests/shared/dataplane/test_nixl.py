"""The one-sided adapter's protocol, with a mover that copies inside this process: no NIXL needed.

The real library runs the contract suite where it is installed.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import pytest

from shared.dataplane import link_wire as wire
from shared.dataplane import nixl_owner, nixl_wire
from shared.dataplane.link_address import parse_address
from shared.dataplane.link_parts import LinkSettings
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.nixl import NixlPlane
from shared.dataplane.nixl_agent import Piece, Region, region
from shared.dataplane.observer import Cause
from shared.dataplane.plane import PageMemory
from shared.dataplane.ucx_owner import SLOTS
from shared.errors import Code, TransferError
from tests.shared.dataplane.pages import PAGES, TICKET, ArrayPages, CountingObserver, reads, until
from tests.shared.dataplane.worlds import End

LONG_S = 20.0
PAGE = 4096


class Copier:
    """Implements Mover by memmove; a test may hold reads back."""

    held: list[tuple[Sequence[Piece], Callable[[bool], None]]]

    def __init__(self, name: str, memory: PageMemory) -> None:
        self.region: Region = region(memory)
        self.metadata = f"metadata of {name}".encode()
        self.met: list[bytes] = []
        self.holding = False
        self.held = []

    async def meet(self, metadata: bytes) -> str:
        self.met.append(metadata)
        return metadata.decode()

    def read(self, peer: str, pieces: Sequence[Piece], on_end: Callable[[bool], None]) -> None:
        assert peer.encode() == self.met[-1]
        self.held.append((pieces, on_end))
        if not self.holding:
            self.let_go()

    def let_go(self, good: bool = True) -> None:
        held, self.held = self.held, []
        loop = asyncio.get_running_loop()
        for pieces, on_end in held:
            if good:
                for piece in pieces:
                    ctypes.memmove(piece.local, piece.remote, piece.size_bytes)
            loop.call_soon(on_end, good)

    def part(self, peer: str) -> bool:
        return not self.held

    def close(self) -> None: ...


class Pair:
    """An owner and a reader over one-sided links."""

    def __init__(self) -> None:
        self.movers: list[Copier] = []
        self.ends: list[End] = []

    async def end(self, settle_s: float = 0.05) -> End:
        observer = CountingObserver()
        settings = LinkSettings(settle_s=settle_s)
        plane = NixlPlane(settings, observer, self._mover)
        end = End(plane, ArrayPages(PAGES, PAGE), observer)
        plane.register(end.pages, end.guard)
        await plane.start()
        self.ends.append(end)
        return end

    def _mover(self, name: str, memory: PageMemory) -> Copier:
        self.movers.append(Copier(name, memory))
        return self.movers[-1]

    async def close(self) -> None:
        for end in self.ends:
            await end.plane.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    built = Pair()
    yield built
    await built.close()
    assert [end.guard.open for end in built.ends] == [set()] * len(built.ends)


async def both(pair: Pair) -> tuple[End, End]:
    owner, reader = await pair.end(), await pair.end()
    owner.pages.stamp()
    return owner, reader


async def test_pages_are_read_after_the_grant_and_count_after_the_close(pair: Pair) -> None:
    owner, reader = await both(pair)
    pair.movers[1].holding = True
    pages = reads([(1, 5), (2, 6), (9, 3)])
    read = asyncio.create_task(reader.plane.read(owner.plane.address, TICKET, pages, LONG_S))
    await until(lambda: bool(pair.movers[1].held))
    assert len(owner.guard.open) == 1
    assert not read.done()
    pair.movers[1].let_go()
    report = await read
    assert (report.pages, report.runs, report.transport) == (3, 2, "nixl:nixl")
    assert np.array_equal(reader.pages.array[[5, 6, 3]], owner.pages.array[[1, 2, 9]])
    assert not owner.guard.open
    assert owner.observer.bytes == {"served:nixl": 3 * PAGE}
    with pytest.raises(TransferError) as refusal:
        await reader.plane.read(owner.plane.address, "no ticket", pages, LONG_S)
    assert refusal.value.code is Code.STALE
    assert not pair.movers[1].held


async def test_a_read_that_cannot_be_stopped_is_told_as_unsettled(pair: Pair) -> None:
    """The library may still write: the pages stay in quarantine for good."""
    owner, reader = await both(pair)
    pair.movers[1].holding = True
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), 0.2)
    assert not failure.value.settled
    assert reader.observer.failures == {Cause.UNSETTLED: 1}
    pair.movers[1].let_go()
    await until(lambda: not owner.guard.open)


async def test_a_failed_read_ends_its_link_and_the_next_one_works(pair: Pair) -> None:
    owner, reader = await both(pair)
    pair.movers[1].holding = True
    read = asyncio.create_task(
        reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    )
    await until(lambda: bool(pair.movers[1].held))
    pair.movers[1].let_go(good=False)
    with pytest.raises(TransferError) as failure:
        await read
    assert (failure.value.code, failure.value.settled) == (Code.WORKER_LOST, True)
    pair.movers[1].holding = False
    await reader.plane.read(owner.plane.address, TICKET, reads([(2, 2)]), LONG_S)
    assert len(pair.movers[1].met) == 2


async def test_a_read_beyond_its_time_ends_the_link_and_counts_for_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner may use its pages again: what landed meanwhile must not be believed."""
    monkeypatch.setattr(nixl_owner, "_GRACE_S", -19.9)
    owner, reader = await both(pair)
    pair.movers[1].holding = True
    read = asyncio.create_task(
        reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    )
    await until(lambda: bool(pair.movers[1].held))
    await until(lambda: not owner.guard.open)
    pair.movers[1].let_go()
    with pytest.raises(TransferError):
        await read
    assert owner.observer.turned[Cause.LOST] == 1


class Insider:
    """A peer that knows the key and says what it likes."""

    async def join(self, end: End) -> None:
        address = parse_address(end.plane.address, "nixl")
        self.stream = FrameStream(*await asyncio.open_connection(address.host, address.port))
        hello = wire.Hello(wire.Lane.TCP, b"metadata").encode(address.key)
        await self.stream.write(wire.Kind.HELLO, hello)
        await self.stream.expect(wire.Kind.WELCOME)

    async def until_hung_up(self) -> None:
        async with asyncio.timeout(10):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                while True:
                    await self.stream.read()
        self.stream.abort()


def ask(number: int, page: int = 1) -> bytes:
    run = wire.PageRun(page, (page + 1,))
    return wire.Ask(number, wire.TAG_STEP, PAGE, 1000, TICKET, (run,)).encode()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.Kind.DONE, nixl_wire.number(7)),
        (wire.Kind.DONE, b""),
        (wire.Kind.ASK, b"rubbish"),
        (wire.Kind.GRANT, nixl_wire.Grant(1, 2, 3).encode()),
        (wire.Kind.CLOSED, nixl_wire.number(1)),
    ],
)
async def test_an_insider_that_talks_rubbish_loses_its_link(
    pair: Pair, kind: wire.Kind, body: bytes
) -> None:
    owner = await pair.end()
    insider = Insider()
    await insider.join(owner)
    await insider.stream.write(kind, body)
    await insider.until_hung_up()
    assert owner.observer.turned == {Cause.MALFORMED: 1}
    assert owner.guard.opened == 0


async def test_an_insider_is_held_to_its_slots(pair: Pair) -> None:
    owner = await pair.end()
    insider = Insider()
    await insider.join(owner)
    for number in range(SLOTS + 1):
        await insider.stream.write(wire.Kind.ASK, ask(number))
    await insider.until_hung_up()
    assert owner.guard.opened == SLOTS
    await until(lambda: not owner.guard.open)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.Kind.GRANT, nixl_wire.Grant(99, 0, 0).encode()),
        (wire.Kind.CLOSED, nixl_wire.number(99)),
        (wire.Kind.VERDICT, wire.Verdict(1, wire.Answer.ACCEPTED).encode()),
        (wire.Kind.ASK, b""),
    ],
)
async def test_an_owner_that_talks_rubbish_is_left(
    pair: Pair, kind: wire.Kind, body: bytes
) -> None:
    async def lie(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameStream(stream, writer)
        await frames.expect(wire.Kind.HELLO)
        await frames.write(wire.Kind.WELCOME, wire.Welcome(SLOTS, b"metadata").encode("key"))
        await frames.expect(wire.Kind.ASK)
        await frames.write(kind, body)
        await stream.read()
        writer.close()

    server = await asyncio.start_server(lie, "127.0.0.1", 0)
    reader = await pair.end()
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(f"nixl://127.0.0.1:{port}/-/key", TICKET, reads([(1, 1)]), 5.0)
    assert failure.value.settled
    assert reader.pages.untouched(range(PAGES))
    server.close()


async def test_another_adapter_is_no_peer(pair: Pair) -> None:
    reader = await pair.end()
    with pytest.raises(TransferError):
        await reader.plane.read("ucx://127.0.0.1:1/-/key", TICKET, reads([(1, 1)]), LONG_S)
