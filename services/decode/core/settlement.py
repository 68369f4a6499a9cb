"""When a handoff is over: commit with all pages, or compute the rest here, or give up.

Exactly once per attempt. Decode has the tokens, so a lost page costs time, never the answer.
"""

from __future__ import annotations

from services.decode.core.actions import EmitTokens
from services.decode.core.borrowed import BorrowedLeases
from services.decode.core.desk import Desk
from services.decode.core.ending import Endings
from services.decode.core.handoff import Handoff
from services.decode.core.memory import Memory
from services.decode.core.rules import finish_of
from services.decode.core.sequences import Sequence, Stage
from shared.errors import Code


class Settlement:
    """Decides the end of each handoff."""

    def __init__(
        self,
        desk: Desk,
        memory: Memory,
        leases: BorrowedLeases,
        endings: Endings,
    ) -> None:
        self._desk = desk
        self._memory = memory
        self._leases = leases
        self._endings = endings

    def consider(self, sequence: Sequence, now: float) -> None:
        """Commit if nothing that prefill can still deliver is missing."""
        handoff = sequence.handoff
        if handoff is None or handoff.committed or sequence.stage is Stage.ENDED:
            return
        if handoff.first_finish is not None and handoff.first_token is not None:
            self._commit_finished(sequence, handoff, handoff.first_token, now)
        elif not handoff.pulling and (handoff.lost is not None or not handoff.outstanding):
            self._commit(sequence, handoff, now)

    def _commit_finished(
        self, sequence: Sequence, handoff: Handoff, token: int, now: float
    ) -> None:
        """The first token already ended the request: its pages are not needed."""
        finish = handoff.first_finish or "length"
        sequence.cached_tokens = handoff.cached_tokens or 0
        sequence.take_token(token, handoff.first_logprobs)
        self._endings.finish(sequence, finish, now)

    def _commit(self, sequence: Sequence, handoff: Handoff, now: float) -> None:
        sequence.place(handoff.wanted)
        if handoff.first_token is None:
            self._reopen_last(sequence)
        lacking = sequence.lacking_tokens()
        if lacking > self._desk.rules.recompute_tokens:
            code = handoff.lost or Code.TRANSFER_FAILED
            self._endings.fail(sequence, code, "prefill's pages did not arrive", now)
            return
        self._leases.give_back(sequence, "recompute" if lacking else "committed", now)
        handoff.committed = True
        known = handoff.cached_tokens
        found = sequence.cached_tokens if known is None else known
        sequence.cached_tokens = min(found, sequence.prompt_tokens - lacking)
        self._desk.counts["commits"] += 1
        self._desk.counts["recomputed_blocks"] += -(-lacking // sequence.block_tokens)
        sequence.stage = Stage.VERIFIED
        sequence.ready_s = now
        sequence.note(now, f"committed, {lacking} positions to compute")
        if handoff.first_token is not None:
            self._take_first_token(sequence, handoff, handoff.first_token, now)

    def _take_first_token(
        self, sequence: Sequence, handoff: Handoff, token: int, now: float
    ) -> None:
        """Prefill told the gateway; only an end that prefill did not see is told again."""
        sequence.take_token(token, handoff.first_logprobs)
        finish = finish_of(token, sequence.generated, sequence.job.sampling)
        if finish is not None:
            entry = sequence.entry(sequence.job.first_index, finish)
            self._desk.out.append(EmitTokens(sequence.job.gateway, (entry,)))
            self._endings.finish(sequence, finish, now)

    def _reopen_last(self, sequence: Sequence) -> None:
        """Nobody knows the first token: the last position runs again and draws it. Sealed
        pages are never rewritten, so a sealed last block is computed as a whole."""
        last = (sequence.prompt_tokens - 1) // sequence.block_tokens
        if sequence.kv_tokens < sequence.prompt_tokens:
            return
        page = sequence.pages[last]
        if page is not None and page.checksum is None:
            sequence.checksums.pop(last, None)
            sequence.redraw_last()
            return
        self._memory.reopen(sequence, last)
        sequence.sealed = min(sequence.sealed, last)
        sequence.place({*sequence.holes, last})
