"""The real model in float32 says what the reference says: whole, chunked, and handed over."""

from __future__ import annotations

import pytest

from shared.checkpoint import open_checkpoint
from shared.engine.batch import Engine
from shared.engine.building import build_engine
from tests.golden.cases import SUBSET, GoldenCase, full_set, load

from .sequences import BLOCK, copy_pages, decode, pages_for, prefill, scattered

pytestmark = pytest.mark.model
PAGES = 640
END = 2
FEW, ALL = load(SUBSET), load(full_set())


@pytest.fixture(scope="module")
def engines(model_path: str) -> tuple[Engine, Engine]:
    """A prefill engine and a decode engine."""
    checkpoint = open_checkpoint(model_path)
    prefills, decodes = (
        build_engine(checkpoint, "cpu", "float32", PAGES, BLOCK, "torch") for _ in range(2)
    )
    return prefills, decodes


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)
def test_whole_prompt(engines: tuple[Engine, Engine], case: GoldenCase) -> None:
    one = engines[0]
    pages = scattered(PAGES, pages_for(len(case.prompt) + 48), 1)
    first = prefill(one, case.prompt, pages)
    tokens = decode(one, len(case.prompt), first, pages, len(case.greedy), stop=END)
    assert case.agrees(tokens)


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)
def test_chunks_and_handover(engines: tuple[Engine, Engine], case: GoldenCase) -> None:
    assert case.agrees(handed_over(*engines, case))


def test_shared_prefix_is_computed_once(engines: tuple[Engine, Engine]) -> None:
    one, (_, first, second) = engines[0], FEW
    assert first.prompt[:BLOCK] == second.prompt[:BLOCK]
    pages = scattered(PAGES, 16, 3)
    prefill(one, first.prompt, pages[:8])
    warm = (pages[0], *pages[8:])
    token = prefill(one, second.prompt, warm, start=BLOCK)
    tokens = decode(one, len(second.prompt), token, warm, len(second.greedy), stop=END)
    assert second.agrees(tokens)


@pytest.mark.golden
@pytest.mark.skipif(not ALL, reason="the full golden file is not here (set BATON_GOLDEN)")
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_every_case(engines: tuple[Engine, Engine], case: GoldenCase) -> None:
    assert case.agrees(handed_over(*engines, case))


def handed_over(source: Engine, target: Engine, case: GoldenCase) -> list[int]:
    """Prefill in random chunks on one engine, decode on another over copied pages."""
    count = pages_for(len(case.prompt) + 48)
    theirs, ours = scattered(PAGES, count, 1), scattered(PAGES, count, 2)
    first = prefill(source, case.prompt, theirs, seed=len(case.prompt))
    filled = list(zip(theirs, ours, strict=True))[: pages_for(len(case.prompt))]
    copy_pages(source, target, filled, source.memory.page_bytes)
    return decode(target, len(case.prompt), first, ours, len(case.greedy), stop=END)
