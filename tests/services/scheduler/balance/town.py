"""A scheduler's core with workers around it that beat, finish requests and change their roles.

Time is a number. Requests end at once, with the latencies that the forecast has for the load: what
the planner is told agrees with what it could know.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from services.scheduler.core.balance.balance import OrderSwitch, Planned
from services.scheduler.core.balance.settings import BalanceSettings
from services.scheduler.core.events import Action, Answer, SwitchAnswered, Tick
from services.scheduler.core.machine import SchedulerMachine, SchedulerSettings
from services.scheduler.core.placement.settings import PlacementSettings
from shared.ids import Epoch
from shared.wire.requests import Placement, PlacementEnded
from shared.wire.workers import CostModel, Heartbeat
from tests.services.scheduler.builders import ask, beat

COST = CostModel(
    step_s=0.01, token_s=0.001, pair_s=0.0, decode_step_s=0.02, decode_sequence_s=0.004
)
TICK_S = 0.25
PROMPTS = (600, 10)
"""Prompt and answer tokens of a load that needs prefill workers."""
ANSWERS = (50, 200)
"""Of one that needs decode workers."""

SETTINGS = BalanceSettings(
    mode="act",
    tick_s=1.0,
    window_s=20.0,
    cooldown_s=20.0,
    least_requests=10,
    ttft_slo_s=1.0,
    tpot_slo_s=0.06,
    may_colocate=False,
)


@dataclass(slots=True)
class Hand:
    """A worker: what it says, and what it does with an order."""

    name: str
    role: str
    epoch: int = 1
    sequence: int = 0
    state: str = "ready"
    turning: str = ""
    alive: bool = True
    back_s: float = 0.0
    drains_s: float = 2.0
    starts_s: float = 3.0
    obeys: Callable[[], str] = lambda: ""
    """The refusal, '' to obey, '?' for silence."""
    switchable: bool = True
    returns_as: str = ""
    """Its role after the change, if not the one that was asked for."""

    def beat(self, **fields: object) -> Heartbeat:
        self.sequence += 1
        found = beat(f"{self.role}-x", epoch=self.epoch, sequence=self.sequence, state=self.state)
        return dataclasses.replace(
            found,
            worker=self.name,
            cost=COST,
            switchable=self.switchable,
            turning=self.turning,
            **fields,  # type: ignore[arg-type]
        )


@dataclass
class Town:
    """`run` lets time pass under a load."""

    settings: BalanceSettings = SETTINGS
    prefill: int = 2
    decode: int = 2
    leader_epoch: int = 1
    now: float = 100.0
    planned: list[Planned] = field(default_factory=list)
    orders: list[OrderSwitch] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self.core = self.new_core()
        self.hands = [Hand(f"w{i}", "prefill") for i in range(self.prefill)]
        self.hands += [Hand(f"w{i + self.prefill}", "decode") for i in range(self.decode)]
        self._asked = 0
        self._due_s = self.now

    def new_core(self) -> SchedulerMachine:
        settings = SchedulerSettings(
            leader_epoch=Epoch(self.leader_epoch),
            lost_after_s=3.0,
            settled_at=0.0,
            route="auto",
            placement=PlacementSettings(colocate_below_tokens=16, admission="none"),
            balance=self.settings,
        )
        return SchedulerMachine(settings, random.Random(1))

    def roles(self) -> list[str]:
        return sorted(hand.role for hand in self.hands if hand.alive)

    def ready(self, role: str) -> int:
        ready = [h for h in self.hands if h.alive and h.role == role and h.state == "ready"]
        return len(ready)

    def hand(self, name: str) -> Hand:
        return next(hand for hand in self.hands if hand.name == name)

    @property
    def flips(self) -> list[Planned]:
        return [planned for planned in self.planned if planned.event == "planner.flip_ended"]

    def run(self, seconds: float, rate: float = 0.0, shape: tuple[int, int] = PROMPTS) -> None:
        """`shape`: prompt and answer tokens of every request."""
        until_s = self.now + seconds
        while self.now < until_s:
            self.now += TICK_S
            for hand in self.hands:
                self._live(hand)
            while rate and self._due_s <= self.now:
                self._due_s += 1.0 / rate
                self._request(rate, shape)
            self._due_s = max(self._due_s, self.now)
            self.feed(Tick())
            self.core.check()

    def feed(self, event: object) -> list[Action]:
        actions = self.core.handle(event, self.now)  # type: ignore[arg-type]
        for action in actions:
            match action:
                case Planned():
                    self.planned.append(action)
                case OrderSwitch():
                    self.orders.append(action)
                    self._obey(action)
                case _:
                    pass
        return actions

    # -- inside ----------------------------------------------------------------------------

    def _live(self, hand: Hand) -> None:
        if not hand.alive and hand.back_s and self.now >= hand.back_s:
            hand.alive, hand.state, hand.turning, hand.back_s = True, "ready", "", 0.0
            hand.epoch += 1
        if hand.turning and hand.alive and self.now >= hand.back_s:
            hand.state = "ended"
            self.feed(hand.beat())
            hand.role, hand.alive = hand.returns_as or hand.turning, False
            hand.back_s = self.now + hand.starts_s
        elif hand.alive:
            self.feed(hand.beat())

    def _obey(self, action: OrderSwitch) -> None:
        order = action.order
        hand = self.hand(order.worker)
        refusal = hand.obeys()
        if refusal == "?":
            return
        if not refusal and (hand.epoch, hand.role) != (order.epoch, action.role):
            refusal = "the incarnation that this is for is gone"
        if not refusal and not hand.turning:
            hand.state, hand.turning = "draining", order.to
            hand.back_s = self.now + hand.drains_s
        self.feed(SwitchAnswered(order.worker, order.epoch, refusal))

    def _request(self, rate: float, shape: tuple[int, int]) -> None:
        self._asked += 1
        name = f"r{self._asked}"
        prompt, answer = shape
        question = dataclasses.replace(ask(name, tokens=prompt), max_tokens=answer)
        (reply,) = [a for a in self.feed(question) if isinstance(a, Answer)]
        if not isinstance(reply.reply, Placement):
            self.refused += 1
            return
        ttft_s, tpot_s = self._takes(rate, prompt, answer)
        ended = PlacementEnded(
            question.request,
            question.attempt,
            "finished",
            emitted=answer,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
        )
        self.feed(ended)

    def _takes(self, rate: float, prompt: int, answer: int) -> tuple[float, float]:
        """Latencies by the same simple truth that the costs tell."""
        prefill = max(1, self.ready("prefill"))
        own_s = COST.step_s + COST.token_s * prompt
        busy = rate * own_s / prefill
        ttft_s = own_s / max(0.02, 1.0 - busy)
        rate_each = rate * answer / max(1, self.ready("decode"))
        further = COST.decode_sequence_s
        share = rate_each * further
        sequences = rate_each * (COST.decode_step_s - further) / (1.0 - share) if share < 1 else 99
        tpot_s = COST.decode_step_s + further * max(0.0, sequences - 1.0)
        return ttft_s, tpot_s
