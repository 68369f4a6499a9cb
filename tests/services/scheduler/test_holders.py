"""The table of holders stays small, lookups stay exact, and what makes no sense is contained."""

from __future__ import annotations

import random

import pytest

from services.scheduler.core.holders import HolderTable
from services.scheduler.core.predictions import Predictions, marks
from services.scheduler.core.prefixes import PrefixIndex
from shared.ids import BlockHash, Epoch, WorkerId
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.workers import BlockCount
from tests.services.scheduler.builders import names

W = WorkerId("prefill-0")
V = WorkerId("prefill-1")


def following(*workers: str, limit_bytes: int = 1 << 30) -> PrefixIndex:
    index = PrefixIndex(limit_bytes)
    for worker in workers:
        index.follow(WorkerId(worker), Epoch(1))
    return index


def store(
    index: PrefixIndex, worker: str, sequence: int, blocks: tuple[BlockHash, ...], tier: str = ""
) -> bool:
    name = WorkerId(worker)
    return index.apply(BlocksStored(name, Epoch(1), sequence, tier or "device", None, blocks))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200, 2000])
def test_depths_are_exact_whatever_the_length(length: int) -> None:
    chance = random.Random(length)
    workers = [f"prefill-{number}" for number in range(40)]
    index, chain = following(*workers), names(*range(length))
    truth = {}
    for worker in workers:
        depth = chance.choice((0, length, chance.randrange(length + 1)))
        if depth:
            store(index, worker, 1, chain[:depth])
            truth[WorkerId(worker)] = depth
    assert index.depths(chain, 0.0) == truth
    match = index.match(chain, 0.0)
    for worker, depth in truth.items():
        slot = index.slot(worker, "device")
        assert slot is not None
        assert match.depth(slot) == depth
    best = match.deepest(index.slots.alive, 5)
    assert [depth for _, depth in best] == sorted(truth.values(), reverse=True)[:5]
    index.check()


def test_a_removal_names_the_tier_and_the_other_copy_stays() -> None:
    index = following(W)
    store(index, W, 1, names(1, 2))
    store(index, W, 2, names(1, 2, 3), "host")
    assert index.depths(names(1, 2, 3), 0.0) == {W: 3}
    index.apply(BlocksRemoved(W, Epoch(1), 3, "host", names(3, 2)))
    assert index.depths(names(1, 2, 3), 0.0) == {W: 2}
    index.apply(BlocksCleared(W, Epoch(1), 4))
    assert index.depths(names(1), 0.0) == {}
    index.check()


def test_a_full_table_forgets_what_nobody_asks_for_and_ends_of_chains_first() -> None:
    index = following(W, limit_bytes=400 * 215)
    hot = names(*range(100))
    store(index, W, 1, hot)
    for number in range(60):
        fresh = names(*range(1000 * (number + 1), 1000 * (number + 1) + 20))
        store(index, W, number + 2, fresh)
        assert index.depths(fresh, 0.0) == {W: 20}
        assert index.depths(hot, 0.0) == {W: 100}, "asked for all the time"
        assert index.blocks <= 400
        index.check()
    assert index.dropped > 800
    digest = sum(int(b, 16) for b in hot)
    digest += sum(range(1000 * n, 1000 * n + 20)[i] for n in range(1, 61) for i in range(20))
    assert not index.reconcile(W, Epoch(1), BlockCount(61, 1300, f"{digest:032x}"))
    index.apply(BlocksRemoved(W, Epoch(1), 62, "device", names(1000)))
    digest -= 1000
    assert not index.reconcile(W, Epoch(1), BlockCount(62, 1299, f"{digest:032x}"))


def test_children_are_dropped_before_their_parents() -> None:
    table = HolderTable(170 * 10 + 45 * 10)
    for number in range(12):
        table.add(bytes([number]), 1)
    assert [block for block, _ in table.overflow()] == [bytes([11]), bytes([10])]
    look = table.look(-1)
    assert len(table) == 10 and (look(BlockHash("09")), look(BlockHash("0a"))) == (1, 0)


def test_a_forgotten_worker_is_hidden_at_once_and_swept_in_slices() -> None:
    index = following(W, V)
    many = names(*range(10_000))
    store(index, W, 1, many)
    store(index, V, 1, many[:10])
    index.forget(W)
    assert index.depths(many, 0.0) == {V: 10}
    assert 10 < index.blocks < 10_000
    index.follow(W, Epoch(2))
    index.apply(BlocksStored(W, Epoch(2), 1, "device", None, many[:3]))
    assert index.depths(many, 0.0) == {V: 10, W: 3}
    for _ in range(5):
        index.expire(1.0)
    assert index.blocks == 10
    index.check()


def test_predictions_are_remembered_at_few_depths_and_expire() -> None:
    assert marks(5) == (1, 2, 3, 4, 5)
    assert len(marks(2000)) < 64 and marks(2000)[-1] == 2000
    predictions = Predictions()
    chain = names(*range(300))
    predictions.add(0, chain, 0.0)
    assert predictions.depths(chain, 1.0) == {0: 300}
    sibling = (*chain[:100], *names(*range(900, 1000)))
    assert 88 <= predictions.depths(sibling, 1.0)[0] <= 100
    assert predictions.depths(chain, 5.0) == {}
    predictions.expire(5.0)
    assert len(predictions) == 0


def test_memory_of_predictions_is_bounded() -> None:
    predictions = Predictions(most=1000)
    for number in range(200):
        predictions.add(number % 3, names(*range(number * 100, number * 100 + 100)), 0.0)
    assert len(predictions) <= 1000
    predictions.forget(1)
    predictions.expire(9.0)
    assert len(predictions) == 0


def test_what_no_honest_worker_sends_is_contained_and_counted() -> None:
    index = following(W)
    index.follow(W, Epoch(1), most_blocks=4)
    store(index, W, 1, names(1, 2, 3, 4, 5, 6))
    assert index.depths(names(*range(1, 7)), 0.0) == {W: 4}
    store(index, W, 2, (BlockHash("not a name"), BlockHash("00")))
    store(index, W, 3, names(1), tier="moon")
    store(index, W, 4, names(1))
    index.apply(BlocksRemoved(W, Epoch(1), 5, "device", names(77, 78, 79)))
    assert index.odd["beyond_its_pages"] == 2 and index.odd["no_name"] == 2
    assert index.odd["unknown_tier"] == 1 and index.odd["stored_twice"] == 1
    assert index.odd["removed_unknown"] == 1
    assert index.depths(names(*range(1, 7)), 0.0) == {W: 4}
    index.check()


def test_numbers_from_the_far_future_are_not_waited_for() -> None:
    index = following(W)
    store(index, W, 1, names(1))
    asked = [store(index, W, 2**60 + n, names(2)) for n in range(50)]
    assert sum(asked) == 1 and index.odd["far_ahead"] == 50
    assert index.take_part(BlockSnapshot(W, Epoch(1), 1, "device", 0, 1, names(1))) is None
    assert not store(index, W, 2, names(2))
    assert index.depths(names(1, 2), 0.0) == {W: 2}


def test_a_worker_that_always_counts_wrong_gets_ever_fewer_questions() -> None:
    index = following(W)
    store(index, W, 1, names(1))
    asked = 0
    for _ in range(200):
        if index.reconcile(W, Epoch(1), BlockCount(1, 1, "f" * 32)):
            asked += 1
            index.take_part(BlockSnapshot(W, Epoch(1), 1, "device", 0, 1, names(1)))
    assert 3 <= asked <= 10
    assert index.depths(names(1), 0.0) == {W: 1}
    digest = f"{1:032x}"
    assert not index.reconcile(W, Epoch(1), BlockCount(1, 1, digest))
    assert index.reconcile(W, Epoch(1), BlockCount(1, 1, "e" * 32)), "trusted again"


def test_a_snapshot_without_end_is_given_up() -> None:
    index = following(W)
    assert index.reconcile(W, Epoch(1), BlockCount(3, 1, f"{1:032x}"))
    part = BlockSnapshot(W, Epoch(1), 3, "device", 0, 10**9, names(1))
    assert index.take_part(part) is None and index.odd["endless_snapshot"] == 1
