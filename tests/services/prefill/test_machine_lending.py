"""The prefill machine as a lender: what other prefill workers copy from here, and how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.prefill.core import events as on
from services.prefill.core.actions import Lookup, ReleasePool
from shared.errors import Code
from shared.ids import BlockHash, Epoch, RequestId, WorkerId
from shared.kv.hashing import block_hashes
from shared.wire.blocks import BlocksFound, LookupBlocks, ReleaseBlocks
from shared.wire.requests import Acknowledged, WorkerRef
from shared.wire.workers import WorkerLost
from tests.services.prefill.rig import (
    IDENTITY,
    LEASE_S,
    LONG,
    ME,
    POOL,
    Rig,
    code_of,
    expected_token,
    job,
    limits,
)

PEER = WorkerRef(WorkerId("prefill-1"), Epoch(4), "plane-peer")
OURS = replace(IDENTITY, namespace="tenant")
BLOCKS = block_hashes(OURS, LONG)


def lender(**settings: int) -> Rig:
    """A worker that holds the ten blocks of LONG, and nothing else to do."""
    rig = Rig(limits=limits(**settings))
    order = job("a", LONG)
    rig.start(order)
    rig.settle()
    rig.release("a")
    assert rig.held == 0 and rig.machine.idle
    return rig


def look_up(
    rig: Rig, blocks: Sequence[BlockHash], ticket: str = "loan", layout: str = "layout", at: int = 0
) -> object:
    lookup = LookupBlocks(PEER, layout, tuple(blocks), at)
    return rig.ask(lambda call: on.LookupArrived(call, lookup, ticket))


def give_back(rig: Rig, ticket: str = "loan", by: str = "prefill-1", bad: int = 0) -> object:
    release = ReleaseBlocks(WorkerId(by), ticket, BLOCKS[:bad])
    return rig.ask(lambda call: on.LoanReturned(call, release))


def test_the_leading_run_is_lent_until_the_reader_is_done() -> None:
    rig = lender()
    found = look_up(rig, (*BLOCKS[4:], BlockHash("0" * 32)), at=4)
    assert isinstance(found, BlocksFound) and found.owner == ME
    assert [(ref.position, ref.block) for ref in found.pages] == list(enumerate(BLOCKS[4:], 4))
    pairs = [(ref.page, ref.generation) for ref in found.pages]
    sums = rig.engine.checksums([ref.page for ref in found.pages])
    assert tuple(sums) == tuple(ref.checksum for ref in found.pages)
    assert rig.held == 6 and not rig.machine.idle
    read = rig.machine.open_read("loan", pairs, rig.clock.now())
    assert read is not None
    assert give_back(rig) == Acknowledged()
    assert rig.held == 6, "the read goes on"
    rig.send(on.ReadEnded(read))
    assert rig.held == 0 and rig.machine.idle
    assert rig.machine.open_read("loan", pairs, rig.clock.now()) is None
    assert rig.machine.counters["blocks_lent"] == 6


def test_nothing_is_lent_that_is_not_there() -> None:
    rig = lender()
    found = look_up(rig, block_hashes(OURS, range(50, 70)))
    assert isinstance(found, BlocksFound) and not found.pages
    assert rig.machine.idle


def test_other_layouts_too_many_readers_and_a_leaving_worker_lend_nothing() -> None:
    rig = lender(loan_limit=1)
    assert code_of(look_up(rig, BLOCKS, layout="other")) == Code.INCOMPATIBLE_WORKERS
    assert isinstance(look_up(rig, BLOCKS), BlocksFound)
    assert code_of(look_up(rig, BLOCKS, "second")) == Code.QUEUE_FULL
    give_back(rig)
    rig.send(on.DrainStarted())
    assert code_of(look_up(rig, BLOCKS, "third")) == Code.DRAINING


def test_a_loan_ends_with_its_lease_its_reader_or_the_drain() -> None:
    rig = lender()
    look_up(rig, BLOCKS)
    rig.tick(LEASE_S)
    assert rig.held == 0 and rig.machine.idle
    look_up(rig, BLOCKS, "second")
    rig.send(on.PeerLost(WorkerLost(PEER.worker, "prefill", Epoch(3), Epoch(1), "silent")))
    assert rig.held == 10, "an older incarnation"
    rig.send(on.PeerLost(WorkerLost(PEER.worker, "prefill", PEER.epoch, Epoch(1), "silent")))
    assert rig.held == 0
    look_up(rig, BLOCKS, "third")
    rig.send(on.DrainStarted())
    rig.send(on.DrainExpired())
    assert rig.held == 0 and rig.machine.idle


def test_only_the_reader_ends_its_loan_and_names_damaged_blocks() -> None:
    rig = lender()
    look_up(rig, BLOCKS)
    give_back(rig, by="prefill-2", bad=10)
    give_back(rig, ticket="nobody's")
    assert rig.held == 10 and rig.machine.counters["late_events"] == 2
    give_back(rig, bad=1)
    assert rig.machine.counters["blocks_dropped"] == 10, "the first one and all after it"
    found = look_up(rig, BLOCKS, "second")
    assert isinstance(found, BlocksFound) and not found.pages


@pytest.mark.parametrize("pool", [None, POOL])
def test_a_job_copies_from_the_peer_that_placement_named(pool: WorkerRef | None) -> None:
    """Both ends: the very answer of one machine feeds another one."""
    owner, rig = lender(), Rig()
    rig.start(job("b", LONG, pool=pool, peer=PEER))
    (asked,) = rig.seen(Lookup)
    assert asked.peer and asked.pool == PEER
    found = look_up(owner, asked.lookup.blocks)
    assert isinstance(found, BlocksFound)
    rig.pool = {ref.block: (ref.checksum, owner.read(ref.page)) for ref in found.pages if ref.block}
    rig.lookups.clear()
    rig.send(on.PoolFound(asked.request, asked.attempt, found, asked.peer))
    rig.pull()
    (returned,) = rig.seen(ReleasePool)
    assert returned.peer and returned.release.ticket == "loan"
    rig.settle()
    entry = rig.first_tokens()[RequestId("b")]
    assert (entry.token_ids, entry.cached_tokens) == ((expected_token(LONG),), 40)
    counts = rig.machine.counters
    assert (counts["peer_blocks"], counts["pool_blocks"]) == (10, 0)


def test_a_source_that_is_the_pool_node_is_no_peer() -> None:
    rig = Rig()
    rig.start(job("b", LONG, pool=POOL, peer=POOL))
    (asked,) = rig.seen(Lookup)
    assert not asked.peer
