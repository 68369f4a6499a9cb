"""Gathering and scattering pages: bits for equal dtypes, values for others, no more touched."""

from __future__ import annotations

import pytest
import torch

from kernels import dispatch
from kernels.kv_pages import reference


def memory(dtype: torch.dtype, kv_heads: int = 4, head_dim: int = 96) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn((6, 2, 2, kv_heads, 16, head_dim), generator=generator).to(dtype)


def ids(*pages: int) -> torch.Tensor:
    return torch.tensor(pages, dtype=torch.int32)


@pytest.mark.parametrize(
    ("dtype", "to", "first", "heads", "head_dim"),
    [
        (torch.float32, torch.float32, 0, None, 128),
        (torch.bfloat16, torch.bfloat16, 1, 2, 64),
        (torch.float16, torch.float32, 3, 1, 96),
        (torch.float32, torch.float16, 0, 3, 96),
        (torch.bfloat16, torch.float32, 2, 2, 64),
    ],
)
def test_gather_takes_a_head_range(
    dtype: torch.dtype, to: torch.dtype, first: int, heads: int | None, head_dim: int
) -> None:
    pages = memory(dtype, head_dim=head_dim)
    picked = ids(5, 0, 3)
    out = dispatch.gather_pages(pages, picked, first_head=first, heads=heads, dtype=to)
    assert torch.equal(out, reference.gather(pages, picked, first, heads or 4 - first, to))


@pytest.mark.parametrize(
    ("dtype", "to"), [(torch.float16, torch.float16), (torch.float32, torch.float16)]
)
def test_scatter_touches_its_heads_only(dtype: torch.dtype, to: torch.dtype) -> None:
    pages = memory(to)
    before = pages.clone()
    picked = ids(4, 1)
    staged = memory(dtype, kv_heads=2)[:2].contiguous()
    dispatch.scatter_pages(staged, pages, picked, first_head=1)
    assert torch.equal(pages, reference.scatter(staged, before, picked, 1))


def test_a_cast_to_bfloat16_is_within_one_step() -> None:
    """The interpreter truncates where a GPU rounds."""
    pages = memory(torch.float32)
    out = dispatch.gather_pages(pages, ids(2), dtype=torch.bfloat16)
    torch.testing.assert_close(out.float(), pages[[2]], rtol=2**-7, atol=0)


def test_bits_that_are_no_numbers_survive() -> None:
    pages = torch.full((2, 1, 2, 1, 16, 64), float("nan"))
    pages.view(torch.int32)[1] = 0x7FC12345
    out = dispatch.gather_pages(pages, ids(1))
    assert torch.equal(out.view(torch.int32), pages[1:].view(torch.int32))


def test_peers_of_other_tensor_parallelism_exchange_whole_pages() -> None:
    """Two prefill ranks of two heads each fill one decode rank of four."""
    whole = memory(torch.float16)
    target = torch.zeros_like(whole)
    for rank in range(2):
        own = whole[:, :, :, 2 * rank : 2 * rank + 2].contiguous()
        dispatch.scatter_pages(
            dispatch.gather_pages(own, ids(0, 2)), target, ids(3, 5), first_head=2 * rank
        )
    assert torch.equal(target[[3, 5]], whole[[0, 2]])
    assert not target[[0, 1, 2, 4]].any()


def test_no_page_is_no_work() -> None:
    assert dispatch.gather_pages(memory(torch.float16), ids()).shape[0] == 0


@pytest.mark.parametrize(("first", "heads"), [(-1, 2), (3, 2), (0, 5), (4, 0)])
def test_heads_that_are_not_there_are_refused(first: int, heads: int) -> None:
    pages = memory(torch.float16)
    out = torch.zeros((1, 2, 2, heads, 16, 96), dtype=torch.float16)
    with pytest.raises(ValueError, match="heads"):
        dispatch.gather_pages(pages, ids(0), first_head=first, out=out)


def test_staging_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="staging"):
        dispatch.scatter_pages(memory(torch.float16), memory(torch.float16), ids(0))
