"""Builders for page caches: names of token runs, and whole prompts put in."""

from __future__ import annotations

from collections.abc import Sequence

from shared.ids import BlockHash, PageId
from shared.kv.cache import HeldPage, PageCache
from shared.kv.hashing import CacheIdentity, block_hashes

BLOCK_TOKENS = 2
IDENTITY = CacheIdentity("tenant", "model", "tokenizer", "float32", BLOCK_TOKENS)


def names(tokens: Sequence[int]) -> tuple[BlockHash, ...]:
    return block_hashes(IDENTITY, tokens)


def checksum(block: BlockHash) -> int:
    """What an intact page of the block hashes to, in these tests."""
    return int(block[:16], 16)


def ids(pages: Sequence[HeldPage]) -> list[PageId]:
    return [page.page for page in pages]


def compute(cache: PageCache, tokens: Sequence[int]) -> list[PageId]:
    """Hold all full blocks of `tokens`: reuse what is cached, compute and seal the rest."""
    blocks = names(tokens)
    cached = cache.match(blocks)
    fresh = cache.grant(len(blocks) - len(cached))
    assert fresh is not None
    parent = blocks[len(cached) - 1] if cached else None
    for page, block in zip(fresh, blocks[len(cached) :], strict=True):
        cache.seal(page.page, checksum(block), block, parent)
        parent = block
    return ids((*cached, *fresh))


def put(cache: PageCache, tokens: Sequence[int]) -> None:
    """Leave all full blocks of `tokens` cached and idle."""
    cache.release(compute(cache, tokens))
