"""Many runs: what they found, which faults really fired, and the smallest case that still fails.

Knows nothing of processes or files; the caller spreads the work and keeps the regressions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from loadgen.sim.case import KINDS, Case, Fault, Order, Shape
from loadgen.sim.drawing import draw
from loadgen.sim.world import Outcome, World

_Entry = TypeVar("_Entry")

SHRINK_RUNS: Final = 250
_CUT_HOSTS: Final = ("gateway-0", "scheduler-0", "prefill-0", "decode-0", "kvpool-0")
_MOMENTS: Final = ("before", "none", "half", "all")


@dataclass(slots=True)
class Tally:
    """The sum of many runs. Adding is commutative."""

    runs: int = 0
    calls: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    """In how many runs a kind of fault fired."""
    endings: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[int, str]] = field(default_factory=list)
    """Seed and rule of each run that broke one."""

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.calls += outcome.calls
        self.fired.update(outcome.fired)
        self.struck.update(kind for kind, count in outcome.fired.items() if count)
        self.endings.update(outcome.endings)
        if outcome.violation is not None:
            self.broken.append((outcome.case.seed, outcome.violation.rule))

    def merge(self, other: Tally) -> None:
        self.runs += other.runs
        self.calls += other.calls
        for mine, theirs in (
            (self.fired, other.fired),
            (self.struck, other.struck),
            (self.endings, other.endings),
        ):
            mine.update(theirs)
        self.broken.extend(other.broken)

    def silent(self) -> list[str]:
        """Kinds of faults that never fired."""
        return [kind for kind in KINDS if not self.fired[kind]]


def run(case: Case, *, words: bool = False) -> Outcome:
    return World(case, words=words).run()


def run_seeds(seeds: Iterable[int]) -> Tally:
    """One after the other."""
    tally = Tally()
    for seed in seeds:
        tally.add(run(draw(seed)))
    return tally


# -- crashes at every event ----------------------------------------------------------------------


def cut_cases() -> Iterator[Case]:
    """For one request of each kind: every host dies before, in and after each of its events."""
    for route in ("disaggregated", "colocated"):
        whole = _one_request(route)
        world = World(whole)
        world.run()
        seen = world.scene.cuts.seen
        for host in _CUT_HOSTS:
            for event in range(1, seen[host] + 1):
                for moment in _MOMENTS:
                    kind = f"crash_{host.rsplit('-', 1)[0]}"
                    cut = Fault(kind=kind, host=host, event=event, moment=moment, for_s=0.4)
                    yield replace(whole, faults=(cut,))


def run_cuts(indices: Iterable[int], stride: int) -> Tally:
    """Some of the cut cases, by their index among each `stride`-th."""
    cases = list(cut_cases())[::stride]
    tally = Tally()
    for index in indices:
        tally.add(run(cases[index]))
    return tally


def _one_request(route: str) -> Case:
    prompt = tuple(range(40, 61))
    warm = Order(
        request="warm", at_s=1.0, gateway=0, prompt=prompt[:12], max_tokens=2, route="disaggregated"
    )
    order = Order(request="whole", at_s=1.5, gateway=0, prompt=prompt, max_tokens=6, route=route)
    shape = Shape(prefills=2, decodes=2, prefill_pages=8)
    return Case(seed=0, shape=shape, orders=(warm, order), fault_time_s=3.5)


# -- shrinking -----------------------------------------------------------------------------------


def shrink(case: Case, rule: str, most_runs: int = SHRINK_RUNS) -> Case:
    """The smallest case found that breaks the same rule: fewer faults, then fewer requests, then
    shorter ones."""
    return _Shrinking(case, rule, most_runs).run()


class _Shrinking:
    """Takes away what is not needed, pass by pass, until nothing can go or the runs are used."""

    def __init__(self, case: Case, rule: str, runs: int) -> None:
        self._case = case
        self._rule = rule
        self._runs = runs

    def run(self) -> Case:
        before = None
        while before != self._case and self._runs > 0:
            before = self._case
            self._leave_out(lambda case: case.faults, lambda case, rest: replace(case, faults=rest))
            self._leave_out(lambda case: case.orders, lambda case, rest: replace(case, orders=rest))
            for smaller in _smaller_shapes(self._case):
                self._try(smaller)
            self._shorten()
        return self._case

    def _try(self, candidate: Case) -> bool:
        """Keep a smaller case that still breaks the rule."""
        if self._runs <= 0:
            return False
        self._runs -= 1
        violation = run(candidate).violation
        broken = violation is not None and violation.rule == self._rule
        if broken:
            self._case = candidate
        return broken

    def _leave_out(
        self,
        entries_of: Callable[[Case], tuple[_Entry, ...]],
        put: Callable[[Case, tuple[_Entry, ...]], Case],
    ) -> None:
        """Half of the faults or orders, a quarter, ..., one."""
        size = max(1, len(entries_of(self._case)) // 2)
        while size:
            at = 0
            while at < len(entries := entries_of(self._case)):
                if not self._try(put(self._case, (*entries[:at], *entries[at + size :]))):
                    at += size
            size //= 2

    def _shorten(self) -> None:
        for index in range(len(self._case.orders)):
            shorter = True
            while shorter:
                orders = self._case.orders
                shorter = any(
                    self._try(replace(self._case, orders=_with(orders, index, order)))
                    for order in _shorter(orders[index])
                )


def _smaller_shapes(case: Case) -> Iterator[Case]:
    shape = case.shape
    if shape.gateways > 1 and all(order.gateway < shape.gateways - 1 for order in case.orders):
        yield replace(case, shape=replace(shape, gateways=shape.gateways - 1))
    named = {fault.host for fault in case.faults}
    fewer = {
        f"kvpool-{shape.kvpools - 1}": replace(shape, kvpools=max(0, shape.kvpools - 1)),
        f"prefill-{shape.prefills - 1}": replace(shape, prefills=max(1, shape.prefills - 1)),
        f"decode-{shape.decodes - 1}": replace(shape, decodes=max(1, shape.decodes - 1)),
    }
    for host, smaller in fewer.items():
        if host not in named and smaller != shape:
            yield replace(case, shape=smaller)


def _shorter(order: Order) -> Iterator[Order]:
    if order.max_tokens > 1:
        yield replace(order, max_tokens=order.max_tokens // 2)
    if len(order.prompt) > 1:
        yield replace(order, prompt=order.prompt[: len(order.prompt) // 2])
        yield replace(order, prompt=order.prompt[: len(order.prompt) - 1])


def _with(orders: tuple[Order, ...], index: int, order: Order) -> tuple[Order, ...]:
    return (*orders[:index], order, *orders[index + 1 :])
