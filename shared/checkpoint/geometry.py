"""From a checkpoint and a dtype to the page layout that engines, pool and peers agree on."""

from __future__ import annotations

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.spec import DTYPES
from shared.errors import StartupError
from shared.kv.layout import PageLayout


def page_layout(checkpoint: Checkpoint, dtype: str, block_tokens: int) -> PageLayout:
    """The layout of one page. hashchain pages are always float32. Raises StartupError."""
    if dtype not in DTYPES:
        raise StartupError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    spec = checkpoint.spec
    return PageLayout(
        layers=spec.layers,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        block_tokens=block_tokens,
        dtype="float32" if checkpoint.backend == "hashchain" else dtype,
    )
