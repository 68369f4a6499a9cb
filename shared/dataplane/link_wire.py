"""The frames of a link: who connects, and for which pages with which ticket.

Everything a peer sends is parsed here, under fixed caps, with `struct`; nothing is unpickled.
Knows no socket and no UCX: bytes in, frozen values out, FrameError otherwise.

    frame    kind u8 | length u32 | body
    Hello    magic 8s | version u8 | lane u8 | content 16s | proof 16s | UCX address
                                                                          socket, reader, once
    Welcome  slots u8 | proof 16s | UCX address                           socket, owner, once
    Refusal  nothing: our pages hold something else than yours            socket, owner, instead
    Ping     nothing                                                      UCX, reader, once
    Asks     of one turn: numbers | ticket | runs of (first, count, generation * count)
                                                                          UCX, reader
    Verdict  read number u32 | answer u8                                  socket, owner

Over UCX an answer needs no frame: pages come under the tag that the reader chose for their run,
a refusal as a message without content under that tag with the `Answer` in its lowest bits.
Adapters that read one-sidedly send asks and verdicts over the socket, and the frames of
`nixl_wire`. The proofs show that both ends know the key in the owner's plane address, which
travels over the control plane only; a library sees no address that was not proven.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

VERSION: Final = 4
MAX_FRAME_BYTES: Final = 1 << 14
MAX_PAGES: Final = 512
MAX_ASKS: Final = 16
"""In one message."""
MAX_TICKET_BYTES: Final = 512
MAX_ADDRESS_BYTES: Final = 12_288
MAX_TIMEOUT_MS: Final = 600_000

_MAGIC: Final = b"BATONUCX"
_HEADER: Final = struct.Struct(">BI")
_HELLO: Final = struct.Struct(">8sBB16s16s")
_WELCOME: Final = struct.Struct(">B16s")
_ASK: Final = struct.Struct(">IQQIHI")
_RUN: Final = struct.Struct(">II")
_VERDICT: Final = struct.Struct(">IB")

HEADER_BYTES: Final = _HEADER.size
ASK_TAG: Final = 1
"""All asks and pings of a link."""
TAG_STEP: Final = 1 << 20
"""Tags of one ask begin at a random multiple of this."""
RUN_STEP: Final = 1 << 3
"""From the tag of one run to that of the next; the bits below hold an Answer."""
ANSWER_MASK: Final = RUN_STEP - 1
RUN_MASK: Final = (1 << 64) - RUN_STEP
"""Under this a receive matches its own run only, with any answer."""


UNTOLD: Final = bytes(16)
"""The content of pages of which nobody was told what they hold."""


class FrameError(Exception):
    """Bytes that are not a frame of ours."""


class Kind(IntEnum):
    HELLO = 1
    ASK = 2
    WELCOME = 3
    VERDICT = 4
    PING = 5
    REFUSAL = 6
    GRANT = 7
    DONE = 8
    CLOSED = 9


_KINDS: Final = {int(kind): kind for kind in Kind}


class Lane(IntEnum):
    """What the reader proposes for its link, from what the owner's address says."""

    SHM = 1
    TCP = 2


class Answer(IntEnum):
    ACCEPTED = 0
    REFUSED = 1
    OUT_OF_RANGE = 2
    PAGE_SIZE = 3


ANSWERS: Final = frozenset(Answer)


@dataclass(frozen=True, slots=True)
class Hello:
    """The reader's first and only frame on the socket."""

    lane: Lane
    address: bytes
    content: bytes = UNTOLD
    proof: bytes = b""

    def encode(self, key: str) -> bytes:
        return (
            _HELLO.pack(_MAGIC, VERSION, self.lane, self.content, self._prove(key)) + self.address
        )

    def proven(self, key: str) -> bool:
        return hmac.compare_digest(self.proof, self._prove(key))

    def _prove(self, key: str) -> bytes:
        return _prove(key, b"hello" + self.content, self.lane, self.address)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The owner's answer, once it has made its end. `slots`: asks that it takes at one time."""

    slots: int
    address: bytes
    proof: bytes = b""

    def encode(self, key: str) -> bytes:
        proof = _prove(key, b"welcome", self.slots, self.address)
        return _WELCOME.pack(self.slots, proof) + self.address

    def proven(self, key: str) -> bool:
        return hmac.compare_digest(self.proof, _prove(key, b"welcome", self.slots, self.address))


class PageRun(NamedTuple):
    """`len(generations)` neighbouring pages of the owner."""

    first: int
    generations: tuple[int, ...]


class Ask(NamedTuple):
    """A portion of a read. The reader has posted its receives, from `tag` on."""

    number: int
    tag: int
    page_bytes: int
    timeout_ms: int
    ticket: str
    runs: tuple[PageRun, ...]

    def encode(self) -> bytes:
        return pack_ask(
            self.number, self.tag, self.page_bytes, self.timeout_ms, self.ticket, self.runs
        )


def pack_ask(
    number: int,
    tag: int,
    page_bytes: int,
    timeout_ms: int,
    ticket: str,
    runs: Sequence[tuple[int, tuple[int, ...]]],
) -> bytes:
    """An `Ask` without making one; most have one run."""
    shown = ticket.encode()
    head = (number, tag, page_bytes, timeout_ms, len(shown), len(runs))
    if len(runs) == 1:
        first, generations = runs[0]
        count = len(generations)
        layout = f">IQQIHI{len(shown)}sII{count}Q"
        return struct.pack(layout, *head, shown, first, count, *generations)
    parts = [_ASK.pack(*head), shown]
    for first, generations in runs:
        count = len(generations)
        parts.append(struct.pack(f">II{count}Q", first, count, *generations))
    return b"".join(parts)


class Verdict(NamedTuple):
    number: int
    answer: Answer

    def encode(self) -> bytes:
        return _VERDICT.pack(self.number, self.answer)


def content_digest(content: str) -> bytes:
    """What travels in a Hello about the content of pages."""
    return hashlib.blake2b(content.encode(), digest_size=16).digest() if content else UNTOLD


def compatible(ours: bytes, theirs: bytes) -> bool:
    """Whether pages may move between these two, as far as both sides told."""
    return UNTOLD in (ours, theirs) or ours == theirs


def _prove(key: str, role: bytes, number: int, address: bytes) -> bytes:
    content = role + bytes((number,)) + address
    return hashlib.blake2b(content, key=key.encode()[:64], digest_size=16).digest()


def frame(kind: Kind, body: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(body)) + body


def parse_header(data: bytes) -> tuple[Kind, int]:
    """Kind and body length of what begins here. Raises FrameError, also above the cap."""
    number, length = _HEADER.unpack_from(data)
    if length > MAX_FRAME_BYTES:
        raise FrameError("frame is too large")
    kind = _KINDS.get(number)
    if kind is None:
        raise FrameError("frame is of an unknown kind")
    return kind, length


def parse_frame(data: bytes) -> tuple[Kind, bytes]:
    """A frame at the start of a buffer that may be longer."""
    if len(data) < HEADER_BYTES:
        raise FrameError("frame is too short")
    kind, length = parse_header(data)
    if HEADER_BYTES + length > len(data):
        raise FrameError("frame ends too early")
    return kind, data[HEADER_BYTES : HEADER_BYTES + length]


def parse_hello(body: bytes) -> Hello:
    if not _HELLO.size < len(body) <= _HELLO.size + MAX_ADDRESS_BYTES:
        raise FrameError("hello has a wrong length")
    magic, version, lane, content, proof = _HELLO.unpack_from(body)
    if magic != _MAGIC or version != VERSION:
        raise FrameError("hello is of another protocol")
    try:
        return Hello(Lane(lane), body[_HELLO.size :], content, proof)
    except ValueError as error:
        raise FrameError("hello names an unknown lane") from error


def parse_ask(body: bytes) -> Ask:
    """Exactly one ask. Raises FrameError unless every length adds up exactly."""
    ask, end = _parse_ask(body, 0)
    if end != len(body):
        raise FrameError("ask has bytes left over")
    return ask


def parse_asks(body: bytes) -> list[Ask]:
    """One ask or several."""
    asks: list[Ask] = []
    end = 0
    while end < len(body) or not asks:
        if len(asks) == MAX_ASKS:
            raise FrameError("too many asks at once")
        ask, end = _parse_ask(body, end)
        asks.append(ask)
    return asks


def _parse_ask(body: bytes, begin: int) -> tuple[Ask, int]:
    """An ask and where it ends."""
    start = begin + _ASK.size
    if len(body) < start:
        raise FrameError("ask is too short")
    number, tag, page_bytes, timeout_ms, ticket_bytes, runs = _ASK.unpack_from(body, begin)
    end = start + ticket_bytes
    if ticket_bytes > MAX_TICKET_BYTES or end > len(body):
        raise FrameError("ask has a wrong ticket length")
    if not 0 < runs <= MAX_PAGES or not 0 < timeout_ms <= MAX_TIMEOUT_MS:
        raise FrameError("ask has a number out of range")
    if tag < TAG_STEP or tag % TAG_STEP:
        raise FrameError("ask has a tag out of place")
    try:
        ticket = body[start:end].decode()
    except UnicodeDecodeError as error:
        raise FrameError("ticket is not text") from error
    found, end = _parse_runs(body, end, runs)
    return Ask(number, tag, page_bytes, timeout_ms, ticket, found), end


def _parse_runs(body: bytes, offset: int, count: int) -> tuple[tuple[PageRun, ...], int]:
    runs: list[PageRun] = []
    left = MAX_PAGES
    for _ in range(count):
        if len(body) - offset < _RUN.size:
            raise FrameError("ask ends inside a run")
        first, pages = _RUN.unpack_from(body, offset)
        offset += _RUN.size
        if not 0 < pages <= left or len(body) - offset < 8 * pages:
            raise FrameError("ask has a wrong page count")
        runs.append(PageRun(first, struct.unpack_from(f">{pages}Q", body, offset)))
        offset += 8 * pages
        left -= pages
    return tuple(runs), offset


def parse_welcome(body: bytes) -> Welcome:
    if not _WELCOME.size < len(body) <= _WELCOME.size + MAX_ADDRESS_BYTES:
        raise FrameError("welcome has a wrong length")
    slots, proof = _WELCOME.unpack_from(body)
    if slots == 0:
        raise FrameError("welcome takes no asks")
    return Welcome(slots, body[_WELCOME.size :], proof)


def parse_verdict(body: bytes) -> Verdict:
    if len(body) != _VERDICT.size:
        raise FrameError("verdict has a wrong length")
    number, answer = _VERDICT.unpack(body)
    try:
        return Verdict(number, Answer(answer))
    except ValueError as error:
        raise FrameError("verdict is of an unknown kind") from error
