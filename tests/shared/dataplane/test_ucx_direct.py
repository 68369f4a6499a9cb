"""The short way of a read: what it takes, what it leaves to the long way, and that no ending of
one keeps credit, a waiter or a page."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shared.dataplane import link_wire as wire
from shared.dataplane.link_parts import long_way
from shared.dataplane.linked import LinkedPlane
from shared.dataplane.native.library import compiled
from shared.dataplane.plane import PageRead
from shared.dataplane.ucx_owner import named
from shared.dataplane.ucx_reader import ReaderLink
from shared.errors import Code, TransferError
from shared.ids import Generation, PageId
from tests.shared.dataplane.pages import PAGES, TICKET, reads, until
from tests.shared.dataplane.worlds import End, UcxWorld, owner_and_reader

pytestmark = pytest.mark.skipif(compiled() is None, reason="there is no C compiler")

LONG_S = 20.0
BIG = 1 << 20


@pytest.fixture
async def direct() -> AsyncIterator[UcxWorld]:
    built = UcxWorld("auto")
    yield built
    await built.close()
    for end in built.ends:
        assert end.guard.open == set()


def link_of(end: End) -> ReaderLink:
    assert isinstance(end.plane, LinkedPlane)
    (link,) = end.plane._links.values()
    assert isinstance(link, ReaderLink)
    return link


def nothing_is_held(link: ReaderLink) -> None:
    parts = link._parts
    assert (link._turns.flying, link._turns.flying_bytes, link._turns.queues) == (0, 0, {})
    assert (parts.budget.taken_bytes, dict(parts.budget.waiting)) == (0, {})
    assert link._transfers == set()
    assert parts.deadlines.limits == {}


async def warm(owner: str, reader: End) -> ReaderLink:
    """A link that has moved pages, so that reads may go the short way."""
    await reader.plane.read(owner, TICKET, reads([(0, 0)]), LONG_S)
    link = link_of(reader)
    assert link.start is not long_way
    return link


async def no_long_way(reader: End, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("this read went the long way")

    monkeypatch.setattr(LinkedPlane, "_checked", refuse)


@pytest.mark.parametrize("pairs", [[(5, 9)], [(5 + page, 9 + page) for page in range(30)]])
async def test_one_run_goes_the_short_way_and_is_reported_alike(
    direct: UcxWorld, monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[int, int]]
) -> None:
    owner, reader = await owner_and_reader(direct)
    link = await warm(owner.plane.address, reader)
    await no_long_way(reader, monkeypatch)
    report = await reader.plane.read(owner.plane.address, TICKET, reads(pairs), LONG_S)
    for source, target in pairs:
        assert np.array_equal(reader.pages.array[target], owner.pages.array[source])
    targets = {0} | {target for _, target in pairs}
    assert reader.pages.untouched([page for page in range(PAGES) if page not in targets])
    assert (report.pages, report.bytes, report.runs) == (len(pairs), 4096 * len(pairs), 1)
    assert report.transport == "ucx:shm" and 0 < report.seconds < LONG_S
    assert reader.observer.bytes == {"pulled:shm": 4096 * (len(pairs) + 1)}
    nothing_is_held(link)


async def test_many_at_once_share_frames_and_credit(
    direct: UcxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, reader = await owner_and_reader(direct)
    link = await warm(owner.plane.address, reader)
    await no_long_way(reader, monkeypatch)
    for _ in range(8):
        wanted = [reads([(page, (7 * page) % PAGES)]) for page in range(link._turns.slots)]
        await asyncio.gather(
            *(reader.plane.read(owner.plane.address, TICKET, pages, LONG_S) for pages in wanted)
        )
    for page in range(link._turns.slots):
        assert np.array_equal(reader.pages.array[(7 * page) % PAGES], owner.pages.array[page])
    nothing_is_held(link)


def page(source: int, target: int, generation: int = 1) -> PageRead:
    return PageRead(PageId(source), Generation(generation), PageId(target))


@pytest.mark.parametrize(
    ("ticket", "pages", "timeout_s"),
    [
        (TICKET, [], LONG_S),
        (TICKET, reads([(1, 1), (3, 2)]), LONG_S),
        (TICKET, reads([(1, 1), (2, 3)]), LONG_S),
        (TICKET, reads([(2, 2), (1, 1)]), LONG_S),
        (TICKET, [page(1, PAGES)], LONG_S),
        (TICKET, [page(1, -1)], LONG_S),
        (TICKET, [page(-1, 1)], LONG_S),
        (TICKET, [page(2**32, 1)], LONG_S),
        (TICKET, [page(2**64, 1)], LONG_S),
        (TICKET, [page(1, 1, -1)], LONG_S),
        (TICKET, [page(1, 1, 2**64)], LONG_S),
        (TICKET, [page(1, 0)] * (wire.MAX_PAGES + 1), LONG_S),
        (TICKET, (one for one in reads([(1, 1)])), LONG_S),
        (TICKET, [object()], LONG_S),
        ("t" * (wire.MAX_TICKET_BYTES + 1), reads([(1, 1)]), LONG_S),
        ("\ud800", reads([(1, 1)]), LONG_S),
        (TICKET, reads([(1, 1)]), 0.0),
        (TICKET, reads([(1, 1)]), -1.0),
        (TICKET, reads([(1, 1)]), float("nan")),
        (TICKET, reads([(1, 1)]), float("inf")),
    ],
)
async def test_all_else_is_left_to_the_long_way(
    direct: UcxWorld, ticket: str, pages: list[PageRead], timeout_s: float
) -> None:
    owner, reader = await owner_and_reader(direct)
    link = await warm(owner.plane.address, reader)
    assert link.start(ticket, pages, timeout_s) is None
    nothing_is_held(link)
    await reader.plane.read(owner.plane.address, TICKET, reads([(2, 2)]), LONG_S)
    assert np.array_equal(reader.pages.array[2], owner.pages.array[2])


async def test_without_credit_it_waits_its_turn(direct: UcxWorld) -> None:
    direct.settings = replace(direct.settings, window_bytes=2 * BIG, total_bytes=2 * BIG)
    owner, reader = await owner_and_reader(direct, BIG)
    link = await warm(owner.plane.address, reader)
    begun = [link.start(TICKET, reads([(number, number)]), LONG_S) for number in (1, 2)]
    assert None not in begun
    assert link.start(TICKET, reads([(3, 3)]), LONG_S) is None
    third = asyncio.create_task(
        reader.plane.read(owner.plane.address, TICKET, reads([(3, 3)]), LONG_S)
    )
    await asyncio.sleep(0)
    assert len(link._turns.queues) == 1
    # It came first: nobody passes it by, also when there is credit again.
    assert link.start("another", reads([(4, 4)]), LONG_S) is None
    await third
    for transfer in begun:
        assert transfer is not None
        await transfer.wait(transfer.limit_s)
        assert transfer.over and transfer.failure is None
    assert np.array_equal(reader.pages.array[:4], owner.pages.array[:4])
    nothing_is_held(link)


async def test_a_refusal_is_typed_and_keeps_the_link(direct: UcxWorld) -> None:
    owner, reader = await owner_and_reader(direct)
    link = await warm(owner.plane.address, reader)
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(owner.plane.address, "no such ticket", reads([(1, 1)]), LONG_S)
    assert (failure.value.code, failure.value.settled) == (Code.STALE, True)
    assert reader.pages.untouched([1])
    nothing_is_held(link)
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    assert link_of(reader) is link


@pytest.mark.process
@pytest.mark.parametrize("ending", ["limit", "cancelled", "killed", "closed"])
async def test_an_owner_that_falls_silent(direct: UcxWorld, ending: str) -> None:
    far, reader = await direct.far_owner(), await direct.end()
    link = await warm(far.address, reader)
    await far.stall()
    limit_s = 0.2 if ending == "limit" else LONG_S
    read = asyncio.create_task(reader.plane.read(far.address, TICKET, reads([(1, 1)]), limit_s))
    await until(lambda: link._turns.flying == 1)
    if ending == "cancelled":
        read.cancel()
    elif ending == "killed":
        await far.kill()
    elif ending == "closed":
        await reader.plane.close()
    with pytest.raises((TransferError, asyncio.CancelledError)) as failure:
        await read
    assert isinstance(failure.value, asyncio.CancelledError) == (ending == "cancelled")
    assert link.start is long_way and link.closed
    nothing_is_held(link)
    await far.resume() if ending in ("limit", "cancelled") else None
    await asyncio.sleep(0.05)
    assert reader.pages.untouched([1])


@pytest.mark.process
async def test_a_link_that_died_unseen_is_made_anew(direct: UcxWorld) -> None:
    far, reader = await direct.far_owner(), await direct.end()
    link = await warm(far.address, reader)
    address = far.address
    begun = link.start(TICKET, reads([(1, 1)]), LONG_S)
    assert begun is not None
    await far.kill()
    await begun.wait(begun.limit_s)
    assert begun.over and begun.failure is not None
    ((portion,),) = (begun.portions,)
    assert [run.target for run in portion.runs] == [1]
    begun.start_anew()
    assert not begun.over and begun.failure is None
    begun.give_up(1, TransferError("nobody waits"))
    assert begun.over and begun.failure is not None
    assert address
    nothing_is_held(link)


async def test_nothing_stays_when_planes_close(direct: UcxWorld) -> None:
    def alive() -> int:
        gc.collect()
        return sum(
            type(thing).__name__ in ("DirectReads", "ReaderLink") for thing in gc.get_objects()
        )

    before = alive()
    owner, reader = await owner_and_reader(direct)
    await warm(owner.plane.address, reader)
    assert alive() == before + 2
    await reader.plane.close()
    await until(lambda: alive() == before)


# -- frames ----------------------------------------------------------------------------------

_NUMBERS = some.integers(0, 2**64 - 1)
_ASKS = some.builds(
    wire.Ask,
    number=some.integers(0, 2**32 - 1),
    tag=some.integers(1, 2**40).map(lambda root: root * wire.TAG_STEP),
    page_bytes=_NUMBERS,
    timeout_ms=some.integers(1, wire.MAX_TIMEOUT_MS),
    ticket=some.text(max_size=40),
    runs=some.lists(
        some.builds(
            wire.PageRun,
            first=some.integers(0, 2**32 - 1),
            generations=some.lists(_NUMBERS, min_size=1, max_size=5).map(tuple),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
)


def seen(frame: bytes) -> list[tuple[object, ...]] | None:
    """What the compiled parser makes of it, at the start of a larger buffer."""
    buffer = memoryview(bytearray(frame) + bytes(64))
    found: list[tuple[object, ...]] | None = compiled().asks_in(buffer, len(frame))
    return found


def told(frame: bytes) -> list[tuple[object, ...]] | None:
    """What link_wire makes of it; None where it is not a frame of asks."""
    try:
        kind, body = wire.parse_frame(frame)
        asks = wire.parse_asks(body)
    except (wire.FrameError, struct.error):
        return None
    return [(*ask[1:], named(ask)) for ask in asks] if kind is wire.Kind.ASK else None


@given(asks=some.lists(_ASKS, min_size=1, max_size=wire.MAX_ASKS + 2))
def test_good_frames_are_read_as_link_wire_reads_them(asks: list[wire.Ask]) -> None:
    frame = wire.frame(wire.Kind.ASK, b"".join(ask.encode() for ask in asks))
    expected = None if len(asks) > wire.MAX_ASKS else told(frame)
    assert seen(frame) == expected
    assert (expected is None) == (len(asks) > wire.MAX_ASKS)


@given(
    ask=_ASKS,
    cut=some.integers(0, 200),
    place=some.integers(0, 200),
    flip=some.integers(0, 255),
    rest=some.binary(max_size=20),
)
def test_broken_frames_are_never_read_otherwise(
    ask: wire.Ask, cut: int, place: int, flip: int, rest: bytes
) -> None:
    frame = bytearray(wire.frame(wire.Kind.ASK, ask.encode()) + rest)
    frame[place % len(frame)] ^= flip
    broken = bytes(frame[: len(frame) - cut] if cut < len(frame) else frame)
    assert seen(broken) == told(broken)


@given(noise=some.binary(max_size=300))
def test_noise_is_never_read_otherwise(noise: bytes) -> None:
    assert seen(noise) == told(noise)
