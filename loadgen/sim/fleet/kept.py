"""Answers of searches, kept in files: the same fleet, workload and objectives are measured once.

An answer belongs to the code that found it: where any file of the simulator or of the cores has
changed, it is not found again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.sim.fleet.design import Design
from loadgen.sim.fleet.figures import Figures, Slo
from loadgen.sim.fleet.goodput import Draw, Goodput, Point

_ROOT: Final = Path(__file__).resolve().parents[3]
_CODE: Final = ("loadgen/sim", "services", "shared")
_ALONE_PER_S: Final = 1.0

Search = Callable[[Design, Draw, Slo, float, float], Goodput]


def kept(search: Search, folder: Path) -> Search:
    """The same search that looks into `folder` first."""

    def found(design: Design, draw: Draw, slo: Slo, share: float, first_per_s: float) -> Goodput:
        # One draw serves all rates: at one of them it tells all lengths and gaps.
        question = (design, draw(_ALONE_PER_S).requests, slo, share, first_per_s)
        name = hashlib.sha256(f"{code()} {question!r}".encode()).hexdigest()[:32]
        path = folder / f"{name}.json"
        known = _read(path)
        if known is not None:
            return known
        answer = search(design, draw, slo, share, first_per_s)
        _write(path, answer)
        return answer

    return found


@cache
def code() -> str:
    """A digest of every file that an answer depends on."""
    digest = hashlib.sha256()
    for part in _CODE:
        for path in sorted((_ROOT / part).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> Goodput | None:
    """None where nothing is kept, or what is there cannot be read."""
    try:
        told: dict[str, Any] = orjson.loads(path.read_bytes())
        curve = tuple(_point(point) for point in told["curve"])
        return Goodput(float(told["rate_per_s"]), int(told["devices"]), curve)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _point(told: dict[str, Any]) -> Point:
    figures = told["figures"]
    return Point(
        rate_per_s=told["rate_per_s"],
        attainment=told["attainment"],
        figures=None if figures is None else Figures(**figures),
        steady=told["steady"],
    )


def _write(path: Path, answer: Goodput) -> None:
    """A folder that cannot be written to costs time, not the answer."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(orjson.dumps(asdict(answer)))
        part.replace(path)
