"""The text side of a Hugging Face folder: tokenizer.json, control tokens, template."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import orjson
from tokenizers import Tokenizer

from shared.checkpoint.checkpoint import TextSide
from shared.checkpoint.fingerprint import digest_parts
from shared.checkpoint.json_file import Fields, field, nested, read_bytes, read_fields
from shared.errors import CheckpointError

_KINDS: Final = ("BPE", "Unigram")


def text_side(path: Path, config: Fields, vocab: int) -> TextSide:
    """Read what is needed to name and template; parsing the vocabulary is deferred."""
    if not (path / "tokenizer.json").exists():
        raise CheckpointError(f"{path}: tokenizer.json is missing (no other tokenizer is read)")
    content = read_bytes(path / "tokenizer.json")
    settings = _optional(path / "tokenizer_config.json")
    special = _special_tokens(path / "tokenizer.json", content, vocab)
    template = _template(path, settings)
    bos = _text(settings.get("bos_token"))
    return TextSide(
        build=partial(_build, path / "tokenizer.json", content),
        digest=digest_parts(content, template.encode()),
        chat_template=template,
        bos_id=special.get(bos, _first_id(config.get("bos_token_id"), vocab)),
        eos_ids=_ends(path, config, special.get(_text(settings.get("eos_token"))), vocab),
        special_tokens=special,
        add_bos=field(settings, "add_bos_token", bool, False),
    )


def _build(path: Path, content: bytes) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} is not a tokenizer ({error})") from error


def _optional(path: Path) -> Fields:
    return read_fields(path) if path.exists() else {}


def _special_tokens(path: Path, content: bytes, vocab: int) -> dict[str, int]:
    try:
        tokenizer = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"{path} is not JSON") from error
    if not isinstance(tokenizer, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    _check_model(path, nested(tokenizer, "model") or {}, vocab)
    rows = tokenizer.get("added_tokens", [])
    if not isinstance(rows, list):
        raise CheckpointError(f"{path} has no list of added tokens")
    special: dict[str, int] = {}
    for row in rows:
        if not isinstance(row, dict):
            raise CheckpointError(f"{path}: an added token is not an object")
        text, id_ = field(row, "content", str, None), field(row, "id", int, None)
        if not 0 <= id_ < vocab:
            raise CheckpointError(f"{path}: token {text!r} has id {id_}, vocabulary {vocab}")
        if row.get("special") is True:
            special[text] = id_
    return special


def _check_model(path: Path, model: Fields, vocab: int) -> None:
    """Refuse a kind that our text side cannot serve, and ids beyond the embedding."""
    kind, pieces = model.get("type", "BPE"), model.get("vocab")
    if kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise CheckpointError(f"{path}: tokenizer kind {kind!r} is not supported ({known})")
    if not isinstance(pieces, dict | list):
        raise CheckpointError(f"{path} is not a tokenizer (it has no vocabulary)")
    ids = list(pieces.values()) if isinstance(pieces, dict) else list(range(len(pieces)))
    if not all(type(id_) is int for id_ in ids):
        raise CheckpointError(f"{path}: a token has no id")
    last = max(ids, default=0)
    if last >= vocab:
        raise CheckpointError(f"{path}: token id {last} for an embedding of {vocab}")


def _template(path: Path, settings: Fields) -> str:
    own = path / "chat_template.jinja"
    if own.exists():
        try:
            return read_bytes(own).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{own} is not UTF-8") from error
    match settings.get("chat_template"):
        case str() as template:
            return template
        case list() as named:
            rows = [row for row in named if isinstance(row, dict) and row.get("name") == "default"]
            return _text(rows[0].get("template")) if rows else ""
        case _:
            return ""


def _text(token: object) -> str:
    """A token's text: plain, or the `content` of an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _ends(path: Path, config: Fields, named: int | None, vocab: int) -> tuple[int, ...]:
    generation = _optional(path / "generation_config.json")
    ends = [*_ids(generation.get("eos_token_id"), vocab), *_ids(config.get("eos_token_id"), vocab)]
    if named is not None:
        ends.append(named)
    return tuple(dict.fromkeys(ends))


def _ids(value: object, vocab: int) -> list[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    ids: list[int] = []
    for id_ in values:
        if type(id_) is not int or not 0 <= id_ < vocab:
            raise CheckpointError(f"token id {id_!r} is outside the vocabulary of {vocab}")
        ids.append(id_)
    return ids


def _first_id(value: object, vocab: int) -> int | None:
    return next(iter(_ids(value, vocab)), None)
