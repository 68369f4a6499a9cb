"""Credit and turns: nothing is lost, bounds hold, and small reads do not wait for large ones."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as some

from shared.dataplane.flow import Budget, Portion, Turns, portions, room
from shared.dataplane.plane import PageRead
from shared.dataplane.runs import coalesce
from shared.ids import Generation, PageId

PAGE = 1000


def portion(size_bytes: int = PAGE) -> Portion:
    return Portion((), size_bytes)


def turns(budget: Budget, window_bytes: int = 4 * PAGE, slots: int = 8) -> Turns[str]:
    made: Turns[str] = Turns(budget, window_bytes, lambda: None)
    made.slots = slots
    return made


@given(
    pairs=some.lists(
        some.tuples(some.integers(0, 40), some.integers(0, 40)),
        unique_by=(lambda pair: pair[0], lambda pair: pair[1]),
    ),
    most_pages=some.integers(1, 10),
    most_bytes=some.integers(1, 12 * PAGE),
)
def test_portions_hold_every_page_once(
    pairs: list[tuple[int, int]], most_pages: int, most_bytes: int
) -> None:
    reads = [PageRead(PageId(s), Generation(s + 7), PageId(t)) for s, t in pairs]
    most = room(PAGE, most_bytes, most_pages)
    assert most == max(1, min(most_pages, most_bytes // PAGE))
    cut = portions(coalesce(reads), PAGE, most)
    found = []
    for part in cut:
        pages = sum(run.pages for run in part.runs)
        assert 0 < pages <= most
        assert part.size_bytes == pages * PAGE
        for run in part.runs:
            assert run.pages > 0
            for offset, generation in enumerate(run.generations):
                found.append((run.source + offset, generation, run.target + offset))
    assert sorted(found) == sorted((s, s + 7, t) for s, t in pairs)
    assert len(cut) == -(-len(pairs) // most)


def test_tickets_take_turns() -> None:
    line = turns(Budget(100 * PAGE), window_bytes=100 * PAGE)
    line.add("large", "large", [portion()] * 6)
    line.add("small", "small", [portion()])
    line.add("large", "large again", [portion()])
    line.slots = 100
    order = []
    while (turn := line.next()) is not None:
        order.append(turn[0])
    assert order == ["large", "small", *["large"] * 5, "large again"]


def test_window_and_slots_bound_a_link() -> None:
    line = turns(Budget(100 * PAGE), window_bytes=3 * PAGE, slots=2)
    line.add("t", "o", [portion()] * 9)
    assert [line.next() is not None for _ in range(3)] == [True, True, False]
    line.slots = 9
    assert [line.next() is not None for _ in range(2)] == [True, False]
    line.ended(portion())
    assert line.next() is not None
    assert line.flying_bytes == 3 * PAGE


def test_what_is_larger_than_every_bound_goes_alone() -> None:
    budget = Budget(2 * PAGE)
    line = turns(budget, window_bytes=2 * PAGE)
    line.add("t", "o", [portion(), portion(9 * PAGE), portion()])
    assert line.next() is not None
    assert line.next() is None
    line.ended(portion())
    assert line.next() is not None
    assert line.next() is None
    line.ended(portion(9 * PAGE))
    assert line.next() is not None


def test_links_share_the_budget_and_are_told_when_it_is_free() -> None:
    budget = Budget(2 * PAGE)
    told: list[str] = []
    first: Turns[str] = Turns(budget, 9 * PAGE, lambda: told.append("first"))
    second: Turns[str] = Turns(budget, 9 * PAGE, lambda: told.append("second"))
    first.slots = second.slots = 9
    first.add("a", "o", [portion()] * 3)
    second.add("b", "o", [portion()])
    assert [first.next() is not None for _ in range(3)] == [True, True, False]
    assert second.next() is None
    first.ended(portion())
    assert told == ["first", "second"]
    assert second.next() is not None
    first.close()
    assert budget.taken_bytes == PAGE
    second.close()
    assert budget.taken_bytes == 0


def test_dropping_a_read_leaves_others_of_its_ticket() -> None:
    line = turns(Budget(100 * PAGE), slots=1)
    line.add("t", "kept", [portion()])
    line.add("t", "dropped", [portion()] * 3)
    assert line.drop("t", "dropped") == 3
    assert line.drop("t", "dropped") == line.drop("other", "dropped") == 0
    assert line.next() == ("kept", portion())


def test_credit_is_conserved() -> None:
    draw = random.Random(5)
    budget = Budget(20 * PAGE)
    links = [turns(budget, window_bytes=8 * PAGE, slots=4) for _ in range(3)]
    flying: list[tuple[Turns[str], Portion]] = []
    for _ in range(3000):
        link = draw.choice(links)
        match draw.randrange(4):
            case 0:
                sizes = [portion(draw.randint(1, 9) * PAGE) for _ in range(draw.randint(1, 4))]
                link.add(draw.choice("abc"), draw.choice("xy"), sizes)
            case 1 if flying:
                done, part = flying.pop(draw.randrange(len(flying)))
                done.ended(part)
            case 2:
                link.drop(draw.choice("abc"), draw.choice("xy"))
            case _:
                turn = link.next()
                if turn is not None:
                    flying.append((link, turn[1]))
        assert budget.taken_bytes == sum(part.size_bytes for _, part in flying)
        for link in links:
            mine = [part.size_bytes for owner, part in flying if owner is link]
            assert (link.flying, link.flying_bytes) == (len(mine), sum(mine))
            assert len(mine) <= 4 and (sum(mine) <= 8 * PAGE or len(mine) == 1)


def test_what_may_go_at_once_never_overtakes_what_waits() -> None:
    line = turns(Budget(100 * PAGE), window_bytes=2 * PAGE)
    assert line.enter(portion())
    assert (line.flying, line.flying_bytes) == (1, PAGE)
    assert not line.enter(portion(2 * PAGE))  # no credit
    line.add("ticket", "first", [portion(2 * PAGE)])
    assert not line.enter(portion())  # credit, but someone waits
    assert line.next() is None
    line.ended(portion())
    assert line.next() == ("first", portion(2 * PAGE))
    line.ended(portion(2 * PAGE))
    assert line.enter(portion(9 * PAGE))  # alone it may be larger than the window
    assert not line.enter(portion())
