"""Token ids to text, one at a time: a table of each token's bytes, and a decoder that never
splits a character.

For every sequence of ids the joined pieces equal the library's decode of the whole sequence.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson
from tokenizers import Tokenizer

from shared.errors import BatonError, Code, StartupError

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_WORD_START: Final = "\u2581"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Every token's share of the text, by id. Control tokens have none."""

    table: tuple[bytes, ...]
    leading_spaces: int
    """So many spaces at the very start of a text are an artefact of the vocabulary."""


def token_bytes(tokenizer: Tokenizer, control: Mapping[str, int]) -> TokenBytes:
    """Read the vocabulary once. Raises StartupError for a kind of decoder we do not know."""
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    decoder = orjson.loads(tokenizer.to_str()).get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    read: Callable[[str], bytes]
    if kinds == {"ByteLevel"}:
        read, leading_spaces = _byte_level(), 0
    elif kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and kinds != {None}:
        read, leading_spaces = _sentence_piece, _stripped(steps)
    else:
        raise StartupError("the model's tokenizer has a decoder that is not supported")
    table = [b""] * (max(vocabulary.values()) + 1)
    for text, id_ in vocabulary.items():
        table[id_] = read(text)
    special = [id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    for id_ in {*control.values(), *special}:
        table[id_] = b""
    return TokenBytes(tuple(table), leading_spaces)


def _byte_level() -> Callable[[str], bytes]:
    """Byte-level BPE writes each byte as one printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    of_character = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if chr(byte) not in of_character]
    of_character |= {chr(0x100 + index): byte for index, byte in enumerate(hidden)}

    def read(text: str) -> bytes:
        try:
            return bytes(of_character[character] for character in text)
        except KeyError:
            return text.encode()

    return read


def _sentence_piece(text: str) -> bytes:
    found = _BYTE_TOKEN.match(text)
    return bytes([int(found[1], 16)]) if found else text.replace(_WORD_START, " ").encode()


def _stripped(steps: list[dict[str, object]]) -> int:
    """Leading spaces that the decoder removes from a whole text."""
    for step in steps:
        if step.get("type") == "Strip" and step.get("content") == " ":
            start = step.get("start")
            return start if isinstance(start, int) else 0
        if step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never":
            return 1
    return 0


class Detokeniser:
    """The text of one stream. Bytes of an unfinished character wait; bytes that can never be
    one read as U+FFFD."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._table = tokens.table
        self._leading_spaces = tokens.leading_spaces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The text that became certain. Raises BatonError for an id outside the vocabulary."""
        if not 0 <= token_id < len(self._table):
            raise BatonError("a worker sent a token outside the vocabulary", Code.INTERNAL)
        return self._strip(self._decoder.decode(self._table[token_id]))

    def finish(self) -> str:
        """What an unfinished character at the end becomes."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        while self._leading_spaces and text:
            if text[0] != " ":
                self._leading_spaces = 0
                break
            text = text[1:]
            self._leading_spaces -= 1
        return text
