"""Rotation with the page write, and cached keys that move, against float64."""

from __future__ import annotations

import pytest
import torch

from kernels import dispatch
from kernels.rope import reference

BLOCK_TOKENS = 16
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SHAPES = [
    (1, 1, 64, torch.float32),
    (3, 2, 96, torch.float16),
    (8, 1, 128, torch.bfloat16),
    (4, 3, 64, torch.bfloat16),
]


def frequencies(head_dim: int) -> torch.Tensor:
    return 10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim)


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize(("group", "kv_heads", "head_dim", "dtype"), SHAPES)
def test_queries_turn_in_place_keys_and_values_reach_their_slots(
    group: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    heads = group * kv_heads
    mixed = torch.randn((5, heads + 2 * kv_heads, head_dim), generator=generator).to(dtype)
    before = mixed.clone()
    pages = torch.full((4, 3, 2, kv_heads, BLOCK_TOKENS, head_dim), float("nan")).to(dtype)
    slots = torch.tensor([47, 0, 16, -1, 5], dtype=torch.int32)
    turns = reference.turns(torch.tensor([0, 7, 500, 3, 131071]), frequencies(head_dim))
    cosines, sines = (turn.float() for turn in turns)
    queries = dispatch.rope_write(mixed, cosines, sines, slots, pages[:, 1])
    turned = reference.rotate(before, cosines, sines)
    close(queries, turned[:, :heads], dtype)
    assert torch.equal(mixed[:, heads:], before[:, heads:])
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cell = pages[slot // BLOCK_TOKENS, 1, :, :, slot % BLOCK_TOKENS]
            close(cell[0], turned[token, heads : heads + kv_heads], dtype)
            assert torch.equal(cell[1], before[token, heads + kv_heads :])
    written = ~pages.isnan().all(-1)
    assert int(written.sum()) == 4 * 2 * kv_heads


@pytest.mark.parametrize(("group", "kv_heads", "head_dim", "dtype"), SHAPES)
def test_moved_keys_are_those_of_the_other_position(
    group: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(group)
    plain = torch.randn((4, 2, 2, kv_heads, BLOCK_TOKENS, head_dim), generator=generator)
    theta = frequencies(head_dim)

    def keys_from(first: int) -> torch.Tensor:
        cosines, sines = reference.turns(torch.arange(first, first + BLOCK_TOKENS), theta)
        keys = plain[:, :, 0].double().transpose(2, 3)
        return reference.rotate(keys, cosines, sines).transpose(2, 3)

    pages = plain.clone()
    pages[:, :, 0] = keys_from(100).float()
    pages = pages.to(dtype)
    before = pages.clone()
    ids, counts = (torch.tensor(x, dtype=torch.int32) for x in ([3, 0, 1], [16, 5, 0]))
    dispatch.reposition_keys(pages, ids, counts, torch.tensor([-100, 2000, 9]), theta)
    close(pages[3, :, 0], keys_from(0)[3], dtype)
    close(pages[0, :, 0, :, :5], keys_from(2100)[0][:, :, :5], dtype)
    assert torch.equal(pages[0, :, 0, :, 5:], before[0, :, 0, :, 5:])
    assert torch.equal(pages[1:3], before[1:3])
    assert torch.equal(pages[:, :, 1], before[:, :, 1])


def test_there_and_back_is_where_it_was() -> None:
    pages = torch.randn((1, 1, 2, 2, BLOCK_TOKENS, 64), generator=torch.Generator().manual_seed(1))
    before = pages.clone()
    ids, counts = torch.zeros(1, dtype=torch.int32), torch.full((1,), 16, dtype=torch.int32)
    for offset in (70000, -70000):
        dispatch.reposition_keys(pages, ids, counts, torch.tensor([offset]), frequencies(64))
    torch.testing.assert_close(pages, before, rtol=1e-5, atol=1e-5)


def test_shapes_that_do_not_fit_are_refused() -> None:
    kv = torch.zeros((2, 2, 1, BLOCK_TOKENS, 64))
    turn, slot = torch.ones((1, 32)), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="pages"):
        dispatch.rope_write(torch.zeros((1, 2, 64)), turn, turn, slot, kv)
    with pytest.raises(ValueError, match="turns"):
        dispatch.rope_write(torch.zeros((1, 3, 64)), turn[:, :31], turn, slot, kv)
    with pytest.raises(ValueError, match="differ"):
        dispatch.reposition_keys(kv[:, None], slot, slot[:0], slot, turn[0])
    with pytest.raises(ValueError, match="frequencies"):
        dispatch.reposition_keys(kv[:, None], slot, slot, slot, turn[0, :31])
