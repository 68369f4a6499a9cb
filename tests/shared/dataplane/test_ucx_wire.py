"""The framed requests: what goes in comes out, and nothing else is understood."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shared.dataplane import ucx_wire as wire

ASK = wire.Ask(
    number=7,
    tag=5 * wire.TAG_STEP,
    page_bytes=4096,
    timeout_ms=1000,
    ticket="ticket",
    proof=b"p" * 16,
    runs=(wire.PageRun(3, (1, 2, 3)), wire.PageRun(900, (2**64 - 1,))),
)
PARSERS = (wire.parse_hello, wire.parse_ask, wire.parse_welcome, wire.parse_verdict)


def test_round_trips() -> None:
    hello = wire.Hello(wire.Lane.SHM, b"a worker address")
    assert wire.parse_hello(hello.encode()) == hello
    assert wire.parse_ask(ASK.encode()) == ASK
    welcome = wire.Welcome(b"p" * 16, b"a worker address")
    assert wire.parse_welcome(welcome.encode()) == welcome
    verdict = wire.Verdict(2**32 - 1, wire.Answer.PAGE_SIZE)
    assert wire.parse_verdict(verdict.encode()) == verdict
    framed = wire.frame(wire.Kind.ASK, b"12345")
    assert wire.parse_header(framed[: wire.HEADER_BYTES]) == (wire.Kind.ASK, 5)


@given(
    ticket=some.text(max_size=100),
    generations=some.lists(some.lists(some.integers(0, 2**64 - 1), min_size=1), min_size=1),
    number=some.integers(0, 2**32 - 1),
)
def test_any_ask_round_trips(ticket: str, generations: list[list[int]], number: int) -> None:
    runs = tuple(wire.PageRun(index, tuple(run)) for index, run in enumerate(generations))
    ask = wire.Ask(number, 0, 64, 1, ticket, b"q" * 16, runs)
    assert wire.parse_ask(ask.encode()) == ask


@given(data=some.binary(max_size=300))
def test_foreign_bytes_are_a_frame_error_and_nothing_else(data: bytes) -> None:
    for parse in PARSERS:
        with contextlib.suppress(wire.FrameError):
            parse(data)
    with contextlib.suppress(wire.FrameError):
        wire.parse_header(data[: wire.HEADER_BYTES].ljust(wire.HEADER_BYTES, b"\0"))


def test_a_damaged_ask_is_refused_or_differs() -> None:
    whole = ASK.encode()
    draw = random.Random(3)
    for _ in range(2000):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        with contextlib.suppress(wire.FrameError):
            assert wire.parse_ask(bytes(damaged)) != ASK
    for cut in range(len(whole)):
        with pytest.raises(wire.FrameError):
            wire.parse_ask(whole[:cut])
    with pytest.raises(wire.FrameError):
        wire.parse_ask(whole + b"\0")


def test_caps_hold() -> None:
    too_many = wire.Ask(1, 0, 64, 1, "t", b"p" * 16, (wire.PageRun(0, (1,) * 65_537),))
    for body in (
        too_many.encode(),
        wire.Ask(1, 0, 64, 0, "t", b"p" * 16, ASK.runs).encode(),
        wire.Ask(1, 0, 64, 600_001, "t", b"p" * 16, ASK.runs).encode(),
        wire.Ask(1, 17, 64, 1, "t", b"p" * 16, ASK.runs).encode(),
        wire.Ask(1, 0, 64, 1, "t" * 513, b"p" * 16, ASK.runs).encode(),
        wire.Ask(1, 0, 64, 1, "t", b"p" * 16, ()).encode(),
        wire.Ask(1, 0, 64, 1, "t", b"p" * 16, (wire.PageRun(0, ()),)).encode(),
    ):
        with pytest.raises(wire.FrameError):
            wire.parse_ask(body)
    with pytest.raises(wire.FrameError):
        wire.parse_header(b"\x02" + (wire.MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


def test_the_proof_needs_the_ticket_and_the_content() -> None:
    proof = wire.prove("ticket", b"content")
    assert wire.proven(proof, "ticket", b"content")
    assert not wire.proven(proof, "Ticket", b"content")
    assert not wire.proven(proof, "ticket", b"contents")
