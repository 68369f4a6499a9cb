"""From a seed to a case: the only place where runs are invented."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Final

from loadgen.sim.case import PLANNED, Case, Fault, Order, Shape

_VOCAB: Final = 256
_MORE_FAULTS: Final = (0, 0, 1, 1, 2, 3, 5, 9)
_BUSY_S: Final = 1.2
"""When the cluster has formed and the requests begin to come."""
_BUSY_FOR_S: Final = 1.2
_LATEST_S: Final = 5.0


class Theme(StrEnum):
    """What a run is mostly about; chance alone would seldom bring it together."""

    ANYTHING = "anything"
    LATE_READS = "late reads"
    """Reads reach their owner when its pages have gone to somebody else."""
    POOL = "pool"
    """Prefill workers that are too small to keep a prompt which all requests share."""


_THEMES: Final = (Theme.ANYTHING,) * 3 + (Theme.LATE_READS, Theme.POOL)


def draw(seed: int) -> Case:
    """Equal for equal seeds. The first fault goes round all kinds, so that any run of as many
    seeds as there are kinds tries each of them."""
    chance = random.Random(f"case {seed}")
    shape, theme = _shape(chance), chance.choice(_THEMES)
    kinds = [PLANNED[seed % len(PLANNED)]]
    kinds += [chance.choice(PLANNED) for _ in range(chance.choice(_MORE_FAULTS))]
    if not shape.kvpools and {"crash_kvpool", "bit_flip_rest"} & set(kinds):
        shape = replace(shape, kvpools=1)
    match theme:
        case Theme.LATE_READS:
            shape = replace(shape, prefills=1, prefill_pages=10, lease_s=0.8)
        case Theme.POOL:
            shape = replace(shape, prefills=2, prefill_pages=10, kvpools=1, kvpool_pages=30)
        case Theme.ANYTHING:
            pass
    leavers = "client_gone" in kinds or theme is Theme.LATE_READS
    orders = _orders(seed, chance, shape, theme, leavers=leavers)
    faults = [fault for kind in kinds for fault in _fault(kind, chance, shape)]
    if theme is Theme.LATE_READS:
        faults += _late_reads(chance)
    if theme is Theme.POOL and chance.random() < 0.5:
        faults += _unsettled(chance, _BUSY_S + chance.uniform(0.0, 1.0))
    if chance.random() < 0.4:
        faults.append(_drizzle(chance))
    shape, orders = _batching(seed, shape, orders)
    return Case(seed=seed, shape=shape, orders=tuple(orders), faults=tuple(faults))


def _batching(seed: int, shape: Shape, orders: list[Order]) -> tuple[Shape, list[Order]]:
    """How decode lets in, cuts and orders. Drawn apart, so the rest of a case stays as it is."""
    chance = random.Random(f"batching {seed}")
    shape = replace(
        shape,
        alone_tokens=chance.choice((shape.step_tokens, 32)),
        forecast=chance.random() < 0.4,
    )
    levels = chance.choice(((0,), (0, 0, 50), (-100, -50, 0, 7, 50, 100)))
    return shape, [replace(order, priority=chance.choice(levels)) for order in orders]


def _shape(chance: random.Random) -> Shape:
    pick = chance.choice
    return Shape(
        schedulers=pick((1, 2, 2)),
        gateways=pick((1, 1, 1, 2)),
        prefills=pick((1, 1, 2, 2, 3)),
        decodes=pick((1, 1, 2, 2, 3)),
        kvpools=pick((0, 1, 1, 1, 2)),
        prefill_pages=pick((10, 14, 20, 40)),
        decode_pages=pick((10, 12, 16, 24, 40)),
        kvpool_pages=pick((2, 6, 12, 30)),
        chunk_tokens=pick((4, 8, 16)),
        step_tokens=pick((4, 8, 16)),
        max_sequences=pick((2, 4, 8)),
        recompute_tokens=pick((8, 8192, 8192)),
        colocate_below_tokens=pick((0, 4, 8)),
        lease_s=pick((0.8, 1.5, 3.0)),
    )


def _orders(
    seed: int, chance: random.Random, shape: Shape, theme: Theme, *, leavers: bool
) -> list[Order]:
    stems = [tuple(chance.randrange(_VOCAB) for _ in range(24)) for _ in range(3)]
    count = chance.randint(3, 10)
    burst = chance.random() < 0.3
    orders = [
        _order(f"{seed}-{number}", chance, shape, stems, burst=burst, leaver=leavers)
        for number in range(count)
    ]
    if theme is Theme.POOL:
        rounds = [_pooled(order, stems, chance) for order in orders[:6]]
        again = [replace(order, request=f"{order.request}b") for order in rounds]
        return [*rounds, *(_pooled(order, stems, chance) for order in again)]
    return orders


def _pooled(order: Order, stems: list[tuple[int, ...]], chance: random.Random) -> Order:
    """Long shared beginnings, one after the other, through prefill."""
    stem = chance.choice(stems)[: chance.choice((16, 24, 24))]
    at_s = _BUSY_S + chance.uniform(0.0, 3.0)
    tail = order.prompt[-3:]
    return replace(order, prompt=stem + tail, at_s=at_s, leaves_at_s=None, route="disaggregated")


def _order(
    name: str,
    chance: random.Random,
    shape: Shape,
    stems: list[tuple[int, ...]],
    *,
    burst: bool,
    leaver: bool,
) -> Order:
    pick = chance.choice
    stem = pick(stems)[: pick((0, 4, 8, 9, 16, 24))]
    tail = tuple(chance.randrange(_VOCAB) for _ in range(chance.randint(1, 9)))
    leaves = leaver and chance.random() < 0.7
    at_s = _BUSY_S + (0.0 if burst else chance.uniform(0.0, _BUSY_FOR_S))
    return Order(
        request=name,
        at_s=at_s,
        gateway=chance.randrange(shape.gateways),
        prompt=stem + tail,
        max_tokens=pick((1, 2, 5, 9, 14, 22)),
        temperature=pick((0.0, 0.0, 1.0)),
        seed=chance.randrange(1 << 30),
        stop=tuple(sorted(chance.sample(range(32, 127), pick((0, 0, 6))))),
        route=pick(("auto", "auto", "disaggregated", "disaggregated", "colocated")),
        deadline_s=pick((3.0, 8.0, 20.0)),
        no_queue=chance.random() < 0.1,
        leaves_after=pick((1, 3)) if leaves and chance.random() < 0.4 else None,
        leaves_at_s=at_s + chance.expovariate(4.0) if leaves else None,
        stops_after=pick((None, None, None, 2)),
    )


# -- faults --------------------------------------------------------------------------------------


def _fault(kind: str, chance: random.Random, shape: Shape) -> list[Fault]:
    if kind == "client_gone":
        return []
    draw_one: Callable[[str, random.Random, Shape], list[Fault]]
    if kind.startswith("crash_"):
        draw_one = _crash
    elif kind in _TIMED:
        draw_one = _timed
    else:
        draw_one = _window
    return draw_one(kind, chance, shape)


def _crash(kind: str, chance: random.Random, shape: Shape) -> list[Fault]:
    role = kind.removeprefix("crash_")
    host = _host(role, chance, shape)
    if host is None:
        return []
    back_s = chance.choice((0.05, 0.3, 1.0, 3.0))
    if chance.random() < 0.3:
        at_s = _BUSY_S + chance.uniform(0.05, _BUSY_FOR_S)
        return [Fault(kind=kind, host=host, at_s=at_s, for_s=back_s)]
    event = chance.randint(5, chance.choice((20, 50, 90)))
    moment = chance.choice(("before", "none", "half", "all"))
    return [Fault(kind=kind, host=host, event=event, moment=moment, for_s=back_s)]


_TIMED: Final = frozenset(("pause", "nats_outage", "wall_jump", "clock_drift", "bit_flip_rest"))


def _timed(kind: str, chance: random.Random, shape: Shape) -> list[Fault]:
    at_s, host = _moment(chance), _any_host(chance, shape)
    match kind:
        case "pause":
            for_s = chance.choice((0.3, 1.0, 2.2, shape.lease_s + 0.7, shape.lease_s + 0.7))
            return [Fault(kind=kind, host=host, at_s=at_s, for_s=for_s)]
        case "nats_outage":
            return [Fault(kind=kind, at_s=at_s, for_s=chance.choice((0.1, 0.5, 1.5, 4.0)))]
        case "wall_jump":
            return [Fault(kind=kind, host=host, at_s=at_s, amount=chance.choice((-3600, 3600)))]
        case "clock_drift":
            hosts = [host, _any_host(chance, shape)]
            return [Fault(kind=kind, host=h, amount=chance.uniform(0.95, 1.05)) for h in hosts]
        case _:
            return [Fault(kind=kind, at_s=_moment(chance) + 0.4) for _ in range(4)]


def _window(kind: str, chance: random.Random, shape: Shape) -> list[Fault]:
    at_s = _moment(chance)
    for_s = chance.choice((0.5, 1.5, 4.0))
    host, way = chance.choice(("", _any_host(chance, shape))), ""
    rate, amount = chance.choice((0.05, 0.2, 0.6)), 0.0
    match kind:
        case "cut_control" | "cut_plane":
            host, way, rate = _any_host(chance, shape), chance.choice(("up", "down")), 1.0
        case "message_delay" | "message_duplicate" | "message_reorder":
            amount = chance.choice((0.01, 0.1, 1.0, 3.0))
        case "page_late":
            host, amount = "", chance.choice((0.05, 0.5, 3.0))
        case "slow_link":
            host, amount = "", chance.choice((20.0, 200.0))
        case "page_unsettled":
            return _unsettled(chance, at_s)
        case "page_torn" | "bit_flip_wire" | "report_twice":
            host = ""
        case _:
            pass
    return [Fault(kind=kind, host=host, way=way, at_s=at_s, for_s=for_s, rate=rate, amount=amount)]


def _late_reads(chance: random.Random) -> list[Fault]:
    """Slow links, and a reader that stands still."""
    at_s = _BUSY_S + chance.uniform(0.0, 0.6)
    late = Fault(kind="page_late", at_s=_BUSY_S, for_s=3.0, rate=0.6, amount=1.5)
    pause = Fault(kind="pause", host="decode-0", at_s=at_s, for_s=chance.uniform(0.9, 1.6))
    return [late, pause]


def _drizzle(chance: random.Random) -> Fault:
    """Now and then a message comes again, all the time."""
    amount = chance.choice((0.1, 0.5, 2.0))
    return Fault(kind="message_duplicate", at_s=0.0, for_s=9.0, rate=0.15, amount=amount)


def _unsettled(chance: random.Random, at_s: float) -> list[Fault]:
    """Only a read that takes too long can end so."""
    late = Fault(kind="page_late", at_s=at_s, for_s=2.0, rate=0.7, amount=4.0)
    return [late, Fault(kind="page_unsettled", at_s=at_s, for_s=5.0, rate=0.5)]


def _moment(chance: random.Random) -> float:
    """Mostly while much goes on."""
    if chance.random() < 0.8:
        return _BUSY_S + chance.uniform(-0.2, _BUSY_FOR_S)
    return chance.uniform(_BUSY_S, _LATEST_S)


def _host(role: str, chance: random.Random, shape: Shape) -> str | None:
    counts = {
        "gateway": shape.gateways,
        "scheduler": shape.schedulers,
        "prefill": shape.prefills,
        "decode": shape.decodes,
        "kvpool": shape.kvpools,
    }
    return f"{role}-{chance.randrange(counts[role])}" if counts[role] else None


def _any_host(chance: random.Random, shape: Shape) -> str:
    roles = ("gateway", "scheduler", "prefill", "prefill", "decode", "decode", "kvpool")
    return _host(chance.choice(roles), chance, shape) or "decode-0"
