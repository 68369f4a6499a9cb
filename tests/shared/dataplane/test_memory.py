"""The fabric's nastiness: it does what its switches say, and never breaks the promise of `read`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from shared.dataplane.memory import Landing, MemoryFabric, MemoryPlane
from shared.dataplane.plane import PageRead
from shared.dataplane.weather import Mishap, Weather
from shared.errors import Code, TransferError
from tests.shared.dataplane.pages import PAGES, TICKET, ArrayPages, TicketGuard, reads, until

SHORT_S = 0.02
LONG_S = 20.0
EIGHT = reads([(page, page) for page in range(8)])


class Side:
    def __init__(self, plane: MemoryPlane) -> None:
        self.plane = plane
        self.pages = ArrayPages(PAGES, 64)
        self.guard = TicketGuard()
        plane.register(self.pages, self.guard)

    def landed(self, pages: Sequence[PageRead]) -> int:
        return sum(not self.pages.untouched([page.target]) for page in pages)


async def sides(fabric: MemoryFabric) -> tuple[Side, Side]:
    owner, reader = Side(fabric.plane("owner")), Side(fabric.plane("reader"))
    owner.pages.stamp()
    await owner.plane.start()
    await reader.plane.start()
    return owner, reader


async def fails(side: Side, timeout_s: float = SHORT_S) -> TransferError:
    with pytest.raises(TransferError) as failure:
        await side.plane.read("memory:owner", TICKET, EIGHT, timeout_s)
    return failure.value


@pytest.mark.parametrize(
    ("mishap", "landed"),
    [(Mishap.REFUSED, 0), (Mishap.LATE, 0), (Mishap.TORN, 4), (Mishap.LOST, 4)],
)
async def test_mishaps_that_fail_a_read(mishap: Mishap, landed: int) -> None:
    fabric = MemoryFabric()
    owner, reader = await sides(fabric)
    fabric.script(mishap)
    failure = await fails(reader)
    assert failure.settled
    assert failure.code is {
        Mishap.REFUSED: Code.STALE,
        Mishap.LOST: Code.WORKER_LOST,
    }.get(mishap, Code.TRANSFER_FAILED)
    assert reader.landed(EIGHT) == landed
    assert not owner.guard.open
    fabric.release()
    await asyncio.sleep(0)
    assert reader.landed(EIGHT) == landed
    assert (await reader.plane.read("memory:owner", TICKET, EIGHT, LONG_S)).pages == 8


@pytest.mark.parametrize("mishap", [Mishap.LATE, Mishap.TORN])
async def test_what_is_late_arrives_when_released(mishap: Mishap) -> None:
    fabric = MemoryFabric()
    owner, reader = await sides(fabric)
    fabric.script(mishap)
    read = asyncio.create_task(reader.plane.read("memory:owner", TICKET, EIGHT, LONG_S))
    half = 0 if mishap is Mishap.LATE else 4
    await until(lambda: bool(owner.guard.open) and reader.landed(EIGHT) == half)
    fabric.release()
    await read
    assert reader.landed(EIGHT) == 8


async def test_straggling_bytes_land_after_giving_up_but_before_it_is_told() -> None:
    fabric = MemoryFabric()
    owner, reader = await sides(fabric)
    fabric.script(Mishap.STRAGGLING)
    assert (await fails(reader)).settled
    assert reader.landed(EIGHT) == 8
    assert not owner.guard.open


async def test_unsettled_bytes_land_in_whatever_the_pages_are_by_then() -> None:
    fabric = MemoryFabric()
    owner, reader = await sides(fabric)
    fabric.script(Mishap.UNSETTLED)
    assert not (await fails(reader)).settled
    assert owner.guard.open, "the owner cannot know that the read is over"
    reader.pages.array[:] = 0xEE
    fabric.release()
    assert reader.landed(EIGHT) == 4
    assert not owner.guard.open


async def test_forgetting_the_peer_settles_it() -> None:
    fabric = MemoryFabric()
    owner, reader = await sides(fabric)
    fabric.script(Mishap.UNSETTLED)
    await fails(reader)
    reader.pages.array[:] = 0xEE
    await reader.plane.forget("memory:owner")
    fabric.release()
    assert reader.landed(EIGHT) == 0
    assert not owner.guard.open


async def test_a_gate_decides_when_each_page_lands() -> None:
    fabric = MemoryFabric(weather=Weather(shuffled=True, twice=True), seed=4)
    owner, reader = await sides(fabric)
    landings: list[Landing] = []

    async def gate(landing: Landing) -> None:
        landings.append(landing)

    fabric.gate = gate
    await reader.plane.read("memory:owner", TICKET, EIGHT, LONG_S)
    order = [landing.page.target for landing in landings]
    assert sorted(order) == sorted([*range(8)] * 2)
    assert order != sorted(order)
    assert np.array_equal(reader.pages.array[:8], owner.pages.array[:8])
    assert {(landing.reader, landing.owner) for landing in landings} == {("reader", "owner")}


async def test_a_killed_reader_frees_the_owner() -> None:
    fabric = MemoryFabric()
    owner, reader = await sides(fabric)
    fabric.script(Mishap.LATE)
    read = asyncio.create_task(reader.plane.read("memory:owner", TICKET, EIGHT, LONG_S))
    await until(lambda: bool(owner.guard.open))
    fabric.kill("reader")
    with pytest.raises(TransferError):
        await read
    assert not owner.guard.open
    assert reader.landed(EIGHT) == 0


async def test_the_same_seed_gives_the_same_weather() -> None:
    rough = Weather(refused=0.2, late=0.2, torn=0.2, lost=0.2, unsettled=0.1, straggling=0.05)

    async def outcomes(seed: int) -> list[str]:
        fabric = MemoryFabric(seed, rough)
        _, reader = await sides(fabric)
        found = []
        for _ in range(40):
            try:
                await reader.plane.read("memory:owner", TICKET, EIGHT, 0.02)
                found.append("read")
            except TransferError as error:
                found.append(f"{error.code} {error.settled} {reader.landed(EIGHT)}")
            reader.pages.array[:] = 0xEE
        return found

    first, again, other = await outcomes(1), await outcomes(1), await outcomes(2)
    assert first == again
    assert first != other
    assert len(set(first)) > 4
