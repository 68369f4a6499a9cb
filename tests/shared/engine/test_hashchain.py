"""The token oracle: the same tokens however computed, other tokens from any wrong page."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.checkpoint import open_checkpoint
from shared.engine.batch import Draw, Penalties, StepItem
from shared.engine.building import build_engine
from shared.engine.hashchain import POISONED, HashchainEngine
from shared.errors import EngineError, StartupError
from shared.ids import PageId

from .sequences import (
    BLOCK,
    Sampling,
    copy_pages,
    decode,
    pages_for,
    prefill,
    scattered,
    table,
)

PAGES = 64
PROMPT = [7 * index % 256 for index in range(100)]


def engine(pages: int = PAGES, block: int = BLOCK) -> HashchainEngine:
    built = build_engine(open_checkpoint("hashchain"), "cpu", "float32", pages, block, "hashchain")
    assert isinstance(built, HashchainEngine)
    return built


def expected(prompt: list[int], count: int, sampling: Sampling | None = None) -> list[int]:
    one = engine()
    pages = table(*range(pages_for(len(prompt) + count)))
    first = prefill(one, prompt, pages, sampling)
    return decode(one, len(prompt), first, pages, count, sampling)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 300),
    chunk_seed=st.integers(0, 999),
    page_seed=st.integers(0, 999),
    temperature=st.sampled_from([0.0, 0.7]),
)
def test_chunks_and_page_placement_do_not_matter(
    length: int, chunk_seed: int, page_seed: int, temperature: float
) -> None:
    prompt = [index * index % 256 for index in range(length)]
    sampling = Sampling(temperature, seed=5)
    pages = scattered(PAGES, pages_for(length + 9), page_seed)
    one = engine()
    first = prefill(one, prompt, pages, sampling, chunk_seed)
    assert decode(one, length, first, pages, 9, sampling) == expected(prompt, 9, sampling)


def test_pages_copied_to_another_engine_go_on_alike() -> None:
    source, target = engine(), engine()
    theirs, ours = scattered(PAGES, 7, 1), scattered(PAGES, 7, 2)
    first = prefill(source, PROMPT, theirs)
    assert first == prefill(engine(), PROMPT, ours)
    copy_pages(source, target, list(zip(theirs, ours, strict=True)), source.memory.page_bytes)
    assert source.checksums(theirs) == target.checksums(ours)
    assert decode(target, 100, first, ours, 12) == expected(PROMPT, 12)


def test_prompt_and_output_can_be_replayed_as_prompt() -> None:
    tokens = expected(PROMPT, 20)
    assert expected(PROMPT + tokens[:8], 12) == tokens[8:]


def test_draw_depends_on_seed_and_position_only_above_zero_temperature() -> None:
    assert expected(PROMPT, 8, Sampling(seed=1)) == expected(PROMPT, 8, Sampling(seed=2))
    assert expected(PROMPT, 8, Sampling(1.0, seed=1)) != expected(PROMPT, 8, Sampling(1.0, seed=2))


def test_tokens_are_printable_and_never_end() -> None:
    assert all(32 <= token < 127 for token in expected(PROMPT, 200))


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 5), byte=st.integers(0, 4_095), bit=st.integers(0, 7))
def test_one_flipped_bit_in_any_full_page_changes_the_output(
    place: int, byte: int, bit: int
) -> None:
    pages, wrong = table(*range(9)), engine()
    first = prefill(wrong, PROMPT, pages)
    wrong.memory.run(pages[place], 1)[byte] ^= 1 << bit
    assert decode(wrong, 100, first, pages, 12) != expected(PROMPT, 12)


def test_swapped_stale_and_foreign_pages_change_the_output() -> None:
    pages, right = table(*range(9)), expected(PROMPT, 12)
    one = engine()
    first = prefill(one, PROMPT, pages)
    prefill(one, PROMPT[::-1], table(*range(20, 29)))
    swapped = table(1, 0, 2, 3, 4, 5, 6, 7, 8)
    stale = table(0, 1, 40, 3, 4, 5, 6, 7, 8)
    foreign = table(0, 1, 22, 3, 4, 5, 6, 7, 8)
    for wrong in (swapped, stale, foreign):
        assert decode(one, 100, first, wrong, 12) != right
    assert decode(one, 100, first, pages, 12) == right


def test_bytes_beyond_the_last_token_do_not_matter() -> None:
    one, pages = engine(), table(*range(9))
    for page in pages:
        one.memory.run(page, 1)[:] = 0xA5
    first = prefill(one, PROMPT, pages)
    assert decode(one, 100, first, pages, 12) == expected(PROMPT, 12)


def test_mixed_step_equals_single_steps() -> None:
    one = engine()
    ours, theirs = table(*range(9)), table(*range(10, 19))
    first = prefill(one, PROMPT, ours)
    mixed = one.step(
        [
            StepItem((first,), 100, ours, Draw(0.0, 1.0, 0, 1)),
            StepItem(tuple(PROMPT[:50]), 0, theirs, None),
        ]
    )
    assert mixed.tokens == (expected(PROMPT, 2)[1], None)
    assert prefill(one, PROMPT, theirs, start=50) == first


@pytest.mark.parametrize(
    "item",
    [
        StepItem((), 0, table(0), None),
        StepItem((1,), -1, table(0), None),
        StepItem((1,) * 17, 0, table(0), None),
        StepItem((1,), 0, table(PAGES), None),
        StepItem((1,), 0, table(-1), None),
        StepItem((512,), 0, table(0), None),
        StepItem((-1,), 0, table(0), None),
        StepItem((1,), 8_192, table(*[0] * 600), None),
        StepItem((1,), 0, table(0), Draw(-1.0, 1.0, 0, 0)),
        StepItem((1,), 0, table(0), Draw(1.0, 0.0, 0, 0)),
        StepItem((1,), 0, table(0), Draw(1.0, 1.0, 0, 0, top_k=-1)),
        StepItem((1,), 0, table(0), Draw(1.0, 1.0, 0, 0, min_p=1.1)),
        StepItem((1,), 0, table(0), Draw(1.0, 1.0, 0, 0, logprobs=21)),
        StepItem((1,), 0, table(0), Draw(1.0, 1.0, 0, 0, bias_ids=(1,))),
        StepItem((1,), 0, table(0), Draw(1.0, 1.0, 0, 0, bias_ids=(512,), biases=(1.0,))),
        StepItem((1,), 0, table(0), Draw(1.0, 1.0, 0, 0, bias_ids=(1,), biases=(math.nan,))),
        StepItem((1,), 0, table(0), Draw(1.0, 1.0, 0, 0, banned=(-1,))),
        StepItem((1,), 0, table(0), Draw(0.0, 1.0, 0, 0, penalties=Penalties(1, 0, 0, b"a", 0))),
        StepItem((1,), 0, table(0), Draw(0.0, 1.0, 0, 0, penalties=Penalties(0, 0, 0, b"", 0))),
        StepItem((1,), 0, table(0), Draw(0.0, 1.0, 0, 0, penalties=Penalties(1, 0, 0, b"", 1))),
    ],
)
def test_items_out_of_bounds_are_refused(item: StepItem) -> None:
    one = engine()
    before = one.checksums([PageId(0)])
    with pytest.raises(EngineError, match="step item 1"):
        one.step([StepItem((1,), 0, table(1), None), item])
    assert one.checksums([PageId(0), PageId(1)]) == before * 2


def test_everything_that_shapes_a_draw_changes_the_token() -> None:
    """Else a history that is rebuilt wrongly, or a lost parameter, would go unseen."""
    one, base = engine(), Draw(0.8, 1.0, 5, 0)
    changes: list[dict[str, object]] = [
        {},
        {"position": 1},
        {"seed": 6},
        {"top_k": 5},
        {"min_p": 0.1},
        {"bias_ids": (50,), "biases": (1.0,)},
        {"bias_ids": (50,), "biases": (2.0,)},
        *(
            {"penalties": Penalties(*strengths, struct.pack("<2i", *tokens), prompt)}
            for strengths in ((1.1, 0.0, 0.0), (1.0, 0.5, 0.0), (1.0, 0.0, 0.5))
            for tokens in ((7, 8), (8, 7))
            for prompt in (1, 2)
        ),
    ]
    draws = [replace(base, **change) for change in changes]  # type: ignore[arg-type]
    lines = [
        [replace(draw, position=draw.position + at) for at in range(0, 40, 2)] for draw in draws
    ]
    found = [
        tuple(
            one.step([StepItem((9,), 0, table(at), draw)]).tokens[0] for at, draw in enumerate(line)
        )
        for line in lines
    ]
    assert len(set(found)) == len(changes)


def test_bans_and_great_biases_are_kept() -> None:
    one = engine()
    banned = tuple(range(32, 100))
    draws = [Draw(0.8, 1.0, 5, at, banned=banned, logprobs=2) for at in range(50)]
    for draw in draws:
        result = one.step([StepItem((9,), 0, table(0), draw), StepItem((9,), 0, table(1), None)])
        (token, _), (told, nothing) = result.tokens, result.logprobs
        assert token is not None and token >= 100
        assert told is not None and told.top_ids[0] == token and nothing is None
    only = Draw(0.8, 1.0, 5, 0, bias_ids=(77,), biases=(100.0,))
    assert one.step([StepItem((9,), 0, table(0), only)]).tokens == (77,)


def test_memory_is_contiguous_and_bounded() -> None:
    memory = engine().memory
    assert (memory.pages, memory.page_bytes) == (PAGES, 4_096)
    assert memory.run(PageId(2), 3).nbytes == 3 * 4_096
    for first, count in ((-1, 1), (0, 0), (PAGES, 1), (PAGES - 1, 2)):
        with pytest.raises(EngineError):
            memory.run(PageId(first), count)
    with pytest.raises(EngineError):
        engine().checksums([PageId(PAGES)])


def test_other_block_sizes_work_alike() -> None:
    pages, chunked, whole = table(*range(30)), engine(block=4), engine(block=4)
    first = prefill(whole, PROMPT, pages)
    assert prefill(chunked, PROMPT, pages, seed=3) == first
    assert decode(chunked, 100, first, pages, 8) == decode(whole, 100, first, pages, 8)


def test_building_refuses_what_cannot_be() -> None:
    checkpoint = open_checkpoint("hashchain")
    for pages, backend in ((8, "torch"), (8, "magic"), (0, "hashchain")):
        with pytest.raises(StartupError):
            build_engine(checkpoint, "cpu", "float32", pages, BLOCK, backend)


@pytest.mark.process
def test_computing_the_poison_token_ends_the_process() -> None:
    program = (
        "from shared.checkpoint import open_checkpoint\n"
        "from shared.engine.batch import StepItem\n"
        "from shared.engine.building import build_engine, poison\n"
        "model = open_checkpoint('hashchain')\n"
        "one = build_engine(model, 'cpu', 'float32', 4, 16, 'hashchain')\n"
        "poison(one, 300)\n"
        "one.step([StepItem((1, 2), 0, (0,), None)])\n"
        "print('healthy', flush=True)\n"
        "one.step([StepItem((1, 300), 0, (0,), None)])\n"
        "print('not reached', flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (POISONED, "healthy\n"), ended.stderr
