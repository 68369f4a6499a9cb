"""The framed requests beside UCX: who asks, with which ticket, for which pages.

Everything a peer sends is parsed here, under fixed caps, with `struct`; nothing is unpickled.
Knows no socket and no UCX: bytes in, frozen values out, FrameError otherwise.

    frame    kind u8 | length u32 | body
    Hello    magic 8s | version u8 | kind u8 | UCX worker address      reader, first frame
    Ask      numbers | ticket | proof | runs of (first, count, generation * count)
    Welcome  proof 16s | UCX worker address                            owner, once
    Verdict  read number u32 | answer u8                               owner, once a read
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 1
MAX_FRAME_BYTES: Final = 1 << 20
MAX_PAGES: Final = 65_536
MAX_TICKET_BYTES: Final = 512
MAX_ADDRESS_BYTES: Final = 4096
MAX_TIMEOUT_MS: Final = 600_000

_MAGIC: Final = b"BATONUCX"
_HEADER: Final = struct.Struct(">BI")
_HELLO: Final = struct.Struct(">8sBB")
_ASK: Final = struct.Struct(">IQQIHI")
_RUN: Final = struct.Struct(">II")
_VERDICT: Final = struct.Struct(">IB")
_PROOF_BYTES: Final = 16

HEADER_BYTES: Final = _HEADER.size
TAG_STEP: Final = 1 << 20
"""Tags of one read: a random multiple of this, plus the index of the run."""


class FrameError(Exception):
    """Bytes that are not a frame of ours."""


class Kind(IntEnum):
    HELLO = 1
    ASK = 2
    WELCOME = 3
    VERDICT = 4


class Lane(IntEnum):
    """What the reader proposes for its link, from what the owner's address says."""

    SHM = 1
    TCP = 2


class Answer(IntEnum):
    ACCEPTED = 0
    REFUSED = 1
    OUT_OF_RANGE = 2
    PAGE_SIZE = 3
    MALFORMED = 4


@dataclass(frozen=True, slots=True)
class Hello:
    lane: Lane
    address: bytes

    def encode(self) -> bytes:
        return _HELLO.pack(_MAGIC, VERSION, self.lane) + self.address


@dataclass(frozen=True, slots=True)
class PageRun:
    """`len(generations)` neighbouring pages of the owner."""

    first: int
    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """One read. `proof` ties the reader's Hello to the ticket."""

    number: int
    tag: int
    page_bytes: int
    timeout_ms: int
    ticket: str
    proof: bytes
    runs: tuple[PageRun, ...]

    def encode(self) -> bytes:
        ticket = self.ticket.encode()
        head = _ASK.pack(
            self.number, self.tag, self.page_bytes, self.timeout_ms, len(ticket), len(self.runs)
        )
        parts = [head, ticket, self.proof]
        for run in self.runs:
            parts.append(_RUN.pack(run.first, len(run.generations)))
            parts.append(struct.pack(f">{len(run.generations)}Q", *run.generations))
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Welcome:
    proof: bytes
    address: bytes

    def encode(self) -> bytes:
        return self.proof + self.address


@dataclass(frozen=True, slots=True)
class Verdict:
    number: int
    answer: Answer

    def encode(self) -> bytes:
        return _VERDICT.pack(self.number, self.answer)


def prove(ticket: str, content: bytes) -> bytes:
    """A keyed digest: an address that was damaged or swapped on the way never reaches UCX."""
    key = hashlib.blake2b(ticket.encode(), digest_size=32).digest()
    return hashlib.blake2b(content, key=key, digest_size=_PROOF_BYTES).digest()


def proven(proof: bytes, ticket: str, content: bytes) -> bool:
    return hmac.compare_digest(proof, prove(ticket, content))


def frame(kind: Kind, body: bytes) -> bytes:
    return _HEADER.pack(kind, len(body)) + body


def parse_header(data: bytes) -> tuple[Kind, int]:
    """Kind and body length. Raises FrameError, also for a body above the cap."""
    number, length = _HEADER.unpack(data)
    if length > MAX_FRAME_BYTES:
        raise FrameError("frame is too large")
    try:
        return Kind(number), length
    except ValueError as error:
        raise FrameError("frame is of an unknown kind") from error


def parse_hello(body: bytes) -> Hello:
    if not _HELLO.size < len(body) <= _HELLO.size + MAX_ADDRESS_BYTES:
        raise FrameError("hello has a wrong length")
    magic, version, lane = _HELLO.unpack_from(body)
    if magic != _MAGIC or version != VERSION:
        raise FrameError("hello is of another protocol")
    try:
        return Hello(Lane(lane), body[_HELLO.size :])
    except ValueError as error:
        raise FrameError("hello names an unknown lane") from error


def parse_ask(body: bytes) -> Ask:
    """One read request. Raises FrameError unless every length adds up exactly."""
    if len(body) < _ASK.size:
        raise FrameError("ask is too short")
    number, tag, page_bytes, timeout_ms, ticket_bytes, runs = _ASK.unpack_from(body)
    start = _ASK.size + ticket_bytes + _PROOF_BYTES
    if ticket_bytes > MAX_TICKET_BYTES or start > len(body):
        raise FrameError("ask has a wrong ticket length")
    if not 0 < runs <= MAX_PAGES or not 0 < timeout_ms <= MAX_TIMEOUT_MS or tag % TAG_STEP:
        raise FrameError("ask has a number out of range")
    try:
        ticket = body[_ASK.size : _ASK.size + ticket_bytes].decode()
    except UnicodeDecodeError as error:
        raise FrameError("ticket is not text") from error
    proof = body[start - _PROOF_BYTES : start]
    return Ask(number, tag, page_bytes, timeout_ms, ticket, proof, _parse_runs(body, start, runs))


def _parse_runs(body: bytes, offset: int, count: int) -> tuple[PageRun, ...]:
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
    if offset != len(body):
        raise FrameError("ask has bytes left over")
    return tuple(runs)


def parse_welcome(body: bytes) -> Welcome:
    if not _PROOF_BYTES < len(body) <= _PROOF_BYTES + MAX_ADDRESS_BYTES:
        raise FrameError("welcome has a wrong length")
    return Welcome(body[:_PROOF_BYTES], body[_PROOF_BYTES:])


def parse_verdict(body: bytes) -> Verdict:
    if len(body) != _VERDICT.size:
        raise FrameError("verdict has a wrong length")
    number, answer = _VERDICT.unpack(body)
    try:
        return Verdict(number, Answer(answer))
    except ValueError as error:
        raise FrameError("verdict is of an unknown kind") from error
