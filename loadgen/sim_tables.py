"""`make sim-tables`: published figures of disaggregated serving beside this simulator's.

One table: claim, published, simulated, verdict (held, beaten, short); under each claim its inputs
and what is missing. Claims run side by side; progress goes to stderr; the last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from loadgen.sim.fleet.design import DesignError
from loadgen.spread import spread
from loadgen.tables import distserve, lecture, mooncake, preble, regions, sarathi
from loadgen.tables.claim import Claim, Line, Setting
from loadgen.workloads.request import WorkloadError

CLAIMS: Final[tuple[Claim, ...]] = (
    *lecture.CLAIMS,
    *distserve.CLAIMS,
    *preble.CLAIMS,
    *sarathi.CLAIMS,
    *mooncake.CLAIMS,
    *regions.CLAIMS,
)
_USAGE: Final = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """One claim's lines, or why there are none."""

    name: str
    lines: tuple[Line, ...]
    seconds: float
    left_out: str = ""


def main(options: argparse.Namespace) -> int:
    """0 whatever the verdicts: they are findings. 2 where no claim has the name."""
    claims = [claim for claim in CLAIMS if options.only.lower() in claim.name.lower()]
    if not claims:
        names = ", ".join(claim.name for claim in CLAIMS)
        print(f"sim-tables: no claim has {options.only!r} in its name: {names}", file=sys.stderr)
        return _USAGE
    if not 0 < options.scale <= 100:
        print(f"sim-tables: scale is {options.scale}; expected 0..100", file=sys.stderr)
        return _USAGE
    if options.list:
        for claim in claims:
            print(f"{claim.name}: {claim.source}")
        return 0
    width = max(12, *(len(claim.name) for claim in claims))
    print(f"{'claim':<{width}}  {'figure':<46}{'published':>18}{'simulated':>18}  verdict")
    told: list[dict[str, object]] = []
    calls = [partial(_answer, claim, options.scale, options.data) for claim in claims]
    for claim, answer in zip(claims, spread(calls, options.jobs), strict=True):
        _print(claim, answer, width)
        told += [_row(claim, line) for line in answer.lines]
    counts = {kind: sum(row["verdict"] == kind for row in told) for kind in _KINDS}
    print(orjson.dumps({"bench": "tables", "claims": told, **counts}).decode())
    return 0


_KINDS: Final = ("held", "beaten", "short")


def _answer(claim: Claim, scale: float, data: Path) -> Answer:
    begun_s = time.monotonic()

    def note(text: str) -> None:
        passed_s = time.monotonic() - begun_s
        print(f"{passed_s:>5.0f} s  {claim.name}: {text}", file=sys.stderr, flush=True)

    try:
        lines = tuple(claim.measure(Setting(scale, data, note)))
        return Answer(claim.name, lines, time.monotonic() - begun_s)
    except (WorkloadError, DesignError) as error:
        return Answer(claim.name, (), time.monotonic() - begun_s, str(error))


def _print(claim: Claim, answer: Answer, width: int) -> None:
    print()
    for line in answer.lines:
        figures = f"{line.published:>18}{line.simulated:>18}"
        print(f"{claim.name:<{width}}  {line.name:<46}{figures}  {line.verdict.value}")
    if answer.left_out:
        print(f"{claim.name:<{width}}  left out: {answer.left_out}")
    for title, text in (
        ("source", claim.source),
        ("inputs", claim.inputs),
        ("missing", claim.missing),
    ):
        print(f"{'':<{width}}  {title}: {text}")
    print(f"{'':<{width}}  {answer.seconds:.0f} s", flush=True)


def _row(claim: Claim, line: Line) -> dict[str, object]:
    return {
        "name": f"{claim.name}: {line.name}",
        "published": line.published,
        "simulated": line.simulated,
        "verdict": line.verdict.value,
    }


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sim_tables",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--only", default="", help="claims whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the claims and stop")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="public traces")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(parse(sys.argv[1:])))
