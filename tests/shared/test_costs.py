"""The cost functions, against hand-computed values and their laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shared import costs as model
from shared.costs import LinkCosts, WorkCosts
from shared.wire.workers import CostModel

OPT_13B = WorkCosts(18.10e-3, 0.10191e-3, 7.12e-9, 19.93e-3, 0.0385e-3)
"""DistServe's fit on one A100."""

TOKENS = some.integers(0, 20_000)


def test_prefill_follows_the_fit() -> None:
    assert model.prefill_s(OPT_13B, 512, 0) == pytest.approx(
        18.10e-3 + 512 * 0.10191e-3 + 512**2 * 7.12e-9
    )
    assert model.prefill_s(OPT_13B, 0, 512) == 0.0


def test_the_wire_message_is_a_cost_model() -> None:
    message = CostModel(1.0, 0.1, 0.0, 0.5, 0.01)
    assert model.prefill_s(message, 10, 0) == pytest.approx(2.0)
    assert model.decode_s(message, 3) == pytest.approx(0.52)


@given(TOKENS, TOKENS, some.integers(1, 4096))
def test_chunks_cost_the_same_but_one_fixed_part_each(new: int, cached: int, chunk: int) -> None:
    parts, done = 0.0, 0
    while done < new:
        size = min(chunk, new - done)
        parts += model.prefill_s(OPT_13B, size, cached + done)
        done += size
    assert model.chunked_prefill_s(OPT_13B, new, cached, chunk) == pytest.approx(parts)


def test_chunks_beside_streams_take_what_is_longer_each_time() -> None:
    """A hundred tokens in chunks of 40: 0.3 + 10 + 3 x 2 x 0.1, and no less than three steps."""
    slow = CostModel(0.1, 0.1, 0.0, 0.5, 0.01)
    assert model.filled_s(slow, 100, 0, 40, 2) == pytest.approx(0.3 + 10.0 + 0.6)
    heavy = CostModel(0.1, 0.1, 0.0, 50.0, 0.01)
    assert model.filled_s(heavy, 100, 0, 40, 2) == pytest.approx(3 * 50.01)
    assert model.filled_s(slow, 100, 7, 40, 0) == model.chunked_prefill_s(slow, 100, 7, 40)
    assert model.filled_s(slow, 0, 7, 40, 2) == 0.0


@given(TOKENS, TOKENS, some.integers(0, 256), some.integers(0, 10**6))
def test_a_mixed_step_is_never_cheaper_than_its_parts(
    new: int, cached: int, sequences: int, context: int
) -> None:
    mixed = model.mixed_s(OPT_13B, new, cached, sequences, context, 1e-9)
    assert mixed >= model.decode_s(OPT_13B, sequences, context, 1e-9)
    assert mixed >= model.prefill_s(OPT_13B, new, cached)


@given(TOKENS, TOKENS, some.integers(1, 1000))
def test_cached_tokens_save_time(new: int, cached: int, less: int) -> None:
    hit = min(less, new)
    cheaper = model.prefill_s(OPT_13B, new - hit, cached + hit)
    assert cheaper <= model.prefill_s(OPT_13B, new, cached)


def test_transfers_take_setup_and_bytes() -> None:
    link = LinkCosts(0.001, 1e9)
    assert model.transfer_s(link, 10**9) == pytest.approx(1.001)
    assert model.transfer_s(link, 0) == 0.0


def test_only_the_last_transfer_shows_when_compute_is_longer() -> None:
    assert model.exposed_s(0.2, 0.1, 5) == pytest.approx(0.1)
    assert model.exposed_s(0.1, 0.3, 5) == pytest.approx(0.3 + 4 * 0.2)
    assert model.exposed_s(0.1, 0.3, 0) == 0.0
