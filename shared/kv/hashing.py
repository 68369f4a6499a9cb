"""Names of blocks: a hash chained over all tokens before, rooted in everything that shapes KV.

Equal in every process. A name is 128 bits of BLAKE2b, so it stands for the token ids themselves:
nobody can find two prompts with one name, not even on purpose.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from shared.ids import BlockHash
from shared.kv.layout import LAYOUT_VERSION

NAME_BYTES: Final = 16
_ROOT: Final = b"baton-kv-root"
_BLOCK: Final = b"baton-kv-block"
_HEX: Final = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """Two caches with different identities never share a block."""

    namespace: str
    """The tenant's space, from the authenticated key."""
    model_digest: str
    """Weights, rope parameters, adapters."""
    tokenizer_digest: str
    """Tokenizer and chat template."""
    dtype: str
    block_tokens: int


def chain_root(identity: CacheIdentity) -> bytes:
    """What the first block is chained to. Each field goes in with its name and length, so no
    two identities encode alike."""
    digest = hashlib.blake2b(digest_size=NAME_BYTES, person=_ROOT)
    digest.update(struct.pack("<I", LAYOUT_VERSION))
    for field in fields(identity):
        for part in (field.name, str(getattr(identity, field.name))):
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<Q", len(encoded)))
            digest.update(encoded)
    return digest.digest()


def block_hashes(identity: CacheIdentity, tokens: Sequence[int]) -> tuple[BlockHash, ...]:
    """Names of the full blocks of `tokens`; an unfinished last block has none."""
    return BlockChain(identity).extend(tokens)


def reusable_blocks(tokens: int, block_tokens: int) -> int:
    """How many leading full blocks of a sequence may come from a cache: all but those that
    hold its last token, which is always computed because the next one is drawn from it."""
    return max(0, tokens - 1) // block_tokens


def is_block_name(text: str) -> bool:
    """Whether this is a whole name: 32 lower-case hex digits, never a shortened one."""
    return len(text) == 2 * NAME_BYTES and _HEX.issuperset(text)


class BlockChain:
    """The names of one growing sequence, computed as its blocks fill."""

    def __init__(self, identity: CacheIdentity) -> None:
        if identity.block_tokens < 1:
            raise ValueError("block_tokens is below 1")
        self._block_tokens = identity.block_tokens
        self._last = chain_root(identity)
        self._open: list[int] = []

    def extend(self, tokens: Sequence[int]) -> tuple[BlockHash, ...]:
        """Append tokens; the names of the blocks that became full. Raises ValueError for a
        token id outside 0..2^32-1; then nothing was appended."""
        waiting = [*self._open, *tokens]
        size = self._block_tokens
        full = len(waiting) - len(waiting) % size
        try:
            packed = struct.pack(f"<{len(waiting)}I", *waiting)
        except struct.error as error:
            raise ValueError("token id is not a 32-bit number") from error
        names = []
        for start in range(0, full, size):
            self._last = self._name(packed[4 * start : 4 * (start + size)])
            names.append(BlockHash(self._last.hex()))
        self._open = waiting[full:]
        return tuple(names)

    def _name(self, packed: bytes) -> bytes:
        """Parent and tokens have fixed lengths within a chain, so their border is unambiguous."""
        return hashlib.blake2b(self._last + packed, digest_size=NAME_BYTES, person=_BLOCK).digest()
