"""Offers to a pool node: what it pulls, proves, keeps and refuses."""

from __future__ import annotations

import dataclasses

import pytest

from services.kvpool.core.events import DrainBegun, PeerLost, PullEnded, PullFailed, Ticked
from shared.errors import Code
from shared.ids import BlockHash, Epoch
from shared.kv.cache import Stored
from shared.wire.blocks import OfferBlocks
from shared.wire.requests import Refused
from shared.wire.workers import WorkerLost
from tests.services.kvpool.rig import OTHER, PREFILL, Rig, chain, offer


def lost(epoch: Epoch) -> PeerLost:
    return PeerLost(WorkerLost(PREFILL.worker, "prefill", epoch, Epoch(1), "silent"))


def test_offer_is_pulled_proved_and_found() -> None:
    rig = Rig()
    blocks = chain(1, 2, 3)
    message = offer(blocks)
    call = rig.offer(message)
    pull = rig.pulls[0]
    assert (pull.owner, pull.ticket) == (PREFILL, "offer-ticket")
    assert [read.source for read in pull.reads] == [ref.page for ref in message.pages]
    assert not rig.replies and not rig.machine.cache.blocks()
    rig.deliver(message)
    assert rig.kept(call) == 3
    assert rig.machine.cache.blocks() == blocks
    assert rig.at_baseline()


def test_blocks_that_are_held_are_not_pulled_again() -> None:
    rig = Rig()
    rig.store(chain(1, 2))
    longer = offer(chain(1, 2, 3))
    call = rig.offer(longer)
    assert [read.source for read in rig.pulls[0].reads] == [longer.pages[2].page]
    rig.deliver(longer)
    assert rig.kept(call) == 3
    again = rig.offer(offer(chain(1, 2, 3), ticket="other"))
    assert not rig.pulls
    assert rig.kept(again) == 3


def test_offer_may_follow_a_block_that_is_held() -> None:
    rig = Rig()
    rig.store(chain(1, 2))
    blocks = chain(1, 2, 3, 4)
    message = offer(blocks[2:], first=2, parent=blocks[1])
    call = rig.offer(message)
    rig.deliver(message)
    assert rig.kept(call) == 2
    assert rig.machine.cache.blocks() == blocks
    assert rig.published[-1] == Stored(blocks[1], blocks[2:])


def test_offer_behind_a_gap_keeps_nothing() -> None:
    rig = Rig()
    blocks = chain(1, 2, 3)
    call = rig.offer(offer(blocks[2:], first=2, parent=blocks[1]))
    assert rig.kept(call) == 0
    assert not rig.pulls
    assert rig.machine.counts["offers_parent_missing"] == 1


def test_long_offer_comes_in_batches_and_each_is_found_at_once() -> None:
    rig = Rig(pull_pages=4)
    blocks = chain(*range(10))
    message = offer(blocks)
    call = rig.offer(message)
    sizes = []
    while call not in rig.replies:
        sizes.append(len(rig.pulls[0].reads))
        rig.deliver(message)
        assert len(rig.machine.cache.blocks()) == sum(sizes)
    assert sizes == [4, 4, 2]
    assert rig.kept(call) == 10


def test_offer_larger_than_the_pool_keeps_its_head() -> None:
    rig = Rig(pages=6)
    rig.store(chain(9, 9, 9))
    blocks = chain(*range(20))
    message = offer(blocks)
    call = rig.offer(message)
    while call not in rig.replies:
        rig.deliver(message)
    assert rig.kept(call) == 6
    assert rig.machine.cache.blocks() == blocks[:6]
    assert rig.machine.counts["offers_full"] == 1
    assert rig.at_baseline()


def test_lent_blocks_are_never_evicted_for_an_offer() -> None:
    rig = Rig(pages=4)
    rig.store(chain(1, 2, 3))
    rig.lookup(chain(1, 2, 3))
    message = offer(chain(7, 8))
    call = rig.offer(message)
    rig.deliver(message)
    assert rig.kept(call) == 1
    assert set(chain(1, 2, 3)) <= set(rig.machine.cache.blocks())


def test_oldest_idle_chain_makes_room() -> None:
    rig = Rig(pages=4)
    rig.store(chain(1, 2))
    rig.store(chain(3, 4))
    rig.release(rig.found(rig.lookup(chain(1, 2))).ticket)
    rig.store(chain(5))
    assert rig.machine.cache.blocks() == (*chain(1, 2), *chain(3), *chain(5))


@pytest.mark.parametrize("position", range(3))
def test_damaged_page_ends_the_chain_and_leaves_nothing(position: int) -> None:
    rig = Rig()
    blocks = chain(1, 2, 3)
    message = offer(blocks)
    call = rig.offer(message)
    rig.deliver(message, damaged=[blocks[position]])
    assert rig.kept(call) == position
    assert rig.machine.cache.blocks() == blocks[:position]
    assert rig.machine.counts["blocks_damaged"] == 1
    assert rig.at_baseline()
    again = rig.offer(message)
    rig.deliver(message)
    assert rig.kept(again) == 3


def test_failed_pull_answers_and_frees() -> None:
    rig = Rig()
    call = rig.offer(offer(chain(1, 2)))
    rig.feed(PullFailed(rig.pulls[0].pull, settled=True, code=Code.TRANSFER_FAILED))
    assert rig.kept(call) == 0
    assert rig.machine.cache.counts().free == 16


def test_pages_of_an_unsettled_pull_are_given_to_nobody() -> None:
    rig = Rig(pages=3)
    call = rig.offer(offer(chain(1, 2)))
    rig.feed(PullFailed(rig.pulls.pop().pull, settled=False, code=Code.TRANSFER_FAILED))
    assert rig.kept(call) == 0
    assert rig.machine.cache.counts().quarantined == 2
    message = offer(chain(5, 6), ticket="next")
    rig.offer(message)
    assert [read.target for read in rig.pulls[0].reads] == [2]
    rig.deliver(message)
    assert rig.machine.cache.blocks() == chain(5)


def test_late_and_repeated_pull_results_change_nothing() -> None:
    rig = Rig()
    message = offer(chain(1))
    rig.offer(message)
    pull = rig.pulls[0].pull
    rig.deliver(message)
    before = rig.machine.cache.counts()
    assert rig.feed(PullEnded(pull, (1,))) == []
    assert rig.feed(PullFailed(pull, settled=False, code="x")) == []
    assert rig.feed(PullFailed(99, settled=False, code="x")) == []
    assert rig.machine.cache.counts() == before
    assert rig.machine.counts["late_pulls"] == 3


def test_too_few_checksums_prove_too_few_pages() -> None:
    rig = Rig()
    message = offer(chain(1, 2, 3))
    call = rig.offer(message)
    rig.feed(PullEnded(rig.pulls[0].pull, (message.pages[0].checksum,)))
    assert rig.kept(call) == 1


def test_repeated_offer_shares_the_answer() -> None:
    rig = Rig()
    message = offer(chain(1, 2))
    first = rig.offer(message)
    second = rig.offer(message)
    assert len(rig.pulls) == 1
    rig.deliver(message)
    assert rig.kept(first) == rig.kept(second) == 2
    for _ in range(9):
        last = rig.offer(offer(chain(5), ticket="again"))
    assert rig.replies[last] == Refused(Code.QUEUE_FULL, "too many offers are waiting")


def test_a_ticket_of_another_owner_is_another_offer() -> None:
    rig = Rig()
    for owner in (PREFILL, OTHER):
        rig.offer(offer(chain(owner.epoch), owner=owner))
    assert [pull.owner for pull in rig.pulls] == [PREFILL, OTHER]


def test_offer_of_an_older_incarnation_is_refused() -> None:
    rig = Rig()
    rig.offer(offer(chain(1)))
    older = dataclasses.replace(PREFILL, epoch=Epoch(PREFILL.epoch - 1))
    reply = rig.replies[rig.offer(offer(chain(2), owner=older, ticket="old"))]
    assert isinstance(reply, Refused)
    assert reply.code == Code.STALE
    assert rig.machine.counts["fenced_epoch"] == 1


def test_two_owners_of_one_block_are_not_both_pulled() -> None:
    rig = Rig()
    first = offer(chain(1, 2))
    second = offer(chain(1, 2, 3), owner=OTHER, ticket="second")
    third = offer(chain(8), owner=OTHER, ticket="third")
    calls = [rig.offer(message) for message in (first, second, third)]
    assert [pull.ticket for pull in rig.pulls] == ["offer-ticket", "third"]
    rig.deliver(first)
    assert [pull.ticket for pull in rig.pulls] == ["third", "second"]
    assert [read.source for read in rig.pulls[1].reads] == [second.pages[2].page]
    rig.deliver(third)
    rig.deliver(second)
    assert [rig.kept(call) for call in calls] == [2, 3, 1]


def test_waiting_is_bounded() -> None:
    rig = Rig(running_offers=1, waiting_offers=2)
    calls = [rig.offer(offer(chain(index), ticket=str(index))) for index in range(4)]
    assert len(rig.pulls) == 1
    refused = rig.replies[calls[3]]
    assert isinstance(refused, Refused)
    assert refused.code == Code.QUEUE_FULL


def test_waiting_offer_expires_and_a_running_one_has_what_time_is_left() -> None:
    rig = Rig(running_offers=1, pull_timeout_s=10.0)
    message = offer(chain(1))
    rig.offer(message, patience_s=4.0)
    assert rig.pulls[0].timeout_s == 4.0
    waiting = rig.offer(offer(chain(2), ticket="w"), patience_s=5.0)
    rig.now = 5.0
    rig.feed(Ticked())
    assert rig.kept(waiting) == 0
    rig.deliver(message)
    assert rig.at_baseline()


def test_offers_of_a_dead_owner_end() -> None:
    rig = Rig(running_offers=1)
    message = offer(chain(1), owner=OTHER)
    rig.offer(message)
    old = rig.offer(offer(chain(2), ticket="old"))
    rig.feed(lost(Epoch(PREFILL.epoch - 1)))
    assert old not in rig.replies
    rig.feed(lost(PREFILL.epoch))
    assert rig.kept(old) == 0
    rig.deliver(message)
    assert rig.at_baseline()


def test_draining_ends_what_waits_and_refuses_what_comes() -> None:
    rig = Rig(running_offers=1, pull_pages=1)
    message = offer(chain(1, 2))
    running = rig.offer(message)
    waiting = rig.offer(offer(chain(5), ticket="w"))
    rig.feed(DrainBegun())
    assert rig.kept(waiting) == 0
    assert not rig.machine.at_rest
    rig.deliver(message)
    assert rig.kept(running) == 1
    assert rig.machine.at_rest
    late = rig.replies[rig.offer(offer(chain(6), ticket="late"))]
    assert isinstance(late, Refused)
    assert late.code == Code.DRAINING


def changed(**fields: object) -> OfferBlocks:
    """An offer of three blocks whose second page differs from a good one in `fields`."""
    message = offer(chain(1, 2, 3))
    page = dataclasses.replace(message.pages[1], **fields)  # type: ignore[arg-type]
    return dataclasses.replace(message, pages=(message.pages[0], page, message.pages[2]))


@pytest.mark.parametrize(
    "message",
    [
        changed(block=None),
        changed(tokens=3),
        changed(position=5),
        changed(position=-1),
        changed(block=chain(1)[0]),
        changed(block=BlockHash("abcd")),
        offer(chain(1, 2), first=3),
        offer(chain(1, 2), parent=chain(9)[0]),
        offer(chain(1, 2), first=1, parent=BlockHash("short")),
        offer(chain(1, 2), first=-2, parent=chain(9)[0]),
    ],
)
def test_br_004_offer_that_is_no_chain_of_whole_names_is_refused(message: OfferBlocks) -> None:
    rig = Rig()
    reply = rig.replies[rig.offer(message)]
    assert isinstance(reply, Refused)
    assert reply.code == Code.INVALID_PARAMETER
    assert rig.at_baseline()


def test_br_011_other_layout_is_refused_before_any_byte() -> None:
    rig = Rig()
    reply = rig.replies[rig.offer(offer(chain(1), layout="other"))]
    assert isinstance(reply, Refused)
    assert reply.code == Code.INCOMPATIBLE_WORKERS
    assert not rig.pulls


def test_empty_offer_is_answered() -> None:
    rig = Rig()
    assert rig.kept(rig.offer(offer(()))) == 0


def test_the_span_of_a_store_covers_it_from_arrival() -> None:
    rig = Rig()
    message = offer(chain(1, 2))
    call = rig.offer(message)
    rig.now = 2.0
    rig.deliver(message)
    (span,) = rig.traced
    assert (span.call, span.name, span.start_s, span.end_s) == (call, "kvpool.store", 0.0, 2.0)
    assert span.attributes["baton.blocks.pulled"] == 2
    assert "kept: 2 of 2" in rig.machine.story("offer-ticket")


def test_what_is_no_event_raises() -> None:
    with pytest.raises(TypeError, match="str"):
        Rig().machine.handle("tick", 0.0)  # type: ignore[arg-type]
