"""What every data plane promises, asked of the memory adapter, of UCX over both transports and
without its compiled part, and of NIXL where it is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import AsyncIterator

import numpy as np
import pytest

from shared.dataplane.plane import PageRead
from shared.errors import Code, TransferError
from shared.ids import Generation, PageId
from tests.shared.dataplane.pages import CANARY, PAGES, TICKET, reads
from tests.shared.dataplane.worlds import End, MemoryWorld, UcxWorld, World, owner_and_reader

LONG_S = 20.0
SHORT_S = 0.2

_TRANSPORTS = {"ucx-shm": "auto", "ucx-tcp": "tcp", "ucx-plain": "auto", "nixl": "nixl"}
_NIXL = any(importlib.util.find_spec(name) for name in ("nixl_cu12", "nixl_cu13"))
_WITH_NIXL = pytest.mark.skipif(not _NIXL, reason="NIXL, an extra, is not installed")
_UCX = ("ucx-shm", "ucx-tcp", "ucx-plain")


@pytest.fixture(params=["memory", *_UCX, pytest.param("nixl", marks=_WITH_NIXL)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    kind = request.param
    built: MemoryWorld | UcxWorld = MemoryWorld()
    if kind != "memory":
        built = UcxWorld(_TRANSPORTS[kind], compiled=kind != "ucx-plain")
    yield built
    ends = tuple(built.ends)
    await built.close()
    await asyncio.sleep(0)
    assert [end.guard.open for end in ends] == [set()] * len(ends), "a read was left open"
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == [], "tasks outlived their plane"


def arrived(reader: End, owner: End, pairs: list[tuple[int, int]]) -> bool:
    return all(
        np.array_equal(reader.pages.array[target], owner.pages.array[source])
        for source, target in pairs
    )


@pytest.mark.parametrize("page_bytes", [64, 4096, 65536])
async def test_pages_arrive_where_they_should_and_nowhere_else(
    world: World, page_bytes: int
) -> None:
    owner, reader = await owner_and_reader(world, page_bytes)
    for pairs, runs in (
        ([(3, 5)], 1),
        ([(10, 20), (11, 21), (12, 22), (13, 23)], 1),
        ([(0, 63), (2, 62), (4, 61)], 3),
        ([(31, 41), (30, 40), (32, 50), (33, 51)], 2),
    ):
        reader.pages.array[:] = CANARY
        report = await reader.plane.read(owner.plane.address, TICKET, reads(pairs), LONG_S)
        assert arrived(reader, owner, pairs)
        targets = {target for _, target in pairs}
        assert reader.pages.untouched([page for page in range(PAGES) if page not in targets])
        assert (report.pages, report.bytes) == (len(pairs), len(pairs) * page_bytes)
        assert report.runs == runs
        assert report.seconds > 0
    assert owner.guard.opened == 4


async def test_an_empty_read_moves_nothing(world: World) -> None:
    owner, reader = await owner_and_reader(world)
    report = await reader.plane.read(owner.plane.address, TICKET, [], LONG_S)
    assert (report.pages, report.bytes, report.runs) == (0, 0, 0)
    assert owner.guard.opened == 0


async def test_many_random_reads(world: World) -> None:
    owner, reader = await owner_and_reader(world)
    draw = random.Random(7)
    for _ in range(25):
        count = draw.randint(1, PAGES)
        pairs = list(
            zip(draw.sample(range(PAGES), count), draw.sample(range(PAGES), count), strict=True)
        )
        reader.pages.array[:] = CANARY
        await reader.plane.read(owner.plane.address, TICKET, reads(pairs), LONG_S)
        assert arrived(reader, owner, pairs)
        targets = {target for _, target in pairs}
        assert reader.pages.untouched([page for page in range(PAGES) if page not in targets])


async def test_concurrent_reads_of_one_peer(world: World) -> None:
    owner, reader = await owner_and_reader(world)
    parts = [[(page, page) for page in range(start, start + 4)] for start in range(0, PAGES, 4)]
    async with asyncio.TaskGroup() as group:
        for pairs in parts:
            group.create_task(
                reader.plane.read(owner.plane.address, TICKET, reads(pairs), LONG_S), name="read"
            )
    assert arrived(reader, owner, [pair for pairs in parts for pair in pairs])


async def test_concurrent_reads_of_several_peers_and_back(world: World) -> None:
    """Everyone owns and reads at once: links in both directions between the same two planes."""
    ends = [await world.end() for _ in range(3)]
    for number, end in enumerate(ends):
        end.pages.array[:32] = number
    async with asyncio.TaskGroup() as group:
        for number, reader in enumerate(ends):
            for other, owner in enumerate(ends):
                if other != number:
                    pairs = [(page, 32 + 8 * other + page) for page in range(8)]
                    group.create_task(
                        reader.plane.read(owner.plane.address, TICKET, reads(pairs), LONG_S),
                        name="read",
                    )
    for number, reader in enumerate(ends):
        for other in range(3):
            if other != number:
                assert (reader.pages.array[32 + 8 * other : 40 + 8 * other] == other).all()


async def test_what_the_owner_refuses_never_lands(world: World) -> None:
    owner, reader = await owner_and_reader(world)
    good = reads([(1, 1)])
    stale = [PageRead(PageId(1), Generation(9), PageId(1))]
    for ticket, pages in (
        ("another ticket", good),
        ("", good),
        (TICKET, stale),
        (TICKET, [*good, PageRead(PageId(2), Generation(99), PageId(2))]),
        (TICKET, reads([(PAGES, 1)])),
        (TICKET, reads([(PAGES - 1, 1), (PAGES, 2)])),
        (TICKET, reads([(2**32 - 1, 1)])),
    ):
        with pytest.raises(TransferError) as refusal:
            await reader.plane.read(owner.plane.address, ticket, pages, LONG_S)
        assert (refusal.value.code, refusal.value.settled) == (Code.STALE, True)
    assert owner.guard.opened == 0
    await reader.plane.read(owner.plane.address, TICKET, reads([(5, 5)]), LONG_S)
    owner.guard.refusing = True
    with pytest.raises(TransferError) as refusal:
        await reader.plane.read(owner.plane.address, TICKET, good, LONG_S)
    assert refusal.value.code is Code.STALE
    assert reader.pages.untouched([page for page in range(PAGES) if page != 5])
    owner.guard.refusing = False
    await reader.plane.read(owner.plane.address, TICKET, good, LONG_S)
    assert arrived(reader, owner, [(1, 1), (5, 5)])


async def test_pages_of_another_size_are_refused(world: World) -> None:
    owner, reader = await world.end(4096), await world.end(8192)
    with pytest.raises(TransferError) as refusal:
        await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    assert refusal.value.code is Code.STALE
    assert reader.pages.untouched(range(PAGES))


async def test_pages_of_another_model_or_layout_are_refused_before_a_byte_moves(
    world: World,
) -> None:
    """BR-011, BR-046: when the link opens, at once, and by both directions alike."""
    ours, other = await world.end(content="model a"), await world.end(content="model b")
    untold = await world.end()
    loop = asyncio.get_running_loop()
    for owner, reader in ((ours, other), (other, ours)):
        owner.pages.stamp()
        reader.pages.array[:] = CANARY
        started_s = loop.time()
        with pytest.raises(TransferError) as refusal:
            await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
        assert (refusal.value.code, refusal.value.settled) == (Code.INCOMPATIBLE_WORKERS, True)
        assert loop.time() - started_s < 2
        assert reader.pages.untouched(range(PAGES))
        assert owner.guard.opened == 0
    ours.pages.stamp()
    same = await world.end(content="model a")
    for reader in (same, untold):
        await reader.plane.read(ours.plane.address, TICKET, reads([(2, 2)]), LONG_S)
        assert arrived(reader, ours, [(2, 2)])


async def test_targets_of_our_own_are_checked_before_anything_is_sent(world: World) -> None:
    owner, reader = await owner_and_reader(world)
    for pairs in ([(1, 2), (3, 2)], [(1, PAGES)], [(1, -1)]):
        with pytest.raises(TransferError) as refusal:
            await reader.plane.read(owner.plane.address, TICKET, reads(pairs), LONG_S)
        assert refusal.value.code is Code.INVALID_PARAMETER
    assert owner.guard.opened == 0


async def test_nobody_there(world: World) -> None:
    reader, gone = await world.end(), await world.end()
    address = gone.plane.address
    await gone.plane.close()
    started_s = asyncio.get_running_loop().time()
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(address, TICKET, reads([(1, 1)]), LONG_S)
    assert failure.value.settled
    assert asyncio.get_running_loop().time() - started_s < 5


@pytest.mark.process
async def test_after_a_timeout_nothing_lands(world: World) -> None:
    owner, reader = await world.far_owner(), await world.end()
    await reader.plane.read(owner.address, TICKET, reads([(0, 0)]), LONG_S)
    reader.pages.array[:] = CANARY
    await owner.stall()
    started_s = asyncio.get_running_loop().time()
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(owner.address, TICKET, reads([(1, 1), (9, 9)]), SHORT_S)
    assert failure.value.settled
    assert asyncio.get_running_loop().time() - started_s < SHORT_S + 2
    await owner.resume()
    await reader.plane.read(owner.address, TICKET, reads([(2, 2)]), LONG_S)
    assert reader.pages.untouched([page for page in range(PAGES) if page != 2])


@pytest.mark.process
async def test_after_a_cancellation_nothing_lands(world: World) -> None:
    owner, reader = await world.far_owner(), await world.end()
    await reader.plane.read(owner.address, TICKET, reads([(0, 0)]), LONG_S)
    reader.pages.array[:] = CANARY
    await owner.stall()
    read = asyncio.create_task(
        reader.plane.read(owner.address, TICKET, reads([(1, 1), (9, 9)]), LONG_S)
    )
    await asyncio.sleep(0.05)
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    await owner.resume()
    await reader.plane.read(owner.address, TICKET, reads([(2, 2)]), LONG_S)
    assert reader.pages.untouched([page for page in range(PAGES) if page != 2])


async def test_cancelled_at_any_moment(world: World) -> None:
    """Healthy owner, cancelled after n turns of the loop: once it raised, the pages are still."""
    owner, reader = await owner_and_reader(world, 65536)
    await reader.plane.read(owner.plane.address, TICKET, reads([(0, 0)]), LONG_S)
    everything = reads([(page, PAGES - 1 - page) for page in range(PAGES)])
    for turns in (0, 1, 2, 3, 4, 5, 7, 9, 12, 16, 24, 40):
        reader.pages.array[:] = CANARY
        read = asyncio.create_task(
            reader.plane.read(owner.plane.address, TICKET, everything, LONG_S)
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        read.cancel()
        if turns % 2:
            await asyncio.sleep(0)
            read.cancel()  # twice: the second one must not cut the settling short
        await asyncio.wait({read})
        before = reader.pages.array.copy()
        # The link was closed by the cancellation above or not: the next read works anyhow.
        other = await world.end(65536)
        await other.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
        assert np.array_equal(before, reader.pages.array)
        await other.plane.close()


@pytest.mark.process
async def test_a_killed_peer_is_an_error_and_its_successor_is_read(world: World) -> None:
    """BR-070: a pending receive ends when the peer dies."""
    owner, reader = await world.far_owner(), await world.end()
    await reader.plane.read(owner.address, TICKET, reads([(0, 0)]), LONG_S)
    reader.pages.array[:] = CANARY
    await owner.stall()
    read = asyncio.create_task(
        reader.plane.read(owner.address, TICKET, reads([(1, 1), (9, 9)]), LONG_S)
    )
    await asyncio.sleep(0.05)
    started_s = asyncio.get_running_loop().time()
    await owner.kill()
    with pytest.raises(TransferError) as failure:
        await read
    assert failure.value.settled
    assert failure.value.code is Code.WORKER_LOST
    assert asyncio.get_running_loop().time() - started_s < 5
    with pytest.raises(TransferError):
        await reader.plane.read(owner.address, TICKET, reads([(1, 1)]), LONG_S)
    assert reader.pages.untouched(range(PAGES))
    await owner.restart()
    await reader.plane.read(owner.address, TICKET, reads([(3, 3)]), LONG_S)
    assert reader.pages.untouched([page for page in range(PAGES) if page != 3])
    assert not reader.pages.untouched([3])


@pytest.mark.process
async def test_a_stalled_peer_holds_up_nobody_else(world: World) -> None:
    owner, reader, other = await world.far_owner(), await world.end(), await world.end()
    other.pages.stamp()
    await reader.plane.read(owner.address, TICKET, reads([(0, 0)]), LONG_S)
    await owner.stall()
    stuck = asyncio.create_task(reader.plane.read(owner.address, TICKET, reads([(1, 1)]), LONG_S))
    await asyncio.sleep(0)
    await reader.plane.read(other.plane.address, TICKET, reads([(8, 8)]), 5.0)
    assert arrived(reader, other, [(8, 8)])
    assert not stuck.done()
    await owner.resume()
    assert (await stuck).pages == 1


async def test_forgetting_a_peer_ends_its_link_only(world: World) -> None:
    owner, reader = await owner_and_reader(world)
    await reader.plane.forget("never met")
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    await reader.plane.forget(owner.plane.address)
    await reader.plane.forget(owner.plane.address)
    await reader.plane.read(owner.plane.address, TICKET, reads([(2, 2)]), LONG_S)
    assert arrived(reader, owner, [(1, 1), (2, 2)])


async def test_closing_twice_and_reading_afterwards(world: World) -> None:
    owner, reader = await owner_and_reader(world)
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    await reader.plane.close()
    await reader.plane.close()
    with pytest.raises(TransferError):
        await reader.plane.read(owner.plane.address, TICKET, reads([(2, 2)]), LONG_S)
    assert reader.pages.untouched([2])


@pytest.mark.parametrize("side", ["owner", "reader"])
async def test_closing_in_the_middle_of_a_read(world: World, side: str) -> None:
    owner, reader = await owner_and_reader(world, 65536)
    read = asyncio.create_task(
        reader.plane.read(
            owner.plane.address, TICKET, reads([(page, page) for page in range(PAGES)]), LONG_S
        )
    )
    for _ in range(6):
        await asyncio.sleep(0)
    await (owner if side == "owner" else reader).plane.close()
    await asyncio.wait({read})
    failure = read.exception()
    assert failure is None or (isinstance(failure, TransferError) and failure.settled)
    before = reader.pages.array.copy()
    await asyncio.sleep(0.05)
    assert np.array_equal(before, reader.pages.array)


async def test_a_warm_peer_is_read_like_any_other(world: World) -> None:
    owner, reader = await owner_and_reader(world)
    reader.plane.warm(owner.plane.address)
    reader.plane.warm(owner.plane.address)
    await asyncio.sleep(0)
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    reader.plane.warm(owner.plane.address)
    await reader.plane.read(owner.plane.address, TICKET, reads([(2, 2)]), LONG_S)
    assert arrived(reader, owner, [(1, 1), (2, 2)])
    assert owner.guard.opened == 2


async def test_warming_never_fails(world: World) -> None:
    """Nobody there, no address at all, a closed plane: the read tells, not the warming."""
    reader, gone = await world.end(), await world.end()
    address = gone.plane.address
    await gone.plane.close()
    for peer in (address, "no address", ""):
        reader.plane.warm(peer)
    with pytest.raises(TransferError):
        await reader.plane.read(address, TICKET, reads([(1, 1)]), LONG_S)
    await reader.plane.close()
    reader.plane.warm(address)


async def test_a_small_read_does_not_wait_for_a_large_one(world: World) -> None:
    """Both on one link, each for a request of its own."""
    owner, reader = await owner_and_reader(world, 1 << 20)
    owner.guard.tickets.add("another request")
    await reader.plane.read(owner.plane.address, TICKET, reads([(63, 63)]), LONG_S)
    order: list[str] = []

    async def read(name: str, ticket: str, pages: range) -> None:
        pairs = [(page, page) for page in pages]
        await reader.plane.read(owner.plane.address, ticket, reads(pairs), LONG_S)
        order.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(read("large", TICKET, range(60)))
        await asyncio.sleep(0)
        group.create_task(read("small", "another request", range(60, 62)))
    assert order == ["small", "large"]
    assert arrived(reader, owner, [(page, page) for page in range(62)])


async def test_what_is_observed(world: World) -> None:
    owner, reader = await owner_and_reader(world)
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1), (2, 2)]), LONG_S)
    with pytest.raises(TransferError):
        await reader.plane.read(owner.plane.address, "wrong", reads([(1, 1)]), LONG_S)
    pulled = {name: size for name, size in reader.observer.bytes.items() if "pulled" in name}
    assert list(pulled.values()) == [8192]
    assert sum(reader.observer.failures.values()) == 1
