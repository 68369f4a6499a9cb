"""Pages between workers of any numbers of tensor-parallel ranks: the same bytes everywhere."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from shared.dataplane.memory import MemoryFabric
from shared.dataplane.plane import Plane
from shared.dataplane.sharded import ShardedPlane
from shared.dataplane.weather import Mishap
from shared.engine.host_pages import HostPages
from shared.engine.sharded_pages import ShardedPages
from shared.errors import Code, TransferError
from shared.ids import Epoch, PageId, WorkerId
from shared.kv.layout import PageLayout
from shared.wire.requests import WorkerRef
from tests.shared.dataplane.pages import TICKET, TicketGuard, reads

LAYOUT = PageLayout(layers=3, kv_heads=4, head_dim=8, block_tokens=4, dtype="float32")
PAGES = 48
MANY = [(page, (5 * page + 3) % PAGES) for page in range(40)]
LONG_S = 20.0


class Worker:
    """Pages in so many pieces, behind a plane of as many lanes."""

    def __init__(
        self, fabric: MemoryFabric, name: str, parts: int, layout: PageLayout = LAYOUT
    ) -> None:
        self.lanes = 0
        self.guard = TicketGuard()
        size = layout.shard(parts).page_bytes
        self.pages = ShardedPages(layout, [HostPages(PAGES, size) for _ in range(parts)])

        def lane() -> Plane:
            self.lanes += 1
            return fabric.plane(f"{name}-{self.lanes}")

        self.plane = ShardedPlane(lane)
        self.plane.register(self.pages, self.guard, f"model {layout.digest}")

    def stamp(self) -> Worker:
        """Content that depends on page, layer, head and byte, not on who holds it."""
        every = np.random.default_rng(5).integers(
            0, 256, (PAGES, LAYOUT.layers * 2, LAYOUT.kv_heads, 4 * 8 * 4), dtype=np.uint8
        )
        heads = LAYOUT.kv_heads // len(self.pages.parts)
        for index, part in enumerate(self.pages.parts):
            assert isinstance(part, HostPages)
            own = every[:, :, index * heads : (index + 1) * heads]
            part.bytes[:] = own.reshape(PAGES, -1)
        return self

    def sums(self, pages: list[int]) -> tuple[int, ...]:
        return self.pages.checksums([PageId(page) for page in pages], 1)


async def between(owner_parts: int, reader_parts: int) -> tuple[MemoryFabric, Worker, Worker]:
    fabric = MemoryFabric()
    owner = Worker(fabric, "owner", owner_parts).stamp()
    reader = Worker(fabric, "reader", reader_parts)
    await owner.plane.start()
    await reader.plane.start()
    ref = WorkerRef(WorkerId("owner"), Epoch(1), owner.plane.address)
    assert ref.ranks == owner_parts
    return fabric, owner, reader


@pytest.mark.parametrize("owner_parts", [1, 2, 4])
@pytest.mark.parametrize("reader_parts", [1, 2, 4])
async def test_any_number_of_ranks_reads_any_other(owner_parts: int, reader_parts: int) -> None:
    _, owner, reader = await between(owner_parts, reader_parts)
    report = await reader.plane.read(owner.plane.address, TICKET, reads(MANY), LONG_S)
    assert (report.pages, report.bytes) == (len(MANY), len(MANY) * LAYOUT.page_bytes)
    sources, targets = [page for page, _ in MANY], [page for _, page in MANY]
    assert reader.sums(targets) == owner.sums(sources)
    empty = [page for page in range(PAGES) if page not in targets]
    assert len(set(reader.sums(empty))) == 1
    assert not owner.guard.open
    await reader.plane.close()
    await owner.plane.close()


async def test_reads_of_one_owner_wait_for_each_other_and_do_not_mix() -> None:
    _, owner, reader = await between(2, 1)
    halves = (MANY[:20], MANY[20:])
    await asyncio.gather(
        *(reader.plane.read(owner.plane.address, TICKET, reads(half), LONG_S) for half in halves)
    )
    assert reader.sums([page for _, page in MANY]) == owner.sums([page for page, _ in MANY])


async def test_a_refusal_passes_through_and_touches_nothing() -> None:
    _, owner, reader = await between(2, 1)
    before = reader.sums(list(range(PAGES)))
    owner.guard.refusing = True
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(owner.plane.address, TICKET, reads(MANY), LONG_S)
    assert failure.value.code is Code.STALE
    assert failure.value.settled
    assert reader.sums(list(range(PAGES))) == before
    owner.guard.refusing = False
    await reader.plane.read(owner.plane.address, TICKET, reads(MANY), LONG_S)


async def test_bytes_that_land_late_land_in_pages_that_nobody_looks_at() -> None:
    fabric, owner, reader = await between(2, 1)
    fabric.script(Mishap.UNSETTLED)
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(owner.plane.address, TICKET, reads(MANY[:4]), 0.05)
    assert failure.value.settled
    before = reader.sums(list(range(PAGES)))
    fabric.release()
    assert reader.sums(list(range(PAGES))) == before
    await reader.plane.read(owner.plane.address, TICKET, reads(MANY), LONG_S)
    assert reader.sums([page for _, page in MANY]) == owner.sums([page for page, _ in MANY])
    await reader.plane.close()


async def test_equal_ranks_tell_when_one_lane_is_not_settled() -> None:
    fabric, owner, reader = await between(2, 2)
    fabric.script(Mishap.NONE, Mishap.UNSETTLED)
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(owner.plane.address, TICKET, reads(MANY[:4]), 0.05)
    assert not failure.value.settled


async def test_heads_that_do_not_divide_are_incompatible() -> None:
    _, _, reader = await between(1, 1)
    with pytest.raises(TransferError) as failure:
        await reader.plane.read("memory:a|memory:b|memory:c", TICKET, reads(MANY), LONG_S)
    assert failure.value.code is Code.INCOMPATIBLE_WORKERS
    assert "4 KV heads" in failure.value.message


async def test_other_models_are_refused_across_ranks_too() -> None:
    fabric = MemoryFabric()
    owner = Worker(fabric, "owner", 2).stamp()
    other = PageLayout(layers=4, kv_heads=4, head_dim=8, block_tokens=4, dtype="float32")
    reader = Worker(fabric, "reader", 1, other)
    await owner.plane.start()
    await reader.plane.start()
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(owner.plane.address, TICKET, reads(MANY), LONG_S)
    assert failure.value.code is Code.INCOMPATIBLE_WORKERS
