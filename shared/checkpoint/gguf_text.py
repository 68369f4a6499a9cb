"""The text side of a GGUF file: vocabulary, control tokens, template."""

from __future__ import annotations

from functools import partial
from typing import Final

import orjson

from shared.checkpoint.byte_pairs import PRE_TOKENIZERS, build_byte_pairs
from shared.checkpoint.checkpoint import TextSide
from shared.checkpoint.fingerprint import digest_parts
from shared.checkpoint.gguf_header import Value
from shared.errors import CheckpointError

_CONTROL: Final = 3
_USER_DEFINED: Final = 4


def text_side(metadata: dict[str, Value], vocab: int) -> TextSide:
    """Check the vocabulary and defer building the tokenizer. Raises CheckpointError."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise CheckpointError(f"tokenizer kind {kind!r} is not supported (gpt2 byte pairs)")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise CheckpointError(f"pre-tokenizer {pre!r} is not supported ({known})")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    merges = _strings(metadata, "tokenizer.ggml.merges")
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise CheckpointError("token types and tokens differ in number")
    if len(tokens) > vocab:
        raise CheckpointError(f"{len(tokens)} tokens for an embedding of {vocab}")
    special = {text: id_ for id_, text in enumerate(tokens) if types[id_] == _CONTROL}
    added = {text: id_ for id_, text in enumerate(tokens) if types[id_] == _USER_DEFINED}
    template = metadata.get("tokenizer.chat_template", "")
    if not isinstance(template, str):
        raise CheckpointError("the chat template is not text")
    return TextSide(
        build=partial(build_byte_pairs, tokens, merges, pre, special, added),
        digest=digest_parts(pre.encode(), orjson.dumps([tokens, merges, types]), template.encode()),
        chat_template=template,
        bos_id=_token(metadata, "bos", len(tokens)),
        eos_ids=_ends(metadata, len(tokens)),
        special_tokens=special,
        add_bos=metadata.get("tokenizer.ggml.add_bos_token") is True,
    )


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
