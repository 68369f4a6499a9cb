"""Builds byte-level BPE tokenizers with the `tokenizers` library from plain lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from shared.errors import CheckpointError

_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WHOLE_WORDS: Final = ("llama-bpe", "llama3", "tekken")
"""A word that is a token stays whole, whatever the merges say."""
_COMPOSED: Final = ("qwen2",)
"""Text is brought to Unicode's composed form first."""


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> PreTokenizer:
    """Every digit stands alone, the rest as GPT-2."""
    return Steps([Digits(individual_digits=True), _gpt2()])


def _pattern(expression: str) -> Callable[[], PreTokenizer]:
    def build() -> PreTokenizer:
        pieces = Split(Regex(expression), behavior="isolated", invert=False)
        return Steps([pieces, ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


PRE_TOKENIZERS: Final[Mapping[str, Callable[[], PreTokenizer]]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _pattern(_LLAMA3),
    "llama3": _pattern(_LLAMA3),
    "qwen2": _pattern(_QWEN2),
    "tekken": _pattern(_TEKKEN),
}


def build_byte_pairs(
    tokens: Sequence[str],
    merges: Sequence[str],
    pre: str,
    special: Mapping[str, int],
    added: Mapping[str, int],
) -> Tokenizer:
    """A tokenizer whose ids are the positions in `tokens`. Special tokens are parsed unless
    the caller sets `encode_special_tokens`; no BOS is added. Raises CheckpointError."""
    vocabulary = {text: id_ for id_, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError("the vocabulary holds a token twice")
    pairs = [_pair(merge) for merge in merges]
    try:
        whole = pre in _WHOLE_WORDS
        tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=pairs, ignore_merges=whole))
        if pre in _COMPOSED:
            tokenizer.normalizer = NFC()
        tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
        tokenizer.decoder = ByteLevelDecoder()
        tokenizer.add_special_tokens([_added(text, special=True) for text in special])
        tokenizer.add_tokens([_added(text, special=False) for text in added])
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"the tokenizer cannot be built ({error})") from error
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, gap, right = merge.partition(" ")
    if not (left and gap and right):
        raise CheckpointError("a merge is not a pair of tokens")
    return left, right


def _added(text: str, special: bool) -> AddedToken:
    return AddedToken(text, special=special, normalized=False)
