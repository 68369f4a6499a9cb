"""Log lines: one JSON object each on standard error, safe to read in a terminal.

Fields are typed facts about the system. Prompts, outputs, keys and token ids are never passed in.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from shared.clock import Clock, SystemClock

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_MAX_TEXT: Final = 1024
_MAX_LINE: Final = 8192
_WINDOW_S: Final = 1.0
_LINES_PER_WINDOW: Final = 20


class Log:
    """Writes events of one process. Equal events beyond 20 a second are counted, and the count
    stands as `suppressed` in the next line of that event. Never raises because of its stream."""

    def __init__(
        self,
        service: str,
        worker: str,
        level: str = "info",
        format: str = "json",
        *,
        clock: Clock | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._labels: dict[str, object] = {"service": service, "worker": worker}
        self._text = format == "text"
        self._clock = clock or SystemClock()
        self._stream = stream
        self._windows: dict[str, tuple[float, int]] = {}
        self.set_level(level)

    def set_level(self, level: str) -> None:
        self._least = _LEVELS[level]

    def set_epoch(self, epoch: int) -> None:
        """From now on every line carries the epoch of this incarnation."""
        self._labels["epoch"] = epoch

    def event(self, name: str, level: str = "info", **fields: object) -> None:
        """`name` is dotted, past tense, from a closed list: 'worker.registered'."""
        if _LEVELS[level] < self._least:
            return
        suppressed = self._admit(name)
        if suppressed is None:
            return
        if suppressed:
            fields["suppressed"] = suppressed
        line = self._line(name, level, fields)
        try:
            stream = self._stream or sys.stderr
            stream.write(line)
            stream.flush()
        except (OSError, ValueError):
            return  # nobody reads any more; there is no other place to say so

    def failure(self, name: str, error: BaseException, **fields: object) -> None:
        """An unexpected exception: its type and the places it passed, never its message."""
        frames = traceback.extract_tb(error.__traceback__)[-6:]
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
        self.event(name, level="error", error=type(error).__name__, places=places, **fields)

    def _admit(self, name: str) -> int | None:
        """None: hold this line back. Else how many were held back before it."""
        now = self._clock.now()
        start, count = self._windows.get(name, (now, 0))
        if now - start >= _WINDOW_S:
            self._windows[name] = (now, 1)
            return max(0, count - _LINES_PER_WINDOW)
        self._windows[name] = (start, count + 1)
        return 0 if count < _LINES_PER_WINDOW else None

    def _line(self, name: str, level: str, fields: dict[str, object]) -> str:
        moment = datetime.fromtimestamp(self._clock.unix_ns(self._clock.now()) / 1e9, UTC)
        typed = {key: _plain(value) for key, value in fields.items()}
        if self._text:
            clock_time = moment.strftime("%H:%M:%S.%f")[:-3]
            words = [clock_time, f"{level:<7}", str(self._labels["worker"]), name]
            words += [f"{key}={_json(value)}" for key, value in typed.items()]
            return " ".join(words)[:_MAX_LINE] + "\n"
        stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        head = {"ts": stamp, "level": level, **self._labels, "event": name}
        line = _json(head | typed)
        if len(line) > _MAX_LINE:
            line = _json(head | {"oversized_bytes": len(line)})
        return line + "\n"


class LibraryLines(logging.Handler):
    """Brings log records of libraries into our lines: logger, level and message *template* only,
    because interpolated messages quote foreign bytes."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0] if record.exc_info else None
        self._log.event(
            "library.warned",
            level="error" if record.levelno >= logging.ERROR else "warning",
            logger=record.name,
            template=str(record.msg).partition("\n")[0][:200] if record.args else "",
            place=f"{record.module}:{record.lineno}",
            error=kind.__name__ if kind else "",
        )


def capture_libraries(log: Log) -> None:
    """Route the root logger of the standard library into `log`, once per process."""
    logging.basicConfig(level=logging.WARNING, handlers=[LibraryLines(log)], force=True)


def _plain(value: object) -> object:
    """A JSON value: texts clipped, numbers finite, everything else by its type's name."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…"
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value[:64]]
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in list(value.items())[:64]}
    if isinstance(value, BaseException):
        return type(value).__name__
    return f"<{type(value).__name__}>"


def _json(value: object) -> str:
    """ASCII only, so line breaks, escapes and U+2028 cannot reach a terminal raw."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("\x7f", "\\u007f")
