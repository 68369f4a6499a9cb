"""Cutting chunks, sharing steps, standing back for siblings; tokens never depend on any of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.prefill.core.actions import RunStep
from services.prefill.core.batching import chunk_size
from services.prefill.core.work import prefill_seconds
from shared.ids import RequestId
from shared.wire.workers import CostModel
from tests.services.prefill.rig import BLOCK, Rig, expected_token, job, limits


@given(
    blocks=st.integers(0, 50),
    left=st.integers(1, 500),
    budget=st.integers(1, 300),
    block=st.integers(1, 32),
)
def test_a_chunk_is_the_rest_or_ends_on_a_border(
    blocks: int, left: int, budget: int, block: int
) -> None:
    start = blocks * block
    size = chunk_size(start, left, budget, block)
    assert 0 <= size <= min(left, budget)
    assert size == left or (start + size) % block == 0
    if size == 0:
        assert budget < min(left, block)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    chunk=st.integers(BLOCK, 70),
    shared=st.booleans(),
)
def test_tokens_do_not_depend_on_chunks_and_batch_mates(
    lengths: list[int], chunk: int, shared: bool
) -> None:
    rig = Rig(pages=100, limits=limits(chunk_tokens=chunk))
    prompts = {
        f"r{i}": tuple(range(0 if shared else 70 * i, (0 if shared else 70 * i) + length))
        for i, length in enumerate(lengths)
    }
    for name, tokens in prompts.items():
        rig.start(job(name, tokens))
    rig.settle()
    assert rig.largest_step <= chunk
    for name, entry in rig.first_tokens().items():
        assert entry.token_ids == (expected_token(prompts[name]),)
    assert len(rig.first_tokens()) == len(prompts)


def test_every_chunk_but_the_last_ends_on_a_block_border() -> None:
    rig = Rig(limits=limits(chunk_tokens=10))
    rig.start(job("a", range(43)))
    rig.settle()
    sizes = [step.items[0].tokens for step in rig.seen(RunStep)]
    assert [len(tokens) for tokens in sizes] == [8, 8, 8, 8, 8, 3]


def test_a_long_job_does_not_stop_what_came_before_it() -> None:
    rig = Rig(pages=200)
    rig.start(job("a", range(10)))
    rig.start(job("b", range(100, 400)))
    rig.settle()
    assert list(rig.first_tokens()) == ["a", "b"]
    assert rig.first_tokens()[RequestId("b")].token_ids == (expected_token(range(100, 400)),)


def test_the_work_left_is_what_the_cost_model_says() -> None:
    cost = CostModel(0.5, 0.01, 0.001, 0.0, 0.0)
    assert prefill_seconds(cost, [(0, 64)], 16) == 0.0
    alone_s = 0.2 + 0.001 * (30**2 - 10**2)
    assert prefill_seconds(cost, [(20, 10)], 16) == pytest.approx(2 * 0.5 + alone_s)
    shared_s = prefill_seconds(cost, [(20, 10), (6, 0), (6, 0)], 16)
    assert shared_s == pytest.approx(2 * 0.5 + alone_s + 2 * (0.06 + 0.001 * 6**2))
    rig = Rig(limits=limits(cost=cost))
    rig.start(job("a", range(20)))
    load = rig.machine.load(rig.clock.now())
    whole_s = prefill_seconds(cost, [(20, 0)], 16)
    assert load.work_left_s == pytest.approx(whole_s)
    assert rig.machine.load(rig.clock.now() + 0.3).work_left_s == pytest.approx(whole_s - 0.3)
    second_s = 0.5 + 0.04 + 0.001 * (20**2 - 16**2)
    assert rig.machine.load(rig.clock.now() + 9.0).work_left_s == pytest.approx(second_s)
    assert (load.queued_tokens, load.running_sequences, load.pages_total) == (20, 1, 64)


def test_blocks_that_several_wait_for_count_once_in_the_work_left() -> None:
    cost = CostModel(0.5, 0.01, 0.0, 0.0, 0.0)
    rig = Rig(pages=100, limits=limits(cost=cost, chunk_tokens=400))
    for place, name in enumerate("abc"):
        rig.start(job(name, (*range(64), *range(100 + 10 * place, 110 + 10 * place))))
    one_s = 0.5 + 0.01 * 74
    siblings_s = 0.5 + 0.01 * (2 * 10)
    left_s = rig.machine.load(rig.clock.now()).work_left_s
    assert left_s == pytest.approx(one_s + siblings_s)
