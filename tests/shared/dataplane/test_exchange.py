"""The compiled exchange and the plain one: the same bytes, the same outcomes, nothing kept."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from shared.dataplane import link_wire as wire
from shared.dataplane.native.library import compiled
from shared.dataplane.region import Region
from shared.dataplane.runs import Run
from shared.dataplane.ucx_exchange import FAILED, Exchange
from shared.dataplane.ucx_library import UcxLibrary
from shared.ids import Generation, PageId
from tests.shared.dataplane.pages import CANARY, ArrayPages

PAGES, PAGE_BYTES = 16, 4096
TAG = 5 * wire.TAG_STEP
MANY_TURNS = 200_000


class Heard:
    """Remembers what it was told; `told` is a Sink, and is told of the one who asked."""

    def __init__(self) -> None:
        self.outcomes: list[int] = []

    def told(self, what: object, outcome: int) -> None:
        assert what is self
        self.outcomes.append(outcome)


class Side:
    """One worker with its exchange and pages."""

    def __init__(self, plain: bool) -> None:
        self.library = UcxLibrary("127.0.0.1", cuda=False, shared_only=False, plain=plain)
        self.worker = self.library.worker(wire.Lane.SHM)
        self.pages = ArrayPages(PAGES, PAGE_BYTES)
        self.region = Region(self.pages)
        self.exchange: Exchange = self.library.exchange(self.worker, self.region)
        self.slot = np.zeros(wire.MAX_FRAME_BYTES, np.uint8)
        self.heard = Heard()

    def meet(self, other: Side) -> None:
        self.endpoint = self.library.endpoint(self.worker, other.worker.address.tobytes())
        self.exchange.connect(self.endpoint.handle, TAG)

    def listen(self) -> None:
        where = int(self.slot.ctypes.data)
        self.exchange.hear(wire.ASK_TAG, where, self.slot.nbytes, self.heard.told, self.heard)

    def asks(self) -> list[wire.Ask]:
        """What the message in our slot asks for."""
        kind, body = wire.parse_frame(self.slot[: self.heard.outcomes[-1]].tobytes())
        assert kind is wire.Kind.ASK
        return wire.parse_asks(body)


@pytest.fixture(params=["compiled", "plain"])
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    """A reader and an owner."""
    sides = Side(request.param == "plain"), Side(request.param == "plain")
    for side, other in (sides, sides[::-1]):
        side.meet(other)
    sides[1].pages.stamp()
    sides[0].pages.array[:] = CANARY
    yield sides
    for side in sides:
        side.exchange.stop()
    settle(sides, lambda: not any(side.exchange.unfinished for side in sides))


def run(source: int, target: int, *generations: int) -> Run:
    return Run(PageId(source), PageId(target), tuple(map(Generation, generations)))


def settle(sides: tuple[Side, Side], done: Callable[[], bool]) -> None:
    for _ in range(MANY_TURNS):
        if done():
            return
        for side in sides:
            side.exchange.turn(0)
    raise AssertionError("it never ended")


def heard(sides: tuple[Side, Side], sink: Heard) -> int:
    settle(sides, lambda: bool(sink.outcomes))
    assert len(sink.outcomes) == 1
    return sink.outcomes[0]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")
def test_it_compiles_where_there_is_a_compiler() -> None:
    assert compiled() is not None


def test_asks_of_one_turn_arrive_as_they_were_meant(sides: tuple[Side, Side]) -> None:
    reader, owner = sides
    wanted = [
        ("ticket", (run(3, 5, 1, 2, 2**64 - 1),)),
        ("ü" * 200, (run(0, 1, 7), run(2**32 - 1, 9, 8, 9), run(4, 0, 0))),
        ("", (run(1, 15, 3),)),
    ]
    owner.listen()
    for number, (ticket, runs) in enumerate(wanted):
        reader.exchange.ask(runs, ticket, 1000 + number, reader.heard.told, reader.heard)
    assert heard(sides, owner.heard) > 0
    asks = owner.asks()
    assert [ask.number for ask in asks] == [0, 1, 2]
    for number, (ask, (ticket, runs)) in enumerate(zip(asks, wanted, strict=True)):
        assert (ask.ticket, ask.page_bytes, ask.timeout_ms) == (ticket, PAGE_BYTES, 1000 + number)
        assert ask.tag == TAG + number * wire.TAG_STEP
        assert ask.runs == tuple((r.source, r.generations) for r in runs)


def test_more_asks_than_fit_go_in_several_messages(sides: tuple[Side, Side]) -> None:
    reader, owner = sides
    for _ in range(2 * wire.MAX_ASKS + 1):
        reader.exchange.ask((run(1, 1, 2),), "ticket", 1000, reader.heard.told, reader.heard)
    sizes: list[int] = []
    for expected in (wire.MAX_ASKS, wire.MAX_ASKS, 1):
        owner.listen()
        settle(sides, lambda: len(owner.heard.outcomes) > len(sizes))
        sizes.append(len(owner.asks()))
        assert sizes[-1] == expected


@pytest.mark.parametrize("answer", list(wire.Answer))
def test_an_answer_ends_both_sides(sides: tuple[Side, Side], answer: wire.Answer) -> None:
    reader, owner = sides
    given = Heard()
    reader.exchange.ask(
        (run(2, 7, 5, 5), run(9, 0, 5)), "ticket", 1000, reader.heard.told, reader.heard
    )
    named = (wire.PageRun(2, (5, 5)), wire.PageRun(9, (5,)))
    owner.exchange.give(named, TAG, answer, given.told, given)
    assert heard(sides, reader.heard) == answer
    assert heard(sides, given) >= 0
    moved = {7: 2, 8: 3, 0: 9} if answer is wire.Answer.ACCEPTED else {}
    for target, source in moved.items():
        assert np.array_equal(reader.pages.array[target], owner.pages.array[source])
    assert reader.pages.untouched([page for page in range(PAGES) if page not in moved])
    assert reader.exchange.unfinished == 0


@pytest.mark.parametrize("lie", ["short", "empty", "unknown", "mixed"])
def test_an_answer_that_lies_is_a_failure(sides: tuple[Side, Side], lie: str) -> None:
    reader, owner = sides
    reader.exchange.ask(
        (run(2, 7, 5, 5), run(9, 0, 5)), "ticket", 1000, reader.heard.told, reader.heard
    )
    second = TAG + wire.RUN_STEP
    whole = bytes(2 * PAGE_BYTES)
    first, other = {
        "short": ((TAG, whole[1:]), (second, whole[:PAGE_BYTES])),
        "empty": ((TAG, b""), (second, whole[:PAGE_BYTES])),
        "unknown": ((TAG | 7, b""), (second | 7, b"")),
        "mixed": ((TAG, whole), (second | wire.Answer.REFUSED, b"")),
    }[lie]
    owner.exchange.say(*first)
    owner.exchange.say(*other)
    assert heard(sides, reader.heard) == FAILED


def test_pages_that_are_not_ours_are_never_posted(sides: tuple[Side, Side]) -> None:
    exchange = sides[0].exchange
    for wrong in (run(1, PAGES, 1), run(1, PAGES - 1, 1, 1)):
        with pytest.raises(IndexError):
            exchange.ask((run(0, 0, 1), wrong), "ticket", 1000, sides[0].heard.told, None)
        named = (wire.PageRun(wrong.target, wrong.generations),)
        with pytest.raises(IndexError):
            exchange.give(named, TAG, wire.Answer.ACCEPTED, sides[0].heard.told, None)
    assert exchange.unfinished == 0


def test_after_a_stop_nobody_is_told_and_nothing_is_kept(sides: tuple[Side, Side]) -> None:
    reader, owner = sides
    sink = Heard()
    reader.listen()
    owner.listen()
    reader.exchange.ask((run(2, 7, 5, 5), run(9, 0, 5)), "ticket", 1000, sink.told, sink)
    reader.exchange.stop()
    settle(sides, lambda: reader.exchange.unfinished == 0)
    reader.exchange.turn(0)
    for _ in range(1000):
        owner.exchange.turn(0)
    assert sink.outcomes == reader.heard.outcomes == owner.heard.outcomes == []
    gone = weakref.ref(sink)
    del sink
    gc.collect()
    assert gone() is None
