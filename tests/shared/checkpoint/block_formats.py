"""The block formats of GGUF, one value at a time, as ggml's documentation lays them out.

`d` and `m` are float16 scale and minimum of a block; a super-block (K) holds 256 values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

BLOCKS: dict[str, tuple[int, int, Callable[[bytes], list[float]]]] = {}
"""Storage: (values per block, bytes per block, reader of one block)."""


def block(name: str, values: int, size: int) -> Callable[[Callable[[bytes], list[float]]], None]:
    def note(read: Callable[[bytes], list[float]]) -> None:
        BLOCKS[name] = (values, size, read)

    return note


def half(raw: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", raw, at)[0])


@block("F16", 1, 2)
def _f16(raw: bytes) -> list[float]:
    return [half(raw, 0)]


@block("BF16", 1, 2)
def _bf16(raw: bytes) -> list[float]:
    return [float(struct.unpack("<f", b"\0\0" + raw)[0])]


@block("Q8_0", 32, 34)
def _q8_0(raw: bytes) -> list[float]:
    return [half(raw, 0) * struct.unpack_from("b", raw, 2 + index)[0] for index in range(32)]


def nibble(raw: bytes, at: int, index: int) -> int:
    """Of 32 values in 16 bytes: low halves first, then high halves."""
    return raw[at + index % 16] >> (4 * (index // 16)) & 15


@block("Q4_0", 32, 18)
def _q4_0(raw: bytes) -> list[float]:
    return [half(raw, 0) * (nibble(raw, 2, index) - 8) for index in range(32)]


@block("Q4_1", 32, 20)
def _q4_1(raw: bytes) -> list[float]:
    return [half(raw, 0) * nibble(raw, 4, index) + half(raw, 2) for index in range(32)]


def fifth(raw: bytes, at: int, index: int) -> int:
    return (int.from_bytes(raw[at : at + 4], "little") >> index & 1) << 4


@block("Q5_0", 32, 22)
def _q5_0(raw: bytes) -> list[float]:
    whole = [nibble(raw, 6, index) | fifth(raw, 2, index) for index in range(32)]
    return [half(raw, 0) * (value - 16) for value in whole]


@block("Q5_1", 32, 24)
def _q5_1(raw: bytes) -> list[float]:
    whole = [nibble(raw, 8, index) | fifth(raw, 4, index) for index in range(32)]
    return [half(raw, 0) * value + half(raw, 2) for value in whole]


def six_bits(scales: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of one of eight groups of 32, packed in twelve bytes."""
    if group < 4:
        return scales[group] & 63, scales[group + 4] & 63
    low, high = scales[group + 4], scales[group - 4] >> 6
    return low & 15 | high << 4, low >> 4 | (scales[group] >> 6) << 4


def four_bits(raw: bytes, at: int, index: int) -> int:
    """64 values share 32 bytes: low halves first, then high halves."""
    part, inside = divmod(index, 64)
    return raw[at + 32 * part + inside % 32] >> (4 * (inside // 32)) & 15


@block("Q4_K", 256, 144)
def _q4_k(raw: bytes) -> list[float]:
    found = []
    for index in range(256):
        scale, minimum = six_bits(raw[4:16], index // 32)
        value = four_bits(raw, 16, index)
        found.append(half(raw, 0) * scale * value - half(raw, 2) * minimum)
    return found


@block("Q5_K", 256, 176)
def _q5_k(raw: bytes) -> list[float]:
    found = []
    for index in range(256):
        scale, minimum = six_bits(raw[4:16], index // 32)
        high = raw[16 + index % 32] >> (index // 32) & 1
        value = four_bits(raw, 48, index) + 16 * high
        found.append(half(raw, 0) * scale * value - half(raw, 2) * minimum)
    return found


@block("Q6_K", 256, 210)
def _q6_k(raw: bytes) -> list[float]:
    """128 values share 64 bytes of low and 32 bytes of high bits; a scale covers 16."""
    found = []
    for index in range(256):
        part, inside = divmod(index, 128)
        row, column = divmod(inside, 32)
        low = raw[64 * part + 32 * (row % 2) + column] >> (4 * (row // 2)) & 15
        high = raw[128 + 32 * part + column] >> (2 * row) & 3
        scale = struct.unpack_from("b", raw, 192 + 8 * part + inside // 16)[0]
        found.append(half(raw, 208) * scale * ((low | high << 4) - 32))
    return found
