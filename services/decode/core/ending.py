"""How an attempt ends here: finish, failure or cancellation are one transition, made once.

Afterwards nothing of the attempt is held but pages that a read or a step may still write.
"""

from __future__ import annotations

from services.decode.core.actions import Attributes, FailJob, JobClosed
from services.decode.core.borrowed import BorrowedLeases
from services.decode.core.desk import Desk
from services.decode.core.forecast import Forecast
from services.decode.core.ledger import Ledger
from services.decode.core.memory import Memory
from services.decode.core.pulls import Pulls
from services.decode.core.sequences import Sequence, Stage
from shared.errors import Code


class Endings:
    """The only way out for a sequence."""

    def __init__(
        self,
        desk: Desk,
        memory: Memory,
        pulls: Pulls,
        leases: BorrowedLeases,
        ledger: Ledger,
        forecast: Forecast,
    ) -> None:
        self._desk = desk
        self._memory = memory
        self._pulls = pulls
        self._leases = leases
        self._ledger = ledger
        self._forecast = forecast

    def finish(self, sequence: Sequence, finish: str, now: float) -> None:
        """The last token was drawn; its tokens stay in the log for a while."""
        self._ledger.keep_log(sequence, finish, now)
        self._forecast.ended(sequence)
        self._end(sequence, finish, now)

    def fail(self, sequence: Sequence, code: Code, message: str, now: float) -> None:
        """Give the attempt up and say so."""
        job = sequence.job
        self._desk.out.append(FailJob(job.gateway, job.request, job.attempt, code, message))
        self._desk.counts["jobs_failed"] += 1
        self._end(sequence, code.value, now)

    def cancel(self, sequence: Sequence, cause: str, now: float) -> None:
        """Somebody else decided; nobody needs to be told."""
        self._end(sequence, cause, now)

    def _end(self, sequence: Sequence, outcome: str, now: float) -> None:
        job = sequence.job
        sequence.note(now, f"ended: {outcome}")
        if sequence.awaits_prefill:
            self._leases.give_back(sequence, "ended", now)
        pages = self._memory.give_back(sequence, self._pulls.abandon(sequence))
        self._spans(sequence, outcome, pages, now)
        sequence.stage = Stage.ENDED
        del self._desk.sequences[job.request]
        self._ledger.end(job.request, job.attempt, now, tuple(sequence.life))
        self._desk.counts[f"ended_{outcome}"] += 1

    def _spans(self, sequence: Sequence, outcome: str, pages: int, now: float) -> None:
        if sequence.first_step_s is not None:
            began_s, since_s = sequence.first_step_s, sequence.stalled_since_s
            said: Attributes = {
                "baton.tokens": sequence.generated,
                "baton.preemptions": sequence.preemptions,
                "baton.stall_s": sequence.stalled_s + (0.0 if since_s is None else now - since_s),
                "baton.batch.sequences": sequence.most_beside,
                "baton.outcome": outcome,
            }
            moments = ((began_s, "joined"), *sequence.moments)
            self._desk.trace(sequence, "decode.generate", began_s, now, said, moments)
        settled: Attributes = {"baton.pages": pages, "baton.outcome": outcome}
        self._desk.trace(sequence, "kv.settle", now, now, settled)
        job = sequence.job
        self._desk.out.append(
            JobClosed(job.request, job.attempt, outcome, {"baton.tokens": sequence.generated})
        )
