"""The text side of a GGUF file: vocabulary, control tokens, template."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import orjson
from tokenizers import Tokenizer

from shared.checkpoint.byte_pairs import PRE_TOKENIZERS, build_byte_pairs
from shared.checkpoint.checkpoint import TextSide
from shared.checkpoint.fingerprint import digest_parts
from shared.checkpoint.gguf_header import Value
from shared.checkpoint.sentence_pieces import build_sentence_pieces
from shared.errors import CheckpointError

Ids = dict[str, int]

_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_KINDS: Final = ("gpt2", "llama")
"""Byte-level byte pairs; SentencePiece."""


def text_side(metadata: dict[str, Value], vocab: int) -> TextSide:
    """Check the vocabulary and defer building the tokenizer. Raises CheckpointError."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise CheckpointError(f"tokenizer kind {kind!r} is not supported ({known})")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if len(tokens) > vocab:
        raise CheckpointError(f"{len(tokens)} tokens for an embedding of {vocab}")
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise CheckpointError("token types and tokens differ in number")
    controls = (_CONTROL, _UNKNOWN)
    special = {text: id_ for id_, text in enumerate(tokens) if types[id_] in controls}
    added = {text: id_ for id_, text in enumerate(tokens) if types[id_] == _USER_DEFINED}
    template = metadata.get("tokenizer.chat_template", "")
    if not isinstance(template, str):
        raise CheckpointError("the chat template is not text")
    read = _sentence_pieces if kind == "llama" else _byte_pairs
    vocabulary = read(metadata, tokens, special, added)
    return TextSide(
        build=vocabulary.build,
        digest=digest_parts(
            vocabulary.mark.encode(),
            orjson.dumps([tokens, vocabulary.order, types]),
            template.encode(),
        ),
        chat_template=template,
        bos_id=_token(metadata, "bos", len(tokens)),
        eos_ids=_ends(metadata, len(tokens)),
        special_tokens=special,
        add_bos=_flag(metadata, "add_bos_token", kind == "llama"),
    )


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """How to build the tokenizer, and what names it besides tokens and their types."""

    build: Callable[[], Tokenizer]
    mark: str
    order: list[str] | list[float]
    """Merges or scores."""


def _byte_pairs(
    metadata: dict[str, Value], tokens: list[str], special: Ids, added: Ids
) -> _Vocabulary:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise CheckpointError(f"pre-tokenizer {pre!r} is not supported ({known})")
    merges = _strings(metadata, "tokenizer.ggml.merges")
    build = partial(build_byte_pairs, tokens, merges, pre, special, added)
    return _Vocabulary(build, pre, merges)


def _sentence_pieces(
    metadata: dict[str, Value], tokens: list[str], special: Ids, added: Ids
) -> _Vocabulary:
    values = metadata.get("tokenizer.ggml.scores")
    if not isinstance(values, list) or len(values) != len(tokens):
        raise CheckpointError("token scores and tokens differ in number")
    scores = [value for value in values if isinstance(value, float) and math.isfinite(value)]
    if len(scores) != len(tokens):
        raise CheckpointError("a token score is not a finite number")
    unknown = _token(metadata, "unknown", len(tokens))
    prefix = _flag(metadata, "add_space_prefix", True)
    build = partial(build_sentence_pieces, tokens, scores, unknown, prefix, special, added)
    return _Vocabulary(build, f"llama {prefix} {unknown}", scores)


def _flag(metadata: dict[str, Value], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise CheckpointError(f"metadata tokenizer.ggml.{name} is not a truth value")
    return value


def _strings(metadata: dict[str, Value], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not values:
        raise CheckpointError(f"metadata {key} is missing")
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) != len(values):
        raise CheckpointError(f"metadata {key} is not a list of strings")
    return texts


def _token(metadata: dict[str, Value], role: str, count: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{role}_token_id")
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < count:
        raise CheckpointError(f"{role} token id {value!r} is outside the vocabulary")
    return value


def _ends(metadata: dict[str, Value], count: int) -> tuple[int, ...]:
    ends = (_token(metadata, role, count) for role in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(end for end in ends if end is not None))
