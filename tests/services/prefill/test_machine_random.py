"""Any order of events: invariants hold after each, tokens are right, all pages come home."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from services.prefill.core import events as on
from services.prefill.core.actions import SendPages
from shared.errors import Code
from shared.ids import Epoch, RequestId
from shared.kv.hashing import block_hashes
from shared.wire.blocks import LookupBlocks, ReleaseBlocks
from shared.wire.requests import Accepted, PrefillJob
from shared.wire.workers import WorkerLost
from tests.services.prefill.rig import (
    DECODE,
    GATEWAY,
    GRACE_S,
    IDENTITY,
    LEASE_S,
    POOL,
    Rig,
    expected_token,
    job,
    limits,
)

DEADLINE_S = 120.0
OURS = replace(IDENTITY, namespace="tenant")
names = st.sampled_from(("a", "b", "c", "d"))


def prompt(family: int, length: int) -> tuple[int, ...]:
    """Prompts of one family share their prefix."""
    return tuple((7 * family + position) % 90 for position in range(length))


class Weather(RuleBasedStateMachine):
    """One worker in bad weather."""

    @initialize(pages=st.integers(8, 40), chunk=st.integers(4, 40), queue=st.integers(1, 6))
    def begin(self, pages: int, chunk: int, queue: int) -> None:
        self.rig = Rig(pages, limits(chunk_tokens=chunk, queue_limit=queue, offer_limit=2))
        self.orders: dict[tuple[str, int], PrefillJob] = {}
        self.old: list[on.Event] = []
        self.reads: list[int] = []
        self.loans = 0

    # -- gateways ------------------------------------------------------------------------------

    @rule(
        name=names,
        family=st.integers(0, 2),
        length=st.one_of(st.integers(1, 70), st.sampled_from((8, 16, 32))),
        pooled=st.booleans(),
    )
    def start(self, name: str, family: int, length: int, pooled: bool) -> None:
        attempt = 1 + max((a for n, a in self.orders if n == name), default=0)
        order = job(
            name,
            prompt(family, length),
            attempt,
            pool=POOL if pooled else None,
            deadline_s=DEADLINE_S,
        )
        if isinstance(self.rig.start(order), Accepted):
            self.orders[name, attempt] = order

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.orders)))
        self.rig.start(self.orders[key])

    @rule(name=names, attempt=st.integers(1, 4))
    def cancel(self, name: str, attempt: int) -> None:
        self.rig.cancel(name, attempt)

    # -- the engine, decode, the pool ----------------------------------------------------------

    @precondition(lambda self: self.rig.engine_work)
    @rule(broken=st.sampled_from((False,) * 9 + (True,)))
    def engine(self, broken: bool) -> None:
        if broken:
            self._send(on.StepFailed(self.rig.engine_work.pop().step, "broken"))
        else:
            self.rig.turn_engine()

    @precondition(lambda self: self.rig.unanswered)
    @rule(data=st.data(), code=st.sampled_from(("", "", "", "stale", "unknown_request", "odd")))
    def decode(self, data: st.DataObject, code: str) -> None:
        at = data.draw(st.integers(0, len(self.rig.unanswered) - 1))
        ready = self.rig.unanswered.pop(at).ready
        key = (ready.request, ready.attempt, ready.chunk)
        self._send(on.PagesRefused(*key, code) if code else on.PagesAcknowledged(*key))

    @precondition(lambda self: self.rig.lookups)
    @rule(lost=st.booleans())
    def look_up(self, lost: bool) -> None:
        if lost:
            asked = self.rig.lookups.pop(0)
            self._send(on.PoolMissed(asked.request, asked.attempt, "timeout"))
        else:
            self.rig.look_up()

    @precondition(lambda self: self.rig.pulls)
    @rule(how=st.sampled_from(("good", "good", "damaged", "failed", "unsettled")))
    def pull(self, how: str) -> None:
        if how in ("good", "damaged"):
            self.rig.pull(damage=how == "damaged")
        elif how == "failed" or len(self.rig.cache.references()) > 30:
            wish = self.rig.pulls.pop(0)
            self._send(on.PullEnded(wish.request, wish.attempt, ()))
        else:
            wish = self.rig.pulls.pop(0)
            self._send(on.PullEnded(wish.request, wish.attempt, (), settled=False))

    @rule(family=st.integers(0, 2), length=st.integers(4, 70))
    def lend(self, family: int, length: int) -> None:
        blocks = block_hashes(OURS, prompt(family, length))
        self.loans += 1
        lookup = LookupBlocks(POOL, "layout", blocks, 0)
        self.rig.ask(lambda call: on.LookupArrived(call, lookup, f"loan {self.loans}"))

    @rule(number=st.integers(0, 8), damaged=st.booleans())
    def loan_returned(self, number: int, damaged: bool) -> None:
        blocks = block_hashes(OURS, prompt(0, 8)) if damaged else ()
        release = ReleaseBlocks(POOL.worker, f"loan {self.loans - number}", blocks)
        self.rig.ask(lambda call: on.LoanReturned(call, release))

    @precondition(lambda self: self.rig.offers)
    @rule(lost=st.booleans())
    def offer(self, lost: bool) -> None:
        if lost:
            wish = self.rig.offers.pop(0)
            self._send(on.OfferEnded(wish.request, wish.attempt, 0))
        else:
            self.rig.take_offer()

    @rule(name=names, attempt=st.integers(1, 3), keep=st.booleans())
    def lease(self, name: str, attempt: int, keep: bool) -> None:
        if keep:
            self.rig.renew(name, attempt=attempt)
        else:
            self.rig.release(name, attempt=attempt)

    @precondition(lambda self: self.rig.seen(SendPages))
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        ready = data.draw(st.sampled_from(self.rig.seen(SendPages))).ready
        pairs = [(ref.page, ref.generation) for ref in ready.pages]
        read = self.rig.machine.open_read(ready.ticket, pairs, self.rig.clock.now())
        if read is not None:
            sums = self.rig.engine.checksums([ref.page for ref in ready.pages])
            assert sums == tuple(ref.checksum for ref in ready.pages)
            self.reads.append(read)

    @precondition(lambda self: self.reads)
    @rule()
    def read_ends(self) -> None:
        self._send(on.ReadEnded(self.reads.pop()))

    @rule()
    def calm(self) -> None:
        """For once everything that can happen does."""
        self.rig.settle()

    # -- time and trouble ----------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.0, 0.1, 0.1, 1.0, 5.0, LEASE_S - 1, LEASE_S)))
    def time_passes(self, seconds: float) -> None:
        self.rig.tick(seconds)

    @rule(who=st.sampled_from((("decode", DECODE), ("kvpool", POOL), ("gateway", None))))
    def peer_dies(self, who: tuple[str, object]) -> None:
        worker = {"decode": DECODE.worker, "kvpool": POOL.worker, "gateway": GATEWAY}[who[0]]
        self._send(on.PeerLost(WorkerLost(worker, who[0], Epoch(9), Epoch(1), "silent")))

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        """A report that was heard before is heard once more. (A pull never ends twice while
        another pull of the same attempt runs: there is one pull per attempt.)"""
        self.rig.send(data.draw(st.sampled_from(self.old)))

    def _send(self, event: on.Event) -> None:
        self.rig.send(event)
        self.old.append(event)

    # -- calm ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        rig = self.rig
        for read in self.reads:
            rig.send(on.ReadEnded(read))
        for number in range(self.loans):
            release = ReleaseBlocks(POOL.worker, f"loan {number + 1}")
            rig.ask(lambda call, release=release: on.LoanReturned(call, release))
        abandoned = rig.machine.counters["pages_abandoned"]
        for _ in range(len(self.orders) + 1):
            rig.settle()
            for entry in rig.emitted():
                rig.release(entry.request, attempt=entry.attempt)
        assert rig.machine.idle or abandoned, "everything ends without help of the clock"
        rig.tick(DEADLINE_S + GRACE_S + LEASE_S)
        rig.settle()
        assert rig.machine.idle
        accounting = rig.machine.accounting()
        assert accounting["held_pages"] == accounting["quarantined"] == abandoned
        assert (accounting["leases"], accounting["requests"]) == (0, 0)
        for entry in rig.emitted():
            order = self.orders[entry.request, entry.attempt]
            assert entry.token_ids == (expected_token(order.tokens),)


TestWeather = Weather.TestCase
TestWeather.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_the_failure_codes_are_a_closed_set() -> None:
    """An unknown code from decode becomes `internal` towards the gateway."""
    rig = Rig()
    rig.start(job("a", prompt(0, 20)))
    rig.turn_engine()
    rig.turn_engine()
    rig.refuse("no such code")
    assert rig.failures() == {RequestId("a"): Code.INTERNAL}
