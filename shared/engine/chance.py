"""The randomness of a draw: a keyed hash of (seed, position), nothing else.

No generator state exists, so a draw repeated elsewhere, later or in other company is the same.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

_SPACE: Final = b"baton-draw-1"
_BITS: Final = 53


def draw_word(seed: int, position: int) -> bytes:
    """16 bytes that depend on (seed, position) alone; both are taken modulo 2^64."""
    packed = struct.pack("<QQ", seed % (1 << 64), position % (1 << 64))
    return hashlib.blake2b(packed, digest_size=16, key=_SPACE).digest()


def uniform(seed: int, position: int) -> float:
    """In [0, 1), 53 bits."""
    word = int.from_bytes(draw_word(seed, position)[:8], "little")
    return (word >> (64 - _BITS)) / (1 << _BITS)
