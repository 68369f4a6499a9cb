"""One row of the fault matrix, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.e2e.cluster import Wish
from tests.e2e.faults.events import Event
from tests.e2e.faults.load import Stream
from tests.e2e.faults.stage import PAIRS


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What happens, and how streams may end besides complete with the undisturbed tokens."""

    id: str
    what: str
    events: tuple[Event, ...]
    wish: Wish = PAIRS
    proxied: tuple[str, ...] = ()
    """Roles whose way to the bus leads through a proxy."""
    codes: tuple[str, ...] = ()
    """Typed errors that the design allows here."""
    may_break: bool = False
    """The process that talks to the clients dies."""
    probe_code: str = ""
    """The fault lies in the settings and stays: the probe gets this error instead of tokens."""
    fails: str = ""
    """Why the row does not pass yet; then it must not pass."""

    def allows(self, stream: Stream) -> bool:
        if stream.complete or stream.left:
            return True
        return stream.code in self.codes or (stream.broken and self.may_break)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Of one row that was run."""

    id: str
    what: str
    result: str = "failed"
    """'passed', 'failed' or 'expected failure'."""
    seconds: float = 0.0
    streams: int = 0
    lost: int = 0
    """Streams that ended otherwise than the row allows."""
    longest_gap_s: float = 0.0
    settled_s: float = 0.0
    wrong_tokens: int = 0
    leaks: int = 0
    """Services that still held something after lease and grace."""
    reason: str = ""


OUTCOMES: dict[str, Outcome] = {}
"""Of this run of the tests, in the order of the rows."""
