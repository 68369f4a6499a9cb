"""What a fault did to the streams: the figures, the table and the JSON line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadgen.records import Row


@dataclass(slots=True)
class Watched:
    """One stream: its row, its whole text, and the longest wait between two pieces of it."""

    row: Row
    text: str = ""
    longest_gap_s: float = 0.0
    last_s: float | None = None

    def take(self, piece: str, now: float) -> None:
        if self.last_s is not None:
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_s)
        self.last_s = now
        self.text += piece

    @property
    def whole(self) -> bool:
        return self.row.outcome == "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that the report says."""

    fault: str
    victim: str
    disturbed: Sequence[Watched]
    calm: Sequence[Watched]
    """The same requests without a fault."""
    recovered_s: float | None
    """From the strike until every process was ready and a new request was answered."""
    leaks: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def lost(self) -> list[Watched]:
        return [stream for stream in self.disturbed if not stream.whole]

    @property
    def wrong(self) -> int:
        """Streams whose text is not that of the undisturbed pass. A lost stream counts when what
        it said is not the beginning of it."""
        pairs = zip(self.disturbed, self.calm, strict=True)
        return sum(not _agree(hit, calm) for hit, calm in pairs)

    @property
    def good(self) -> bool:
        calm = all(stream.whole for stream in self.calm)
        clean = not self.lost and not self.wrong and not self.leaks
        return calm and clean and self.recovered_s is not None

    def line(self) -> str:
        return json.dumps(
            {
                "bench": "chaos",
                "fault": self.fault,
                "victim": self.victim,
                "streams": len(self.disturbed),
                "lost": len(self.lost),
                "wrong": self.wrong,
                "longest_gap_ms": _ms(_longest(self.disturbed)),
                "calm_longest_gap_ms": _ms(_longest(self.calm)),
                "recovery_ms": None if self.recovered_s is None else _ms(self.recovered_s),
                "leaks": sum(len(entries) for entries in self.leaks.values()),
                "ok": self.good,
            }
        )

    def table(self) -> str:
        recovered = "never" if self.recovered_s is None else f"{self.recovered_s:.2f} s"
        rows = [
            ("fault", f"{self.fault} ({self.victim})"),
            ("streams", f"{len(self.disturbed)}"),
            ("lost", f"{len(self.lost)} {_reasons(self.lost)}".rstrip()),
            ("wrong", f"{self.wrong}"),
            (
                "longest gap",
                f"{_longest(self.disturbed):.3f} s (calm: {_longest(self.calm):.3f} s)",
            ),
            ("recovery", recovered),
            ("leaks", ", ".join(f"{name} {held}" for name, held in self.leaks.items()) or "none"),
        ]
        broken = [stream for stream in self.calm if not stream.whole]
        if broken:
            rows.append(("NOT VALID", f"undisturbed streams ended early {_reasons(broken)}"))
        return "\n".join(f"{name:<14}{text}" for name, text in rows)


def _agree(hit: Watched, calm: Watched) -> bool:
    if not hit.whole or not calm.whole:
        return calm.text.startswith(hit.text) or hit.text.startswith(calm.text)
    same_count = hit.row.output_tokens == calm.row.output_tokens
    return hit.text == calm.text and same_count and hit.row.finish == calm.row.finish


def _longest(streams: Sequence[Watched]) -> float:
    return max((stream.longest_gap_s for stream in streams), default=0.0)


def _reasons(streams: Sequence[Watched]) -> str:
    reasons = sorted({stream.row.reason or stream.row.outcome for stream in streams})
    return f"({', '.join(reasons)})" if reasons else ""


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
