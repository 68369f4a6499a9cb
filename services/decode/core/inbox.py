"""Pages from prefill: what is announced is pulled, proved, and placed by position.

A page is used only with the generation, checksum, length and block name it was announced with.
What fails twice is absent; `settlement` decides what becomes of absent pages.
"""

from __future__ import annotations

from services.decode.core.actions import Attributes, Pull, Reply, Traced, Verify
from services.decode.core.coming import Coming
from services.decode.core.desk import Desk
from services.decode.core.events import LeasesAnswered, PagesArrived, PullEnded, Verified
from services.decode.core.handoff import Handoff, Offer
from services.decode.core.memory import Memory
from services.decode.core.pulls import Pulls, PullState
from services.decode.core.sealing import Sealing
from services.decode.core.sequences import Sequence, Stage
from services.decode.core.settlement import Settlement
from shared.dataplane.plane import PageRead
from shared.errors import Code
from shared.wire.requests import Acknowledged, PageRef, PagesReady, Refused, WorkerRef

_STALE = Refused(Code.STALE.value, "this attempt waits for no pages here")


class Inbox:
    """The receiving side of the handoff."""

    def __init__(
        self,
        desk: Desk,
        memory: Memory,
        pulls: Pulls,
        sealing: Sealing,
        settlement: Settlement,
    ) -> None:
        self._desk = desk
        self._memory = memory
        self._pulls = pulls
        self._sealing = sealing
        self._settlement = settlement
        self._coming = Coming(pulls)

    def pages_arrived(self, event: PagesArrived, now: float) -> None:
        """Take an announcement in. Repeating it, in any order, changes nothing."""
        ready = event.ready
        sequence = self._desk.find(ready.request, ready.attempt)
        handoff = None if sequence is None else sequence.handoff
        if sequence is None or handoff is None or _other(handoff.owner, ready.owner):
            self._desk.counts["fenced_attempt"] += 1
            self._desk.out.append(Reply(event.reply, _STALE))
            return
        if handoff.committed or handoff.lost is not None:
            self._desk.counts["ignored"] += 1
            done = handoff.committed and handoff.lost is None
            self._desk.out.append(Reply(event.reply, Acknowledged() if done else _STALE))
            return
        self._desk.out.append(Reply(event.reply, Acknowledged()))
        handoff.heard_s = now
        handoff.first_seen_s = now if handoff.first_seen_s is None else handoff.first_seen_s
        if ready.prompt_pages != -(-sequence.prompt_tokens // sequence.block_tokens):
            self.lost(sequence, Code.INCOMPATIBLE_WORKERS, now)
            return
        asked = sequence.job.sampling.logprobs is not None
        self._note_first_token(handoff, ready, asked, now)
        if handoff.first_finish is None:
            self._pull(sequence, handoff, self._new_positions(sequence, handoff, event), now)
        self._settlement.consider(sequence, now)

    def pull_ended(self, event: PullEnded, now: float) -> None:
        pull = self._pulls.get(event.pull, verifying=False)
        if pull is None:
            self._desk.counts["ignored"] += 1
            return
        self._trace_pull(pull, event, now)
        if pull.orphan:
            self._pulls.remove(pull.number)
            self._settle_targets(pull, event.settled)
        elif event.error is None:
            self._pulls.landed(pull, event.bytes, now)
            pages = tuple(page.page for page in pull.targets)
            self._desk.out.append(Verify(pull.number, pages, pull.peer.ranks))
        else:
            self._pulls.remove(pull.number)
            self._failed(pull, pull.positions, event.settled, now)

    def verified(self, event: Verified, now: float) -> None:
        pull = self._pulls.get(event.pull, verifying=True)
        if pull is None:
            self._desk.counts["ignored"] += 1
            return
        self._pulls.remove(pull.number)
        found = event.checksums or (None,) * len(pull.expected)
        wrong: list[int] = []
        sequence = pull.sequence
        handoff = _handoff(sequence)
        for position, expected, actual in zip(pull.positions, pull.expected, found, strict=True):
            handoff.pulling.pop(position, None)
            if actual == expected:
                handoff.wanted.discard(position)
                # Blocks are stored by the checksum of the whole page.
                if position < len(sequence.names) and pull.peer.ranks == 1:
                    sequence.checksums[position] = expected
            else:
                wrong.append(position)
        self._desk.counts["checksum_failures"] += len(wrong)
        verify: Attributes = {
            "baton.verify.pages": len(found),
            "baton.verify.mismatches": len(wrong),
            **({"error.type": Code.INTEGRITY_FAILED.value} if wrong else {}),
        }
        self._desk.trace(sequence, "decode.verify", pull.verify_s or now, now, verify)
        self._sealing.advance([sequence])
        self._failed(pull, tuple(wrong), True, now)

    def lost(self, sequence: Sequence, code: Code, now: float) -> None:
        """No more pages will come for this attempt."""
        handoff = sequence.handoff
        if handoff is None or handoff.committed or handoff.lost is not None:
            self._desk.counts["ignored"] += 1
            return
        handoff.lost = code
        sequence.note(now, f"prefill lost: {code.value}")
        self._settlement.consider(sequence, now)

    def leases_answered(self, event: LeasesAnswered, now: float) -> None:
        """A lease that is gone will deliver nothing. Before its first announcement prefill may
        not know the attempt yet; that is given the time of a lease."""
        for _, waiting in self._waiting_for(event.peer):
            waiting.heard_s = max(waiting.heard_s, event.asked_s)
        for key in event.gone:
            sequence = self._desk.find(key.request, key.attempt)
            handoff = None if sequence is None else sequence.handoff
            if sequence is None or handoff is None or _other(handoff.owner, event.peer):
                continue
            seen = handoff.first_seen_s
            known = seen is not None and seen < event.asked_s
            if known or now - sequence.arrived_s > self._desk.rules.lease_s:
                self.lost(sequence, Code.TRANSFER_FAILED, now)

    def tick(self, now: float) -> None:
        """Nothing heard for the life of a lease: whatever the reason, the lease has lapsed."""
        for sequence, handoff in self._waiting_for(None):
            if now - handoff.heard_s > self._desk.rules.lease_s:
                self.lost(sequence, Code.WORKER_LOST, now)

    def resume(self, now: float) -> None:
        """Whoever waited for a read of somebody else that is over takes over what it brought, and
        reads the rest."""
        if not self._coming.changed:
            return
        for number, waiting in self._coming.over():
            positions: dict[Sequence, list[int]] = {}
            for sequence, position in waiting:
                handoff = sequence.handoff
                if handoff is not None and handoff.pulling.get(position) == number:
                    positions.setdefault(sequence, []).append(position)
            for sequence, found in positions.items():
                if sequence.stage is not Stage.ENDED:
                    self._take_over(sequence, _handoff(sequence), found, now)

    def _take_over(
        self, sequence: Sequence, handoff: Handoff, positions: list[int], now: float
    ) -> None:
        taken = self._memory.take_over(sequence, positions)
        self._desk.counts["pulls_shared"] += len(taken)
        handoff.wanted.difference_update(taken)
        left = [position for position in positions if position not in taken]
        for position in positions:
            del handoff.pulling[position]
        if handoff.lost is None:
            self._pull(sequence, handoff, left, now)
        else:
            handoff.absent.update(left)
        self._sealing.advance([sequence])
        self._settlement.consider(sequence, now)

    def _waiting_for(self, peer: WorkerRef | None) -> list[tuple[Sequence, Handoff]]:
        """Sequences that still expect pages, from one peer or from anyone."""
        return [
            (sequence, handoff)
            for sequence in self._desk.sequences.values()
            if (handoff := sequence.handoff) is not None
            and not handoff.committed
            and handoff.lost is None
            and (peer is None or not _other(handoff.owner, peer))
        ]

    # -- one announcement ------------------------------------------------------------------

    def _note_first_token(
        self, handoff: Handoff, ready: PagesReady, asked: bool, now: float
    ) -> None:
        """A token without the logprobs that were asked for is drawn again here."""
        handoff.cached_tokens = ready.cached_tokens
        token = ready.first_token
        if token is not None and handoff.first_token_s is None:
            handoff.first_token_s = now
        if token is not None and 0 <= token < self._desk.rules.vocab_size:
            if asked and ready.first_logprobs is None:
                return
            handoff.first_token, handoff.first_finish = token, ready.first_finish
            handoff.first_logprobs = ready.first_logprobs

    def _new_positions(
        self, sequence: Sequence, handoff: Handoff, event: PagesArrived
    ) -> list[int]:
        """Positions of this announcement that are still wanted and not on their way."""
        fresh: list[int] = []
        for ref in event.ready.pages:
            taken = ref.position in handoff.absent or ref.position in handoff.pulling
            if taken or ref.position not in handoff.wanted:
                continue
            if not self._plausible(sequence, ref):
                self._desk.counts["pages_implausible"] += 1
                handoff.absent.add(ref.position)
                continue
            handoff.offers[ref.position] = Offer(ref, event.ready.ticket, event.link)
            fresh.append(ref.position)
        return fresh

    def _plausible(self, sequence: Sequence, ref: PageRef) -> bool:
        """Right length, and for a full block the very name these tokens have."""
        size = sequence.block_tokens
        if ref.tokens != min(size, sequence.prompt_tokens - ref.position * size):
            return False
        return ref.tokens < size or ref.block == sequence.names[ref.position]

    def _pull(self, sequence: Sequence, handoff: Handoff, positions: list[int], now: float) -> None:
        """One read per ticket; positions without a target page become absent. A block that a read
        is bringing to a sibling is waited for."""
        by_ticket: dict[str, list[int]] = {}
        for position in sorted(set(positions)):
            if position >= len(sequence.pages) or sequence.pages[position] is None:
                handoff.absent.add(position)
                continue
            offer = handoff.offers[position]
            block = offer.ref.block
            other = None if block is None else self._coming.brings(block, sequence)
            if other is None:
                by_ticket.setdefault(offer.ticket, []).append(position)
            else:
                self._coming.wait(other, sequence, position)
                handoff.pulling[position] = other
                sequence.stage = Stage.PULLING
        for ticket, group in by_ticket.items():
            self._start(sequence, handoff, ticket, group, now)

    def _start(
        self, sequence: Sequence, handoff: Handoff, ticket: str, positions: list[int], now: float
    ) -> None:
        offers = [handoff.offers[position] for position in positions]
        targets = tuple(page for at in positions if (page := sequence.pages[at]) is not None)
        pull = PullState(
            number=self._pulls.next_number(),
            sequence=sequence,
            peer=handoff.owner,
            positions=tuple(positions),
            targets=targets,
            expected=tuple(offer.ref.checksum for offer in offers),
            started_s=now,
            link=offers[0].link,
        )
        self._pulls.add(pull)
        self._coming.begin(pull.number, tuple(o.ref.block for o in offers if o.ref.block))
        handoff.pulling.update((position, pull.number) for position in positions)
        sequence.stage = Stage.PULLING
        reads = tuple(
            PageRead(offer.ref.page, offer.ref.generation, target.page)
            for offer, target in zip(offers, targets, strict=True)
        )
        self._desk.out.append(Pull(pull.number, handoff.owner, ticket, reads))

    # -- the end of a pull -----------------------------------------------------------------

    def _failed(
        self, pull: PullState, positions: tuple[int, ...], settled: bool, now: float
    ) -> None:
        """Fetch these once more, unless they were already or prefill is lost."""
        sequence = pull.sequence
        handoff = _handoff(sequence)
        again: list[int] = []
        for position in positions:
            handoff.pulling.pop(position, None)
            usable = settled or self._memory.renew_target(sequence, position)
            if usable and handoff.lost is None and position not in handoff.retried:
                handoff.retried.add(position)
                again.append(position)
            else:
                handoff.absent.add(position)
        if not settled:
            self._desk.counts["pages_unsettled"] += len(positions)
        self._desk.counts["pages_refetched"] += len(again)
        self._pull(sequence, handoff, again, now)
        self._settlement.consider(sequence, now)

    def _settle_targets(self, pull: PullState, settled: bool) -> None:
        if settled:
            self._memory.settle(pull.targets)
        else:
            self._desk.counts["pages_unsettled"] += len(pull.targets)

    def _trace_pull(self, pull: PullState, event: PullEnded, now: float) -> None:
        key = pull.sequence.key
        seconds = max(now - pull.started_s, 1e-9)
        handoff = pull.sequence.handoff
        all_told_s = None if handoff is None else handoff.first_token_s
        exposed_s = 0.0 if all_told_s is None else max(0.0, now - max(all_told_s, pull.started_s))
        again = () if handoff is None else handoff.retried.intersection(pull.positions)
        failed = {} if event.error is None else {"error.type": event.error.value}
        self._desk.out.append(
            Traced(
                key.request,
                key.attempt,
                "transfer.pull",
                pull.started_s,
                now,
                {
                    "baton.transfer.peer": pull.peer.worker,
                    "baton.transfer.transport": event.transport,
                    "baton.transfer.pages": len(pull.positions),
                    "baton.transfer.runs": event.runs,
                    "baton.transfer.bytes_raw": event.bytes,
                    "baton.transfer.bytes_wire": event.bytes,
                    "baton.transfer.bytes_per_s": event.bytes / seconds,
                    "baton.transfer.exposed_s": exposed_s,
                    "baton.transfer.retries": len(again),
                    **failed,
                },
                pull.link,
            )
        )


def _other(expected: WorkerRef, sender: WorkerRef) -> bool:
    """Another worker, or another incarnation of the same."""
    return (expected.worker, expected.epoch) != (sender.worker, sender.epoch)


def _handoff(sequence: Sequence) -> Handoff:
    """A pulling sequence always has one."""
    if sequence.handoff is None:
        raise AssertionError(f"a pull without a handoff: {sequence.key}")
    return sequence.handoff
