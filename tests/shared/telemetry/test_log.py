"""Log lines: one JSON object each, nothing raw, nothing endless, nothing private."""

from __future__ import annotations

import io
import json
import logging
import math
from typing import Any

import pytest

from shared.clock import ManualClock
from shared.telemetry.log import LibraryLines, Log


class Bench:
    def __init__(self, level: str = "info", format: str = "json") -> None:
        self.clock = ManualClock(1_700_000_000.25)
        self.stream = io.StringIO()
        self.log = Log("decode", "decode-0", level, format, clock=self.clock, stream=self.stream)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def test_a_line_has_time_place_event_and_typed_fields() -> None:
    bench = Bench()
    bench.log.set_epoch(3)
    bench.log.event("worker.registered", request="r1", pages=4, share=0.5, ok=True, none=None)
    assert bench.lines() == [
        {
            "ts": "2023-11-14T22:13:20.250Z",
            "level": "info",
            "service": "decode",
            "worker": "decode-0",
            "epoch": 3,
            "event": "worker.registered",
            "request": "r1",
            "pages": 4,
            "share": 0.5,
            "ok": True,
            "none": None,
        }
    ]


@pytest.mark.parametrize("format", ["json", "text"])
def test_hostile_text_stays_on_one_line_and_reaches_no_terminal_raw(format: str) -> None:
    bench = Bench(format=format)
    bench.log.event("request.refused", label="a\nb\r\x1b[31m\u2028\u2029\x7f\x85\ud800")
    text = bench.stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert all(32 <= ord(character) < 127 for character in text[:-1])


def test_fields_are_clipped_and_odd_values_have_only_their_type() -> None:
    bench = Bench()
    bench.log.event("x.happened", long="y" * 5000, nan=math.nan, odd=object(), error=KeyError("k"))
    (line,) = bench.lines()
    assert len(line["long"]) == 1025
    assert (line["nan"], line["odd"], line["error"]) == (None, "<object>", "KeyError")


def test_a_line_is_bounded() -> None:
    bench = Bench()
    bench.log.event("x.happened", **{f"field{index}": "y" * 1000 for index in range(30)})
    assert len(bench.stream.getvalue()) <= 8193
    assert bench.lines()[0]["oversized_bytes"] > 8192


def test_levels_filter_and_can_change() -> None:
    bench = Bench("warning")
    bench.log.event("x.happened")
    bench.log.set_level("debug")
    bench.log.event("y.happened", level="debug")
    assert [line["event"] for line in bench.lines()] == ["y.happened"]


def test_equal_events_are_limited_and_the_rest_is_counted() -> None:
    bench = Bench()
    for _ in range(50):
        bench.log.event("x.happened")
    bench.log.event("y.happened")
    bench.clock.advance(2.0)
    bench.log.event("x.happened")
    lines = bench.lines()
    assert len(lines) == 22
    assert lines[-1]["suppressed"] == 30


def test_a_failure_tells_type_and_place_but_not_its_message() -> None:
    bench = Bench()
    try:
        raise ZeroDivisionError("prompt text")
    except ZeroDivisionError as error:
        bench.log.failure("bus.handler_failed", error)
    (line,) = bench.lines()
    assert line["error"] == "ZeroDivisionError"
    assert line["places"][-1].startswith("test_log.py:")
    assert "prompt" not in bench.stream.getvalue()


def test_library_lines_carry_the_template_only() -> None:
    bench = Bench()
    logger = logging.Logger("aiohttp.server")
    logger.addHandler(LibraryLines(bench.log))
    logger.error("bad request from %s", "GET /secret")
    logger.error("interpolated secret already")
    first, second = bench.lines()
    assert first["template"] == "bad request from %s"
    assert second["template"] == ""
    assert first["logger"] == "aiohttp.server"
    assert "secret" not in bench.stream.getvalue()


def test_a_closed_stream_is_no_error() -> None:
    bench = Bench()
    bench.stream.close()
    bench.log.event("x.happened")
