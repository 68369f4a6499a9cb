"""The prefix index equals the union of the workers' blocks after any weather."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.prefixes import BlockEvent, PrefixIndex
from shared.ids import BlockHash, Epoch, WorkerId
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.workers import BlockCount
from tests.services.scheduler.builders import names

W = WorkerId("prefill-0")
V = WorkerId("prefill-1")


def stored(sequence: int, *blocks: int, worker: WorkerId = W, epoch: int = 1) -> BlocksStored:
    return BlocksStored(worker, Epoch(epoch), sequence, "device", None, names(*blocks))


def removed(sequence: int, *blocks: int) -> BlocksRemoved:
    return BlocksRemoved(W, Epoch(1), sequence, "device", names(*blocks))


def index(*workers: WorkerId) -> PrefixIndex:
    found = PrefixIndex()
    for worker in workers or (W,):
        found.follow(worker, Epoch(1))
    return found


def test_depth_is_the_number_of_leading_blocks() -> None:
    prefixes = index(W, V)
    prefixes.apply(stored(1, 1, 2, 3))
    prefixes.apply(stored(1, 1, worker=V))
    assert prefixes.depths(names(1, 2, 3, 4), 0.0) == {W: 3, V: 1}
    assert prefixes.depths(names(2, 3), 0.0) == {W: 2}
    assert prefixes.depths(names(9), 0.0) == {}


def test_br_063_a_forgotten_worker_has_no_entries_also_for_late_events() -> None:
    prefixes = index()
    prefixes.apply(stored(1, 1, 2))
    prefixes.forget(W)
    assert not prefixes.apply(stored(2, 3))
    assert prefixes.blocks == 0 and prefixes.refused == 1
    prefixes.check()


def test_br_062_a_clear_event_empties_the_worker() -> None:
    prefixes = index()
    prefixes.apply(stored(1, 1, 2))
    prefixes.apply(BlocksCleared(W, Epoch(1), 2))
    assert prefixes.depths(names(1, 2), 0.0) == {}


def test_an_older_epoch_is_refused_and_a_newer_one_starts_empty() -> None:
    prefixes = index()
    prefixes.apply(stored(1, 1))
    prefixes.follow(W, Epoch(2))
    prefixes.apply(stored(2, 2))
    assert prefixes.blocks == 0 and prefixes.refused == 1


def test_a_gap_asks_once_and_the_snapshot_repairs_it() -> None:
    prefixes = index()
    prefixes.apply(stored(1, 1))
    assert prefixes.apply(stored(3, 3))
    assert not prefixes.apply(stored(4, 4))
    part = BlockSnapshot(W, Epoch(1), 3, "device", 0, 2, names(1, 2))
    assert prefixes.take_part(part) == (1, 3)
    assert prefixes.depths(names(1, 2), 0.0) == {W: 2}
    rest = BlockSnapshot(W, Epoch(1), 3, "device", 1, 2, names(3))
    assert prefixes.take_part(rest) is None
    assert prefixes.depths(names(1, 2, 3, 4), 0.0) == {W: 4}
    prefixes.check()


def test_a_snapshot_that_moved_on_between_parts_starts_again() -> None:
    prefixes = index()
    prefixes.apply(stored(2, 2))
    prefixes.take_part(BlockSnapshot(W, Epoch(1), 2, "device", 0, 2, names(1)))
    moved = BlockSnapshot(W, Epoch(1), 5, "device", 1, 2, names(9))
    assert prefixes.take_part(moved) == (0, 0)
    prefixes.abandon_snapshot(W, Epoch(1))
    assert prefixes.reconcile(W, Epoch(1), BlockCount(5, 1, "f" * 32))
    assert prefixes.resyncs == {"gap": 1, "new": 1}


def test_a_beat_that_overtakes_its_events_is_forgiven_once() -> None:
    prefixes = index()
    prefixes.apply(stored(1, 1))
    late = BlockCount(5, 5, "f" * 32)
    assert not prefixes.reconcile(W, Epoch(1), late)
    assert prefixes.reconcile(W, Epoch(1), late)
    assert prefixes.resyncs == {"behind": 1}


def test_events_during_a_snapshot_are_not_lost() -> None:
    """The snapshot is true at 3; what happened at 4 and 5 meanwhile still counts afterwards."""
    prefixes = index()
    prefixes.apply(stored(1, 1))
    prefixes.apply(stored(2, 2))
    assert prefixes.reconcile(W, Epoch(1), BlockCount(2, 7, "f" * 32))
    assert prefixes.take_part(BlockSnapshot(W, Epoch(1), 3, "device", 0, 2, names(1, 3))) == (1, 3)
    for event in (stored(3, 3), stored(4, 4), removed(5, 3)):
        assert not prefixes.apply(event)
    last = BlockSnapshot(W, Epoch(1), 3, "device", 1, 2, names(9))
    assert prefixes.take_part(last) is None
    assert [bool(prefixes.depths(names(n), 0.0)) for n in (1, 2, 3, 4, 9)] == [
        True,
        False,
        False,
        True,
        True,
    ]
    prefixes.check()
    assert not prefixes.apply(stored(6, 6))
    assert prefixes.depths(names(6), 0.0) == {W: 1}


def test_predictions_count_until_they_expire_and_never_as_facts() -> None:
    prefixes = index()
    prefixes.predict(W, names(1, 2), 0.0)
    assert prefixes.depths(names(1, 2), 1.0) == {W: 2}
    assert prefixes.depths(names(1, 2), 6.0) == {}
    prefixes.expire(6.0)
    assert prefixes.blocks == 0
    prefixes.check()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_any_loss_duplication_and_reordering_ends_equal(seed: int, length: int) -> None:
    """A worker's real history, delivered badly, then one heartbeat and its snapshot."""
    chance = random.Random(seed)
    held: set[BlockHash] = set()
    history: list[BlockEvent] = []
    for sequence in range(1, length + 1):
        block = names(chance.randrange(12))[0]
        if block in held:
            held.remove(block)
            history.append(BlocksRemoved(W, Epoch(1), sequence, "device", (block,)))
        else:
            held.add(block)
            history.append(BlocksStored(W, Epoch(1), sequence, "device", None, (block,)))
    delivered = [event for event in history for _ in range(chance.choice((0, 1, 1, 2)))]
    chance.shuffle(delivered)
    prefixes = index()
    asked = sum(prefixes.apply(event) for event in delivered) > 0
    digest = sum(int(block, 16) for block in held) % (1 << 128)
    count = BlockCount(length, len(held), f"{digest:032x}")
    beats = [prefixes.reconcile(W, Epoch(1), count) for _ in range(2)]
    if any(beats) or asked:
        part = BlockSnapshot(W, Epoch(1), length, "device", 0, 1, tuple(sorted(held)))
        assert prefixes.take_part(part) is None
    prefixes.check()
    assert not prefixes.reconcile(W, Epoch(1), count)
    assert {b for b in names(*range(12)) if prefixes.depths((b,), 0.0)} == held


def test_check_notices_a_planted_fault() -> None:
    prefixes = index()
    prefixes.apply(stored(1, 1))
    prefixes._table._young.clear()
    with pytest.raises(AssertionError):
        prefixes.check()
