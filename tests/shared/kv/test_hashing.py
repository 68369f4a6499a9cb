"""Block names: complete, equal in all processes, chained, and nothing else."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kv.hashing import (
    BlockChain,
    CacheIdentity,
    block_hashes,
    chain_root,
    is_block_name,
    reusable_blocks,
)

IDENTITY = CacheIdentity("tenant-a", "model-1", "tokenizer-1", "float32", 16)

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "tenant-b"},
        {"model_digest": "model-2"},
        {"tokenizer_digest": "tokenizer-2"},
        {"dtype": "bfloat16"},
        {"block_tokens": 8},
    ],
)
def test_each_identity_field_alone_changes_the_key(change: dict[str, str | int]) -> None:
    other = dataclasses.replace(IDENTITY, **change)  # type: ignore[arg-type]
    tokens = range(64)
    assert chain_root(other) != chain_root(IDENTITY)
    assert not set(block_hashes(other, tokens)) & set(block_hashes(IDENTITY, tokens))


def test_the_completeness_test_covers_every_field() -> None:
    names = {field.name for field in dataclasses.fields(CacheIdentity)}
    assert names == {"namespace", "model_digest", "tokenizer_digest", "dtype", "block_tokens"}


def test_layout_version_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = chain_root(IDENTITY)
    monkeypatch.setattr("shared.kv.hashing.LAYOUT_VERSION", 2)
    assert chain_root(IDENTITY) != before


def test_text_cannot_move_between_fields() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("a\x00b", "c")]
    roots = {
        chain_root(dataclasses.replace(IDENTITY, namespace=left, model_digest=right))
        for left, right in pairs
    }
    assert len(roots) == len(pairs)


def test_br_005_equal_in_two_fresh_interpreters() -> None:
    """The first link of the chain is no random number of the process."""
    program = (
        "from shared.kv.hashing import *\n"
        "identity = CacheIdentity('tenant-a', 'model-1', 'tokenizer-1', 'float32', 16)\n"
        "print(*block_hashes(identity, range(100)))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] == list(block_hashes(IDENTITY, range(100)))


def test_names_are_pinned() -> None:
    """Blocks outlive processes and releases: changing a name needs a new LAYOUT_VERSION."""
    assert block_hashes(IDENTITY, range(32)) == (
        "c838c6dc65b892aec297db3e23afe5ef",
        "edad971aa00eac6e44695882171b8c48",
    )


@pytest.mark.parametrize("tokens,blocks", [(0, 0), (15, 0), (16, 1), (17, 1), (32, 2), (33, 2)])
def test_only_full_blocks_have_a_name(tokens: int, blocks: int) -> None:
    names = block_hashes(IDENTITY, range(tokens))
    assert len(names) == blocks
    assert all(is_block_name(name) for name in names)


@given(TOKENS, st.lists(st.integers(1, 20), max_size=20))
def test_a_growing_chain_gives_the_same_names(tokens: list[int], cuts: list[int]) -> None:
    chain = BlockChain(IDENTITY)
    names: list[str] = []
    rest = list(tokens)
    for size in [*cuts, len(rest) or 1]:
        names += chain.extend(rest[:size])
        rest = rest[size:]
    names += chain.extend(rest)
    assert tuple(names) == block_hashes(IDENTITY, tokens)


@given(TOKENS, TOKENS)
def test_names_agree_exactly_as_far_as_the_tokens_do(left: list[int], right: list[int]) -> None:
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    names = zip(block_hashes(IDENTITY, left), block_hashes(IDENTITY, right), strict=False)
    assert [a == b for a, b in names] == [
        index < shared // 16 for index in range(min(len(left), len(right)) // 16)
    ]


def test_same_block_after_another_prefix_has_another_name() -> None:
    first, second = block_hashes(IDENTITY, [1] * 32)
    assert first != second


def test_br_004_names_are_wide_enough_to_stand_for_the_tokens() -> None:
    """Lookups compare 128 cryptographic bits, not the ids: 65,536 blocks that differ in as
    little as one bit collide nowhere, while 32-bit names of so many would. That a shortened
    name is refused is shown in test_cache."""
    small = CacheIdentity("t", "m", "k", "float32", 4)
    blocks = product(range(16), repeat=4)
    names = {block_hashes(small, block)[0] for block in blocks}
    assert len(names) == 16**4
    assert all(is_block_name(name) for name in names)
    assert any(a[:6] == b[:6] for a, b in pairwise(sorted(names)))


@pytest.mark.parametrize("token", [-1, 2**32])
def test_impossible_token_is_refused_and_nothing_appended(token: int) -> None:
    chain = BlockChain(IDENTITY)
    chain.extend(range(10))
    with pytest.raises(ValueError, match="token id"):
        chain.extend([1, token])
    assert chain.extend(range(10, 16)) == block_hashes(IDENTITY, range(16))


@pytest.mark.parametrize("name", ["", "ab", "AB" * 16, "g" * 32, "ab" * 17, "ab" * 16 + "\n"])
def test_what_is_no_block_name(name: str) -> None:
    assert not is_block_name(name)


@pytest.mark.parametrize("tokens,blocks", [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_br_006_the_last_token_is_never_reused(tokens: int, blocks: int) -> None:
    assert reusable_blocks(tokens, 16) == blocks
