"""The CPU's attention and the kernels' attention give the same for the same step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import StepItem
from shared.engine.device_attention import DeviceAttention
from shared.engine.host_attention import HostAttention, Workspace
from shared.engine.host_pages import HostPages
from shared.engine.paged_kv import PagedKv
from shared.kv.layout import PageLayout

from .sequences import BLOCK, pages_for, scattered

LAYOUT = PageLayout(layers=2, kv_heads=2, head_dim=32, block_tokens=BLOCK, dtype="float32")
PAGES = 40
HEADS = 6
RULES = AttentionRules(HEADS, LAYOUT.head_dim**-0.5)


def step(spans: list[tuple[int, int]]) -> list[StepItem]:
    free = iter(scattered(PAGES, PAGES))
    return [
        StepItem((1,) * count, start, tuple(next(free) for _ in range(pages_for(end))), None)
        for start, count in spans
        for end in (start + count,)
    ]


def filled(items: list[StepItem]) -> PagedKv:
    """Random keys and values up to each item's end, NaN everywhere else."""
    kv = PagedKv(torch.from_numpy(HostPages(PAGES, LAYOUT.page_bytes).bytes), LAYOUT)
    kv.cells.fill_(float("nan"))
    generator = torch.Generator().manual_seed(3)
    for item in items:
        for position in range(item.start + len(item.tokens)):
            cell = kv.cells[item.page_table[position // BLOCK], :, :, :, position % BLOCK]
            cell.copy_(torch.randn(cell.shape, generator=generator))
    return kv


@pytest.mark.parametrize("windows", [(), (0, 17), (1, 64)])
@pytest.mark.parametrize(
    "spans",
    [[(0, 1)], [(0, 20)], [(37, 1), (0, 17), (15, 1), (16, 9), (90, 1)]],
    ids=["first token", "chunk", "mixed"],
)
def test_host_and_device_agree(spans: list[tuple[int, int]], windows: tuple[int, ...]) -> None:
    rules = replace(RULES, windows=windows)
    items = step(spans)
    kv = filled(items)
    queries = torch.randn(sum(count for _, count in spans), HEADS, LAYOUT.head_dim)
    host = HostAttention(kv, items, rules, Workspace(kv.dtype))
    device = DeviceAttention(kv, items, rules)
    for layer in range(LAYOUT.layers):
        expected = host.attend(layer, queries)
        assert torch.isfinite(expected).all()
        torch.testing.assert_close(device.attend(layer, queries), expected, atol=2e-5, rtol=1e-4)


def test_very_unlike_lengths_are_not_padded_to_each_other() -> None:
    items = step([(300, 1), (2, 1), (3, 1), (290, 1)])
    kv = filled(items)
    queries = torch.randn(4, HEADS, LAYOUT.head_dim)
    together = HostAttention(kv, items, RULES, Workspace(kv.dtype)).attend(1, queries)
    for row, item in enumerate(items):
        alone = HostAttention(kv, [item], RULES, Workspace(kv.dtype))
        torch.testing.assert_close(alone.attend(1, queries[row : row + 1])[0], together[row])


def test_mask_tiles_end_at_the_last_key() -> None:
    workspace = Workspace(torch.float32)
    for queries, keys in ((1, 1), (3, 5), (128, 128), (100, 400), (7, 90)):
        visible = workspace.mask(queries, keys, 0) == 0
        expected = torch.ones(queries, keys).tril(keys - queries).bool()
        assert torch.equal(visible, expected)


@pytest.mark.parametrize("window", [1, 7, 128, 300])
def test_masks_of_a_window_hide_what_lies_before_it(window: int) -> None:
    workspace = Workspace(torch.float32)
    for queries in (1, 3, 128):
        keys = window + queries - 1
        visible = workspace.mask(queries, keys, window) == 0
        own = torch.arange(queries)[:, None] + window - 1
        position = torch.arange(keys)
        assert torch.equal(visible, (position <= own) & (position > own - window))
