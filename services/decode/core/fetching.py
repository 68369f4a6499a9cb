"""A sequence that gave way comes back: blocks from the pool where that is cheaper than computing.

The pool is a shortcut and never a need: whatever goes wrong, the sequence computes instead.
"""

from __future__ import annotations

from services.decode.core.actions import Attributes, LookUp, Pull, ReleasePool, Verify
from services.decode.core.desk import Desk
from services.decode.core.events import PoolAnswered, PullEnded, Verified
from services.decode.core.memory import Memory
from services.decode.core.pulls import Pulls, PullState
from services.decode.core.sealing import Sealing
from services.decode.core.sequences import Fetch, Sequence, Stage
from shared.bandwidth import Bandwidth
from shared.costs import chunked_prefill_s, transfer_s
from shared.dataplane.plane import PageRead
from shared.ids import BlockHash
from shared.wire.blocks import BlocksFound, LookupBlocks, ReleaseBlocks


class Fetching:
    """From parked to running by way of the pool."""

    def __init__(self, desk: Desk, memory: Memory, pulls: Pulls, sealing: Sealing) -> None:
        self._desk = desk
        self._memory = memory
        self._pulls = pulls
        self._sealing = sealing
        self.speed = Bandwidth(desk.rules.pool_link)
        self._last = 0

    def come_back(self, sequence: Sequence, now: float) -> None:
        """The sequence has its pages again: fetch what it lacks, or let it compute."""
        kept = min(sequence.kept_blocks, self._memory.reusable_blocks(sequence))
        pool = sequence.job.kvpool
        if pool is None or not self._pays(sequence, kept, now):
            self._compute(sequence, now, "back with pages")
            return
        self._last += 1
        sequence.fetch = Fetch(self._last, pool, sequence.sealed, kept)
        sequence.stage = Stage.FETCHING
        sequence.note(now, f"back with pages, asks {pool.worker} for {kept - sequence.sealed}")
        lookup = LookupBlocks(
            reader=self._desk.rules.me,
            layout_digest=self._desk.rules.layout_digest,
            blocks=tuple(sequence.names[sequence.sealed : kept]),
            first_position=sequence.sealed,
        )
        self._desk.out.append(LookUp(self._last, *sequence.key_pair, pool, lookup))

    def answered(self, event: PoolAnswered, now: float) -> None:
        sequence = self._desk.find(event.request, event.attempt)
        fetch = None if sequence is None else sequence.fetch
        if sequence is None or fetch is None or fetch.number != event.fetch or fetch.pull:
            self._desk.counts["ignored"] += 1
            self._release(event.found)
            return
        reads, expected = _wanted(sequence, fetch, event.found)
        if event.found is None or not reads:
            self._desk.counts["pool_misses"] += 1
            self._release(event.found)
            self._compute(sequence, now, "the pool has nothing")
            return
        positions = tuple(range(fetch.first, fetch.first + len(reads)))
        targets = tuple(page for at in positions if (page := sequence.pages[at]) is not None)
        fetch.pull = self._pulls.next_number()
        pull = PullState(
            number=fetch.pull,
            sequence=sequence,
            peer=event.found.owner,
            positions=positions,
            targets=targets,
            expected=expected,
            started_s=now,
            link="",
            source=event.found,
        )
        self._pulls.add(pull)
        self._desk.out.append(Pull(pull.number, pull.peer, event.found.ticket, reads))

    def pull_ended(self, pull: PullState, event: PullEnded, now: float) -> None:
        if not event.settled:
            self._desk.counts["pages_unsettled"] += len(pull.targets)
        if pull.orphan:
            self._pulls.remove(pull.number)
            self._release(pull.source)
            if event.settled:
                self._memory.settle(pull.targets)
        elif event.error is None:
            alone_s = self._pulls.landed(pull, event.bytes, now)
            if event.bytes > 0 and alone_s > 0.0:
                self.speed.add(event.bytes, alone_s, now)
            pages = tuple(page.page for page in pull.targets)
            self._desk.out.append(Verify(pull.number, pages))
        else:
            self._pulls.remove(pull.number)
            self._release(pull.source)
            if not event.settled:
                for position in pull.positions:
                    self._memory.renew_target(pull.sequence, position)
            self._compute(pull.sequence, now, f"the pool failed: {event.error.value}")

    def verified(self, pull: PullState, event: Verified, now: float) -> None:
        """Keep the leading run that is proven."""
        self._pulls.remove(pull.number)
        sequence = pull.sequence
        found = event.checksums or (None,) * len(pull.expected)
        good = [actual == wanted for actual, wanted in zip(found, pull.expected, strict=True)]
        run = good.index(False) if False in good else len(good)
        if event.checksums:
            self._desk.counts["checksum_failures"] += good.count(False)
        damaged = [at for at, ok in zip(pull.positions, good, strict=True) if not ok]
        names = tuple(sequence.names[at] for at in damaged) if event.checksums else ()
        self._release(pull.source, names)
        for position, checksum in zip(pull.positions[:run], pull.expected, strict=False):
            sequence.checksums[position] = checksum
        sequence.kv_tokens = (pull.positions[0] + run) * sequence.block_tokens
        self._desk.counts["pool_blocks"] += run
        attributes: Attributes = {
            "baton.fetch.tier": "host",
            "baton.fetch.peer": pull.peer.worker,
            "baton.fetch.blocks": run,
            "baton.fetch.damaged": len(damaged),
        }
        self._desk.trace(sequence, "decode.fetch", pull.started_s, now, attributes)
        self._compute(sequence, now, f"{run} blocks came from the pool")
        self._sealing.advance([sequence])

    def _pays(self, sequence: Sequence, kept: int, now: float) -> bool:
        rules, sealed, block_tokens = self._desk.rules, sequence.sealed, sequence.block_tokens
        blocks = kept - sealed
        if blocks <= 0:
            return False
        compute_s = chunked_prefill_s(
            rules.costs, blocks * block_tokens, sealed * block_tokens, rules.step_tokens
        )
        link = self.speed.link if self.speed.known(now) else rules.pool_link
        return transfer_s(link, max(1, blocks * rules.page_bytes)) < compute_s

    def _compute(self, sequence: Sequence, now: float, why: str) -> None:
        sequence.fetch = None
        sequence.stage = Stage.VERIFIED
        sequence.note(now, why)

    def _release(self, found: BlocksFound | None, damaged: tuple[BlockHash, ...] = ()) -> None:
        if found is not None:
            release = ReleaseBlocks(self._desk.rules.worker, found.ticket, damaged)
            self._desk.out.append(ReleasePool(found.owner, release))


def _wanted(
    sequence: Sequence, fetch: Fetch, found: BlocksFound | None
) -> tuple[tuple[PageRead, ...], tuple[int, ...]]:
    """The leading pages of the answer that are exactly the blocks asked for, in order."""
    reads: list[PageRead] = []
    sums: list[int] = []
    refs = () if found is None else found.pages
    for position, ref in zip(range(fetch.first, fetch.last), refs, strict=False):
        target = sequence.pages[position]
        expected = (position, sequence.names[position], sequence.block_tokens)
        if target is None or (ref.position, ref.block, ref.tokens) != expected:
            break
        reads.append(PageRead(ref.page, ref.generation, target.page))
        sums.append(ref.checksum)
    return tuple(reads), tuple(sums)
