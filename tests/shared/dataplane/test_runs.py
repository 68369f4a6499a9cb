"""Coalescing: every page exactly once, contiguous on both sides, and no run could be longer."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some

from shared.dataplane.plane import PageRead
from shared.dataplane.runs import coalesce
from shared.ids import Generation, PageId

pairs = some.lists(
    some.tuples(some.integers(0, 40), some.integers(0, 40)),
    unique_by=(lambda pair: pair[0], lambda pair: pair[1]),
)


@given(pairs)
def test_runs_cover_the_read_exactly(chosen: list[tuple[int, int]]) -> None:
    pages = [PageRead(PageId(s), Generation(s + 100), PageId(t)) for s, t in chosen]
    runs = coalesce(pages)
    spread = {
        (run.source + offset, run.target + offset, generation)
        for run in runs
        for offset, generation in enumerate(run.generations)
    }
    assert spread == {(page.source, page.target, page.generation) for page in pages}
    assert sum(run.pages for run in runs) == len(pages)
    for before, after in pairwise(runs):
        joined = (before.source + before.pages, before.target + before.pages)
        assert joined != (after.source, after.target)
