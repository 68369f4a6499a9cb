"""Lookups in a pool node: leases by ticket, reads under them, and how they end."""

from __future__ import annotations

import pytest

from services.kvpool.core.events import DrainBegun, LookupArrived, PeerLost, ReadEnded, Ticked
from shared.errors import Code
from shared.ids import Epoch, Generation, PageId
from shared.wire.blocks import BlocksFound, LookupBlocks
from shared.wire.requests import Acknowledged, Refused
from shared.wire.workers import WorkerLost
from tests.services.kvpool.rig import (
    BLOCK_TOKENS,
    OTHER,
    POOL,
    PREFILL,
    Rig,
    chain,
    checksum,
)


def reads(found: BlocksFound) -> list[tuple[PageId, Generation]]:
    return [(ref.page, ref.generation) for ref in found.pages]


def stored(*path: int, pages: int = 16) -> Rig:
    rig = Rig(pages=pages)
    rig.store(chain(*path))
    return rig


def test_lookup_lends_the_longest_held_prefix() -> None:
    rig = stored(1, 2, 3)
    found = rig.found(rig.lookup(chain(1, 2, 9)))
    assert (found.owner, found.lease_s) == (POOL, 30.0)
    assert [ref.block for ref in found.pages] == list(chain(1, 2))
    assert [ref.position for ref in found.pages] == [0, 1]
    assert [ref.checksum for ref in found.pages] == [checksum(block) for block in chain(1, 2)]
    assert {ref.tokens for ref in found.pages} == {BLOCK_TOKENS}
    assert rig.machine.cache.counts().leased == 2


def test_lookup_may_start_inside_a_sequence() -> None:
    rig = stored(1, 2, 3)
    found = rig.found(rig.lookup(chain(1, 2, 3)[1:], first=1))
    assert [ref.position for ref in found.pages] == [1, 2]


def test_miss_takes_no_lease() -> None:
    rig = stored(1)
    found = rig.found(rig.lookup(chain(2)))
    assert (found.pages, found.ticket) == ((), "")
    assert rig.machine.at_rest
    assert rig.machine.counts["lookups_missed"] == 1


def test_only_the_ticket_opens_pages_and_only_its_pages() -> None:
    rig = stored(1, 2, 3)
    found = rig.found(rig.lookup(chain(1, 2)))
    other = rig.found(rig.lookup(chain(1, 2, 3)))
    machine = rig.machine
    assert machine.open_read("forged", reads(found), 1.0) is None
    assert machine.open_read("", reads(found), 1.0) is None
    assert machine.open_read(found.ticket, reads(other), 1.0) is None
    stale = [(page, Generation(generation - 1)) for page, generation in reads(found)]
    assert machine.open_read(found.ticket, stale, 1.0) is None
    assert machine.open_read(found.ticket, reads(found), 1.0) is not None
    assert machine.counts["reads_refused"] == 4


def test_released_lease_cannot_be_read() -> None:
    rig = stored(1)
    found = rig.found(rig.lookup(chain(1)))
    rig.release(found.ticket)
    assert rig.machine.open_read(found.ticket, reads(found), 1.0) is None
    rig.release(found.ticket)
    assert isinstance(rig.replies[rig.calls], Acknowledged)
    assert rig.machine.counts["late_releases"] == 1


def test_br_019_expired_lease_cannot_be_read_before_or_after_the_sweep() -> None:
    rig = stored(1, 2)
    found = rig.found(rig.lookup(chain(1, 2)))
    for page in reads(found):
        assert rig.machine.open_read(found.ticket, [page], 30.0) is None
    rig.now = 30.0
    rig.feed(Ticked())
    assert rig.machine.open_read(found.ticket, reads(found), 30.0) is None
    assert rig.at_baseline()


def test_br_020_reading_protects_and_reading_again_works() -> None:
    rig = stored(1)
    for _ in range(2):
        found = rig.found(rig.lookup(chain(1)))
        read = rig.machine.open_read(found.ticket, reads(found), rig.now)
        assert read is not None
        rig.feed(ReadEnded(read))
        rig.now += 1.0
    assert rig.machine.cache.blocks() == chain(1)


def test_open_read_outlives_its_lease_and_its_page_is_not_reused() -> None:
    rig = stored(1, 2, pages=2)
    found = rig.found(rig.lookup(chain(1, 2)))
    read = rig.machine.open_read(found.ticket, reads(found), 1.0)
    assert read is not None
    rig.release(found.ticket)
    rig.store(chain(8))
    assert rig.machine.cache.blocks() == chain(1, 2)
    assert not rig.machine.at_rest
    rig.feed(ReadEnded(read))
    rig.feed(ReadEnded(read))
    rig.machine.check()
    assert rig.at_baseline()


def test_f43_eviction_before_a_lookup_is_a_miss() -> None:
    rig = stored(1, 2, pages=2)
    rig.store(chain(8, 9))
    assert rig.found(rig.lookup(chain(1, 2))).pages == ()


def test_another_worker_cannot_release_or_slander() -> None:
    rig = stored(1)
    found = rig.found(rig.lookup(chain(1)))
    rig.release(found.ticket, reader=OTHER, corrupted=chain(1))
    assert rig.machine.open_read(found.ticket, reads(found), 1.0) is not None
    assert rig.machine.cache.blocks() == chain(1)


def test_block_that_a_reader_found_damaged_is_forgotten() -> None:
    rig = stored(1, 2, 3)
    found = rig.found(rig.lookup(chain(1, 2)))
    rig.release(found.ticket, corrupted=[*chain(1, 2)[1:], *chain(7)])
    assert rig.machine.cache.blocks() == chain(1)
    assert rig.machine.counts["blocks_damaged"] == 1
    rig.store(chain(1, 2, 3))
    assert rig.machine.cache.blocks() == chain(1, 2, 3)


def test_leases_of_a_dead_reader_end() -> None:
    rig = stored(1)
    found = rig.found(rig.lookup(chain(1)))
    for epoch in (Epoch(PREFILL.epoch - 1), PREFILL.epoch):
        rig.feed(PeerLost(WorkerLost(PREFILL.worker, "prefill", epoch, Epoch(1), "silent")))
        assert rig.machine.at_rest is (epoch == PREFILL.epoch)
    assert rig.machine.open_read(found.ticket, reads(found), 1.0) is None


def test_readers_are_bounded() -> None:
    rig = Rig(leases=1)
    rig.store(chain(1))
    rig.lookup(chain(1))
    reply = rig.replies[rig.lookup(chain(1))]
    assert isinstance(reply, Refused)
    assert reply.code == Code.QUEUE_FULL


def test_draining_lends_nothing_and_waits_for_readers() -> None:
    rig = stored(1)
    found = rig.found(rig.lookup(chain(1)))
    rig.feed(DrainBegun())
    reply = rig.replies[rig.lookup(chain(1))]
    assert isinstance(reply, Refused)
    assert reply.code == Code.DRAINING
    assert not rig.machine.at_rest
    rig.release(found.ticket)
    assert rig.machine.at_rest


@pytest.mark.parametrize("layout", ["", "another"])
def test_br_011_other_layout_cannot_read(layout: str) -> None:
    rig = stored(1)
    call = rig.call()
    rig.feed(LookupArrived(call, LookupBlocks(PREFILL, layout, chain(1), 0), "t"))
    reply = rig.replies[call]
    assert isinstance(reply, Refused)
    assert reply.code == Code.INCOMPATIBLE_WORKERS


def test_br_014_unused_part_of_a_lookup_stays_readable_or_absent() -> None:
    rig = stored(*range(10), pages=10)
    found = rig.found(rig.lookup(chain(*range(10))))
    read = rig.machine.open_read(found.ticket, reads(found)[:6], 1.0)
    assert read is not None
    rig.feed(ReadEnded(read))
    rig.release(found.ticket)
    again = rig.found(rig.lookup(chain(*range(10))))
    assert len(again.pages) == 10
    assert rig.machine.open_read(again.ticket, reads(again)[6:], 1.0) is not None
