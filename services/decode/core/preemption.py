"""Who gives way when pages are short, and how.

Only a sequence of higher rank number gives way, so the first one always gets on. Among those the
lowest priority goes first, then whoever costs least to compute again for each page it frees.
"""

from __future__ import annotations

from services.decode.core.desk import Desk
from services.decode.core.forecast import Forecast
from services.decode.core.memory import Memory
from services.decode.core.offering import Offering
from services.decode.core.sequences import Sequence
from shared.costs import chunked_prefill_s


class Preemption:
    """Parks sequences. Only between steps: the engine must not write their pages any more."""

    def __init__(self, desk: Desk, memory: Memory, forecast: Forecast, offering: Offering) -> None:
        self._desk = desk
        self._memory = memory
        self._forecast = forecast
        self._offering = offering

    def give_way(self, needy: Sequence, now: float) -> bool:
        """Find pages for a sequence that ran out of them, if need be by parking another one.
        False: nobody comes after it."""
        if self._offering.withdraw_idle():
            return True
        victims = self._behind(needy)
        if not victims:
            return False
        self._park(min(victims, key=self._order), needy, now)
        return True

    def prepare(self, now: float) -> None:
        """Memory is getting short: offer the pool the blocks of whoever would give way next."""
        if self._offering.short:
            first = min(s.rank for s in self._desk.sequences.values() if s.batchable)
            victims = [s for s in self._desk.sequences.values() if s.batchable and s.rank > first]
            limit = self._desk.rules.preemptions
            victims = [victim for victim in victims if victim.preemptions < limit]
            if victims:
                self._offering.offer(min(victims, key=self._order), now)

    def make_room(self, newcomer: Sequence, now: float) -> bool:
        """Park sequences of lower priority until a newcomer has its pages. False: nothing was
        parked, because it would not be enough."""
        priority = newcomer.job.priority
        chosen: list[Sequence] = []
        for victim in sorted(self._behind(newcomer), key=self._order):
            if victim.job.priority >= priority:
                return False
            chosen.append(victim)
            if self._memory.can_reserve(newcomer, chosen):
                for parked in chosen:
                    self._park(parked, newcomer, now)
                return True
        return False

    def _behind(self, needy: Sequence) -> list[Sequence]:
        """Running sequences that may give way to `needy`."""
        limit = self._desk.rules.preemptions
        return [
            sequence
            for sequence in self._desk.sequences.values()
            if sequence.rank > needy.rank and sequence.batchable and sequence.preemptions < limit
        ]

    def _order(self, victim: Sequence) -> tuple[int, float, float, int]:
        """Lowest priority, then least work a page, then the youngest."""
        rules = self._desk.rules
        work_s = chunked_prefill_s(rules.costs, victim.kv_tokens, 0, rules.alone_tokens)
        virtual_s, order = victim.rank
        return (victim.job.priority, work_s / max(1, len(victim.pages)), -virtual_s, -order)

    def _park(self, victim: Sequence, needy: Sequence, now: float) -> None:
        victim.preemptions += 1
        victim.stalled(now, "gave way")
        victim.note(now, f"preempted for {needy.job.request}")
        self._desk.counts["preemptions"] += 1
        self._forecast.preempted(now)
        self._offering.withdraw(victim)
        self._memory.park(victim)
