"""One step after another: provide pages, run, apply, emit. Never two at a time.

Out of pages, the youngest gives way to the older; it comes back and is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.decode.core.actions import EmitTokens, RunStep
from services.decode.core.batching import Share, plan, step_item
from services.decode.core.desk import Desk
from services.decode.core.ending import Endings
from services.decode.core.events import StepEnded, StepFailed
from services.decode.core.memory import Memory
from services.decode.core.rules import finish_of
from services.decode.core.sealing import Sealing
from services.decode.core.sequences import Sequence, Stage
from shared.errors import Code
from shared.ids import WorkerId
from shared.wire.requests import LeaseKey, TokenEntry


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    started_s: float
    shares: tuple[Share, ...]


class Stepping:
    """The step in flight and the choice of the next one."""

    def __init__(self, desk: Desk, memory: Memory, sealing: Sealing, endings: Endings) -> None:
        self._desk = desk
        self._memory = memory
        self._sealing = sealing
        self._endings = endings
        self._step: _Step | None = None
        self._number = 0
        self._suspects: list[LeaseKey] = []
        """Sequences of a failed step; each runs alone next, so that only the guilty one fails."""

    @property
    def running(self) -> bool:
        return self._step is not None

    def start(self, now: float) -> None:
        """Start the next step if none is in flight and there is work."""
        if self._step is not None:
            return
        rules = self._desk.rules
        shares = plan(self._ready(now), rules.step_tokens, rules.block_tokens)
        if not shares:
            return
        self._number += 1
        self._step = _Step(self._number, now, tuple(shares))
        for share in shares:
            self._enter(share, now)
        self._desk.out.append(RunStep(self._number, tuple([step_item(s) for s in shares])))

    def ended(self, event: StepEnded, now: float) -> None:
        step = self._take(event.step)
        if step is None:
            return
        entries: dict[WorkerId, list[TokenEntry]] = {}
        finished: list[tuple[Sequence, str]] = []
        for share, token in zip(step.shares, event.tokens, strict=True):
            if share.sequence.stage is not Stage.ENDED:
                self._apply(step, share, token, now, entries, finished)
        for gateway, batch in entries.items():
            self._desk.out.append(EmitTokens(gateway, tuple(batch)))
        self._sealing.advance([s.sequence for s in step.shares if s.sequence.batchable])
        for sequence, finish in finished:
            self._endings.finish(sequence, finish, now)

    def failed(self, event: StepFailed, now: float) -> None:
        """Nothing advanced. A share that failed alone is guilty; the others are tried alone."""
        step = self._take(event.step)
        if step is None:
            return
        alive = [s.sequence for s in step.shares if s.sequence.stage is not Stage.ENDED]
        self._desk.counts["steps_failed"] += 1
        if len(step.shares) == 1 and alive:
            self._endings.fail(alive[0], Code.INTERNAL, "the engine step failed", now)
        else:
            self._suspects = [sequence.key for sequence in alive]

    def story(self) -> str:
        if self._step is None:
            return "no step in flight"
        return f"step {self._step.number} of {len(self._step.shares)} in flight"

    # -- before a step ---------------------------------------------------------------------

    def _ready(self, now: float) -> list[Sequence]:
        """Sequences with work and pages, oldest first."""
        suspect = self._next_suspect()
        candidates = [s for s in self._desk.sequences.values() if s.batchable]
        if suspect is not None:
            candidates = [suspect]
        ready = [s for s in candidates if s.batchable and self._provide(s, now)]
        # An older sequence may have pushed out a younger one only after it was asked.
        return [sequence for sequence in ready if sequence.batchable]

    def _next_suspect(self) -> Sequence | None:
        while self._suspects:
            key = self._suspects.pop(0)
            sequence = self._desk.find(key.request, key.attempt)
            if sequence is not None and sequence.batchable:
                return sequence
        return None

    def _provide(self, sequence: Sequence, now: float) -> bool:
        """Pages for the next range, if need be by preempting younger sequences."""
        start, stop = sequence.next_range()
        while not self._memory.ensure(sequence, start, stop):
            victim = self._victim(sequence)
            if victim is None:
                self._desk.counts["stalls"] += 1
                return False
            victim.preemptions += 1
            victim.note(now, f"preempted for {sequence.job.request}")
            self._desk.counts["preemptions"] += 1
            self._memory.park(victim)
        return True

    def _victim(self, needy: Sequence) -> Sequence | None:
        """The youngest one that is younger than `needy` and not yet protected."""
        limit = self._desk.rules.preemptions
        for sequence in reversed(self._desk.sequences.values()):
            if sequence.order <= needy.order:
                return None
            if sequence.batchable and sequence.preemptions < limit:
                return sequence
        return None

    def _enter(self, share: Share, now: float) -> None:
        sequence = share.sequence
        sequence.in_step = True
        sequence.stage = Stage.JOINED
        if sequence.first_step_s is None:
            sequence.first_step_s = now
            colocated = sequence.handoff is None
            name = "prefill.queue" if colocated else "decode.queue"
            depth = {"baton.queue.depth": len(self._desk.sequences)}
            self._desk.trace(sequence, name, sequence.ready_s, now, depth)
            sequence.note(now, "joined")

    # -- after a step ----------------------------------------------------------------------

    def _take(self, number: int) -> _Step | None:
        step = self._step
        if step is None or step.number != number:
            self._desk.counts["ignored"] += 1
            return None
        self._step = None
        for share in step.shares:
            share.sequence.in_step = False
        self._memory.step_ended()
        return step

    def _apply(
        self,
        step: _Step,
        share: Share,
        token: int | None,
        now: float,
        entries: dict[WorkerId, list[TokenEntry]],
        finished: list[tuple[Sequence, str]],
    ) -> None:
        sequence = share.sequence
        if share.fills:
            self._trace_chunk(step, share, now)
        draws = share.draws
        sequence.advance(share.start, share.stop)
        if not draws:
            return
        if token is None:
            raise AssertionError(f"the engine drew nothing for {sequence.key}")
        index = sequence.job.first_index + sequence.generated
        sequence.tokens.append(token)
        finish = finish_of(token, sequence.generated, sequence.job.sampling)
        entries.setdefault(sequence.job.gateway, []).append(sequence.entry(index, finish))
        if finish is not None:
            finished.append((sequence, finish))

    def _trace_chunk(self, step: _Step, share: Share, now: float) -> None:
        sequence = share.sequence
        self._desk.trace(
            sequence,
            "prefill.chunk",
            step.started_s,
            now,
            {
                "baton.chunk.index": sequence.chunks,
                "baton.chunk.tokens": share.stop - share.start,
                "baton.chunk.reused_tokens": share.start if not sequence.chunks else 0,
                "baton.chunk.budget": self._desk.rules.step_tokens,
            },
        )
        sequence.chunks += 1
