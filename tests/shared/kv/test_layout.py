"""Page layouts: size, shape and a digest that any difference changes."""

from __future__ import annotations

import dataclasses

import pytest

from shared.kv.layout import PageLayout

SMALL = PageLayout(layers=30, kv_heads=3, head_dim=64, block_tokens=16, dtype="bfloat16")


def test_page_of_the_small_model_has_360_kib() -> None:
    assert SMALL.page_shape == (30, 2, 3, 16, 64)
    assert SMALL.page_bytes == 360 * 1024


@pytest.mark.parametrize(
    "change",
    [{"layers": 31}, {"kv_heads": 6}, {"head_dim": 32}, {"block_tokens": 32}, {"dtype": "float16"}],
)
def test_each_field_alone_changes_the_digest(change: dict[str, int | str]) -> None:
    other = dataclasses.replace(SMALL, **change)  # type: ignore[arg-type]
    assert len(SMALL.digest) == 16
    assert other.digest != SMALL.digest


def test_digest_is_pinned() -> None:
    """The digest travels between releases: changing it needs a new LAYOUT_VERSION."""
    assert SMALL.digest == PageLayout(30, 3, 64, 16, "bfloat16").digest == "6bfa3c7bcad30a4d"


@pytest.mark.parametrize(
    "change", [{"layers": 0}, {"kv_heads": -1}, {"block_tokens": 0}, {"dtype": "float8"}]
)
def test_impossible_layouts_are_refused(change: dict[str, int | str]) -> None:
    with pytest.raises(ValueError, match="page layout"):
        dataclasses.replace(SMALL, **change)  # type: ignore[arg-type]


def test_a_shard_is_an_equal_range_of_the_heads() -> None:
    whole = PageLayout(layers=2, kv_heads=6, head_dim=64, block_tokens=16, dtype="float32")
    part = whole.shard(3)
    assert (part.kv_heads, 3 * part.page_bytes) == (2, whole.page_bytes)
    assert whole.shard(1) == whole
    for parts in (4, 12, 0):
        with pytest.raises(ValueError, match="6 KV heads"):
            whole.shard(parts)
