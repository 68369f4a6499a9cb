"""The framed requests: what goes in comes out, and nothing else is understood."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shared.dataplane import link_wire as wire

ASK = wire.Ask(
    number=7,
    tag=5 * wire.TAG_STEP,
    page_bytes=4096,
    timeout_ms=1000,
    ticket="ticket",
    runs=(wire.PageRun(3, (1, 2, 3)), wire.PageRun(900, (2**64 - 1,))),
)
PARSERS = (
    wire.parse_hello,
    wire.parse_ask,
    wire.parse_asks,
    wire.parse_welcome,
    wire.parse_verdict,
)


def test_round_trips() -> None:
    hello = wire.parse_hello(wire.Hello(wire.Lane.SHM, b"a worker address").encode("key"))
    assert (hello.lane, hello.address) == (wire.Lane.SHM, b"a worker address")
    told = wire.Hello(wire.Lane.SHM, b"a", wire.content_digest("model and layout"))
    assert wire.parse_hello(told.encode("key")).content == told.content != wire.UNTOLD
    assert wire.parse_ask(ASK.encode()) == ASK
    welcome = wire.parse_welcome(wire.Welcome(16, b"a worker address").encode("key"))
    assert (welcome.slots, welcome.address) == (16, b"a worker address")
    verdict = wire.Verdict(2**32 - 1, wire.Answer.PAGE_SIZE)
    assert wire.parse_verdict(verdict.encode()) == verdict
    framed = wire.frame(wire.Kind.ASK, b"12345")
    assert wire.parse_header(framed[: wire.HEADER_BYTES]) == (wire.Kind.ASK, 5)
    assert wire.parse_frame(framed + bytes(9)) == (wire.Kind.ASK, b"12345")


@given(
    ticket=some.text(max_size=100),
    generations=some.lists(some.lists(some.integers(0, 2**64 - 1), min_size=1), min_size=1),
    number=some.integers(0, 2**32 - 1),
)
def test_any_ask_round_trips(ticket: str, generations: list[list[int]], number: int) -> None:
    runs = tuple(wire.PageRun(index, tuple(run)) for index, run in enumerate(generations))
    ask = wire.Ask(number, wire.TAG_STEP, 64, 1, ticket, runs)
    assert wire.parse_ask(ask.encode()) == ask


def test_asks_of_one_message_come_apart_again() -> None:
    asks = [ASK._replace(number=number, ticket="t" * number) for number in range(wire.MAX_ASKS)]
    body = b"".join(ask.encode() for ask in asks)
    assert wire.parse_asks(body) == asks
    for broken in (b"", body + b"\0", body[:-1], body + ASK.encode()):
        with pytest.raises(wire.FrameError):
            wire.parse_asks(broken)


@given(data=some.binary(max_size=300))
def test_foreign_bytes_are_a_frame_error_and_nothing_else(data: bytes) -> None:
    for parse in PARSERS:
        with contextlib.suppress(wire.FrameError):
            parse(data)
    with contextlib.suppress(wire.FrameError):
        wire.parse_frame(data)
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
    step, many = wire.TAG_STEP, wire.MAX_PAGES + 1
    for ask in (
        wire.Ask(1, step, 64, 1, "t", (wire.PageRun(0, (1,) * many),)),
        wire.Ask(1, step, 64, 1, "t", (wire.PageRun(0, (1,)),) * many),
        wire.Ask(1, step, 64, 0, "t", ASK.runs),
        wire.Ask(1, step, 64, 600_001, "t", ASK.runs),
        wire.Ask(1, step + 17, 64, 1, "t", ASK.runs),
        wire.Ask(1, 0, 64, 1, "t", ASK.runs),
        wire.Ask(1, step, 64, 1, "t" * 513, ASK.runs),
        wire.Ask(1, step, 64, 1, "t", ()),
        wire.Ask(1, step, 64, 1, "t", (wire.PageRun(0, ()),)),
    ):
        with pytest.raises(wire.FrameError):
            wire.parse_ask(ask.encode())
    with pytest.raises(wire.FrameError):
        wire.parse_header(b"\x02" + (wire.MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(wire.FrameError):
        wire.parse_welcome(bytes(40))


def test_the_longest_ask_fits_its_slot() -> None:
    runs = tuple(wire.PageRun(2 * index, (2**64 - 1,)) for index in range(wire.MAX_PAGES))
    ticket = "t" * wire.MAX_TICKET_BYTES
    ask = wire.Ask(2**32 - 1, 2**63, 2**40, wire.MAX_TIMEOUT_MS, ticket, runs).encode()
    assert len(wire.frame(wire.Kind.ASK, ask)) <= wire.MAX_FRAME_BYTES
    assert wire.parse_ask(ask).runs == runs


def test_a_proof_needs_the_key_and_everything_it_covers() -> None:
    sent = wire.parse_hello(wire.Hello(wire.Lane.SHM, b"address").encode("key"))
    assert sent.proven("key")
    assert not sent.proven("other")
    none = wire.UNTOLD
    assert not wire.Hello(wire.Lane.TCP, sent.address, none, sent.proof).proven("key")
    assert not wire.Hello(sent.lane, b"address!", none, sent.proof).proven("key")
    assert not wire.Hello(sent.lane, sent.address, b"c" * 16, sent.proof).proven("key")
    answer = wire.parse_welcome(wire.Welcome(1, b"address").encode("key"))
    assert answer.proven("key")
    assert not wire.Welcome(2, answer.address, answer.proof).proven("key")
    assert not wire.Welcome(1, sent.address, sent.proof).proven("key"), "a hello is no welcome"
