"""Any order of events: late, repeated, torn, corrupted, cancelled, lost.

First faults, with all invariants after each event; then no faults, and everything must end with
exactly the undisturbed tokens and nothing held.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.decode.core import actions as do
from services.decode.core import events as on
from services.decode.core.rules import NO_COSTS
from shared.costs import WorkCosts
from shared.errors import Code
from shared.ids import Attempt, Epoch
from shared.wire.requests import DecodeJob, PagesReady, Refused

from .pool_side import POOL
from .prefill_side import ME, undisturbed
from .rig import Rig, flip, job, rules

_FAILED_FINE = {
    None,
    Code.WORKER_LOST,
    Code.TRANSFER_FAILED,
    Code.INTERNAL,
    Code.DEADLINE_EXCEEDED,
}


class Storm:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        pages = self.chance.choice([14, 20, 40])
        limits = rules(
            step_tokens=self.chance.choice([4, 9, 16]),
            recompute_tokens=self.chance.choice([8, 1000]),
            alone_tokens=self.chance.choice([4, 32]),
            max_sequences=self.chance.choice([2, 8]),
            forecast=self.chance.choice([True, False, False]),
            costs=self.chance.choice([NO_COSTS, WorkCosts(0.1, 0.1, 0.0, 0.1, 0.1)]),
            reserve_wait_s=1e9,
        )
        self.rig = Rig(pages=pages, limits=limits)
        self.jobs = [self.job(number) for number in range(6)]
        self.ready: list[PagesReady] = []
        self.stray: list[do.Pull] = []
        self.past: list[on.Event] = []
        self.unsettled = 0
        self.slow = self.chance.choice([None, do.RunStep, do.Pull])
        """What takes long in this run, so that much else happens meanwhile."""

    def job(self, number: int) -> DecodeJob:
        chance = self.chance
        tokens = [*range(chance.choice([0, 4, 8, 12])), *([number] * chance.randint(1, 14))]
        return job(
            f"r{number}",
            tokens,
            max_tokens=chance.choice([1, 3, 9, 24]),
            prefill=chance.choice([None, ME, ME]),
            first_index=chance.choice([0, 3]),
            temperature=chance.choice([0.0, 1.0]),
            priority=chance.choice([-100, 0, 0, 0, 7, 50]),
            kvpool=chance.choice([None, POOL]),
        )

    def run(self) -> None:
        steps = [
            (4, self.submit),
            (6, self.announce),
            (20, self.work),
            (2, self.work_badly),
            (1, self.land_late),
            (2, self.repeat),
            (2, self.cancel),
            (1, self.resend),
            (1, self.lose_prefill),
            (1, self.lose_pool),
            (2, self.tick),
        ]
        weights = [weight for weight, _ in steps]
        for _ in range(self.chance.randint(20, 160)):
            self.chance.choices(steps, weights)[0][1]()
        self.calm()

    def calm(self) -> None:
        """The faults stop: everything ends."""
        rig = self.rig
        answers = {one.request: rig.asked(one) for one in self.jobs}
        for _ in range(2_000):
            rig.run()
            if self.ready:
                rig.announce(self.ready.pop(0))
            elif rig.machine.idle:
                break
            else:
                rig.tick(5.0)
        rig.at_rest(self.unsettled)
        for one in self.jobs:
            if not isinstance(rig.replies[answers[one.request]], Refused):
                self.judge(one)

    def judge(self, one: DecodeJob) -> None:
        log = self.rig.logs[one.request]
        tokens, finish = undisturbed(one)
        story = self.rig.machine.story(one.request)
        got = log.text(one.first_index)
        if log.failed is None:
            assert (got, log.finish) == (tokens, finish), story
        assert got == tokens[: len(got)], story
        assert log.failed in _FAILED_FINE, story

    # -- what may happen -------------------------------------------------------------------

    def submit(self) -> None:
        one = self.chance.choice(self.jobs)
        desk = self.rig.machine.desk
        new = desk.find(one.request, one.attempt) is None
        self.rig.submit(one)
        if one.prefill is not None and new and desk.find(one.request, one.attempt):
            ready = self.rig.prefill.compute(one, self.chance.choice([4, 8, 100]))
            self.rig.first_token(one, ready)
            self.ready.extend(ready)

    def announce(self) -> None:
        if not self.ready:
            return
        at = self.chance.randrange(len(self.ready))
        one = self.ready[at] if self.chance.random() < 0.2 else self.ready.pop(at)
        self.rig.announce(one)

    def work(self) -> None:
        if not self.rig.work:
            return
        at = self.chance.randrange(len(self.rig.work))
        hurried = self.slow is None or not isinstance(self.rig.work[at], self.slow)
        if hurried or self.chance.random() < 0.1:
            self.rig.happen(self.rig.work.pop(at))

    def work_badly(self) -> None:
        rig, chance = self.rig, self.chance
        if not rig.work:
            return
        action = rig.work.pop(chance.randrange(len(rig.work)))
        match action:
            case do.Pull():
                self.pull_badly(action)
            case do.Verify():
                rig.send(on.Verified(action.pull, ()))
            case do.Checksum():
                rig.send(on.Checksummed(action.seal, ()))
            case do.RunStep() if len(action.items) > 1:
                rig.send(on.StepFailed(action.step, "a bad day"))
            case do.RenewLeases() | do.Release() | do.ReleasePool():
                pass
            case do.Offer():
                _, read = rig.pool.take(action.offer, rig.cache, rig.engine, rig.now)
                rig.send(on.OfferEnded(action.request, action.attempt, 0))
                if read is not None:
                    rig.send(on.ReadEnded(read))
            case do.LookUp():
                key = (action.request, action.attempt)
                rig.send(on.PoolAnswered(action.fetch, *key, None))
                self.past.append(
                    on.PoolAnswered(action.fetch, *key, rig.pool.look_up(action.lookup))
                )
            case _:
                rig.happen(action)

    def pull_badly(self, pull: do.Pull) -> None:
        rig = self.rig
        kind = self.chance.choice(["corrupt", "refused", "torn", "unsettled", "twice"])
        if kind == "corrupt":
            rig.end_pull(pull, flip)
        elif kind == "refused":
            rig.send(on.PullEnded(pull.pull, Code.STALE))
        elif kind == "torn":
            if rig.prefill_alive:
                rig.land(replace(pull, reads=pull.reads[:1]))
            rig.send(on.PullEnded(pull.pull, Code.TRANSFER_FAILED))
        elif kind == "unsettled":
            before = rig.machine.counts["pages_unsettled"]
            rig.send(on.PullEnded(pull.pull, Code.TRANSFER_FAILED, settled=False))
            self.unsettled += rig.machine.counts["pages_unsettled"] - before
            self.stray.append(pull)
        else:
            rig.end_pull(pull)
            rig.send(on.PullEnded(pull.pull, None))
            self.past.append(on.PullEnded(pull.pull, Code.TRANSFER_FAILED))

    def land_late(self) -> None:
        """Bytes of a read that never settled."""
        for pull in self.stray:
            self.rig.land(pull, flip)

    def repeat(self) -> None:
        if self.past:
            self.rig.send(self.chance.choice(self.past))

    def cancel(self) -> None:
        """The gateway ends an attempt and begins the next one."""
        at = self.chance.randrange(len(self.jobs))
        one = self.jobs[at]
        self.rig.cancel(one.request, one.attempt)
        self.rig.logs[one.request].failed = None
        self.jobs[at] = replace(one, attempt=Attempt(one.attempt + 1))

    def resend(self) -> None:
        one = self.chance.choice(self.jobs)
        self.rig.resend(one.request, one.attempt, self.chance.randint(0, 20))

    def lose_prefill(self) -> None:
        kind = self.chance.choice(["failed", "older", "dead"])
        if kind == "failed":
            one = self.chance.choice(self.jobs)
            self.rig.prefill_failed(one.request, one.attempt)
        elif kind == "older":
            self.rig.send(on.PeerLost(ME.worker, "prefill", Epoch(2)))
        elif self.chance.random() < 0.2:
            self.rig.prefill_alive = False
            self.rig.send(on.PeerLost(ME.worker, "prefill", ME.epoch))

    def lose_pool(self) -> None:
        """The node is gone for a while, or its memory turns bits."""
        pool = self.rig.pool
        pool.alive = not pool.alive
        if pool.kept and self.chance.random() < 0.5:
            pool.spoil(flip, self.chance.sample(sorted(pool.kept), 1))

    def tick(self) -> None:
        self.rig.tick(self.chance.choice([0.01, 1.0, 6.0]))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_any_order_of_events_ends_with_the_undisturbed_tokens_and_nothing_held(seed: int) -> None:
    Storm(seed).run()
