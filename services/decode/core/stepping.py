"""One step after another: provide pages, run, apply, emit. Never two at a time.

Out of pages, somebody of lower rank gives way; it comes back and is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence as Run
from dataclasses import dataclass

from services.decode.core.actions import Attributes, EmitTokens, RunStep
from services.decode.core.batching import Budget, Share, plan, step_item
from services.decode.core.desk import Desk
from services.decode.core.ending import Endings
from services.decode.core.events import StepEnded, StepFailed
from services.decode.core.memory import Memory
from services.decode.core.pacing import Pace
from services.decode.core.preemption import Preemption
from services.decode.core.rules import finish_of
from services.decode.core.sealing import Sealing
from services.decode.core.sequences import Sequence, Stage
from services.decode.core.slack import Slack
from shared.errors import Code
from shared.ids import WorkerId
from shared.wire.requests import LeaseKey, TokenEntry
from shared.wire.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    started_s: float
    shares: tuple[Share, ...]
    left: int
    """Tokens that prompts could have had of it."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Prompt tokens, the most that one of them has cached, and running sequences."""
        fills = [share for share in self.shares if share.fills]
        tokens = sum(share.stop - share.start for share in fills)
        cached = max((share.start for share in fills), default=0)
        return tokens, cached, len(self.shares) - len(fills)


class Stepping:
    """The step in flight and the choice of the next one."""

    def __init__(
        self,
        desk: Desk,
        memory: Memory,
        preemption: Preemption,
        sealing: Sealing,
        endings: Endings,
    ) -> None:
        rules = desk.rules
        self.budget = Budget(rules.step_tokens, rules.alone_tokens, rules.block_tokens)
        self.slack: Slack | None = None
        if rules.step_policy != "fixed":
            most = max(rules.step_tokens, rules.alone_tokens)
            self.slack = Slack(rules.step_policy, rules.tpot_target_s, most, rules.costs)
        self._desk = desk
        self._preemption = preemption
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
        ready = self._ready(now)
        if not ready:
            return
        left = self._left(ready, now)
        shares = plan(ready, self.budget, self._desk.rules.costs, left)
        if not shares:
            return
        self._number += 1
        self._step = _Step(self._number, now, tuple(shares), left)
        batch = len(shares), sum([share.stop - share.start for share in shares])
        for share in shares:
            self._enter(share, batch, now)
        self._desk.out.append(RunStep(self._number, tuple([step_item(s) for s in shares])))

    def ended(self, event: StepEnded, now: float) -> None:
        step = self._take(event.step)
        if step is None:
            return
        if self.slack is not None:
            self.slack.ended(step.shape, now - step.started_s)
        entries: dict[WorkerId, list[TokenEntry]] = {}
        finished: list[tuple[Sequence, str]] = []
        told = event.logprobs or (None,) * len(step.shares)
        for share, token, logprobs in zip(step.shares, event.tokens, told, strict=True):
            sequence = share.sequence
            if sequence.stage is Stage.ENDED or not self._advance(step, share, now):
                continue
            sequence.pace = Pace.after(sequence.pace, now)
            entry = self._append(sequence, token, logprobs)
            entries.setdefault(sequence.job.gateway, []).append(entry)
            if entry.finish is not None:
                finished.append((sequence, entry.finish))
        for gateway, batch in entries.items():
            self._desk.out.append(EmitTokens(gateway, tuple(batch)))
        self._sealing.advance([s.sequence for s in step.shares if s.sequence.batchable])
        for sequence, finish in finished:
            self._endings.finish(sequence, finish, now)
        self._preemption.prepare(now)

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

    def _left(self, ready: Run[Sequence], now: float) -> int:
        """Tokens for prompts."""
        decoding = [sequence for sequence in ready if sequence.decoding]
        if self.slack is None or not decoding:
            return self.budget.left(len(decoding))
        filling = [sequence for sequence in ready if not sequence.decoding]
        return self.slack.tokens(decoding, filling, now)

    def _ready(self, now: float) -> list[Sequence]:
        """Sequences with work and pages, in order of rank."""
        suspect = self._next_suspect()
        candidates = self._desk.ranked() if suspect is None else [suspect]
        candidates = [s for s in candidates if s.batchable and not self._shares_soon(s)]
        ready = [s for s in candidates if s.batchable and self._provide(s, now)]
        # Someone before it may have pushed it out after it was asked.
        return [sequence for sequence in ready if sequence.batchable]

    def _shares_soon(self, sequence: Sequence) -> bool:
        """Its prompt was not begun, and the next block of it is computed and about to be found.
        A checksum always comes, or the sealing has failed: nobody waits for long."""
        if sequence.chunks or sequence.holes or sequence.decoding:
            return False
        return self._memory.awaits_seal(sequence)

    def _next_suspect(self) -> Sequence | None:
        while self._suspects:
            key = self._suspects.pop(0)
            sequence = self._desk.find(key.request, key.attempt)
            if sequence is not None and sequence.batchable:
                return sequence
        return None

    def _provide(self, sequence: Sequence, now: float) -> bool:
        """Pages for the next range, if need be from those behind it."""
        self._memory.refresh(sequence)
        start, stop = sequence.next_range()
        while not self._memory.ensure(sequence, start, stop):
            if not self._preemption.give_way(sequence, now):
                self._desk.counts["stalls"] += 1
                sequence.stalled(now, "stalled")
                return False
        return True

    def _enter(self, share: Share, batch: tuple[int, int], now: float) -> None:
        """`batch`: sequences and tokens of the step."""
        sequence = share.sequence
        sequence.in_step = True
        sequence.joined(now, batch[0])
        sequence.stage = Stage.JOINED
        if sequence.first_step_s is None:
            sequence.first_step_s = now
            colocated = sequence.handoff is None
            name = "prefill.queue" if colocated else "decode.queue"
            waited: Attributes = {
                "baton.queue.depth": len(self._desk.sequences),
                "baton.batch.sequences": batch[0],
                "baton.batch.tokens": batch[1],
            }
            self._desk.trace(sequence, name, sequence.ready_s, now, waited)
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

    def _advance(self, step: _Step, share: Share, now: float) -> bool:
        """The share was computed. True: it drew a token."""
        draws = share.draws
        if share.fills:
            self._trace_chunk(step, share, now)
        share.sequence.advance(share.start, share.stop)
        return draws

    def _append(
        self, sequence: Sequence, token: int | None, logprobs: TokenLogprobs | None
    ) -> TokenEntry:
        """Take in what was drawn; the gateway's entry for it."""
        if token is None:
            raise AssertionError(f"the engine drew nothing for {sequence.key}")
        sequence.take_token(token, logprobs)
        job, generated = sequence.job, sequence.generated
        finish = finish_of(token, generated, job.sampling)
        return sequence.entry(job.first_index + generated - 1, finish)

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
                "baton.chunk.budget": step.left,
            },
        )
        sequence.chunks += 1
