"""Latency objectives as `--goodput ttft:500 tpot:50` spells them, in milliseconds; for one tenant
alone: `chat/ttft:500`. A request is good when it meets all that apply to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.reports.run_files import Mask, Rows

NAMES: Final = ("ttft", "tpot", "e2e")
_ALSO: Final = {"e2el": "e2e"}


class SloError(ValueError):
    """An objective that cannot be read."""


@dataclass(frozen=True, slots=True)
class Slo:
    """One bound."""

    name: str
    limit_ms: float
    tenant: str = ""
    """Empty: everybody's."""

    @property
    def text(self) -> str:
        whose = f"{self.tenant}/" if self.tenant else ""
        return f"{whose}{self.name}:{self.limit_ms:g}"


@dataclass(frozen=True, slots=True)
class Slos:
    """All objectives of a run."""

    each: tuple[Slo, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(slo.text for slo in self.each)

    def met(self, rows: Rows) -> Mask:
        """Which rows were answered within every objective."""
        good = rows.ok.copy()
        for slo in self.each:
            good &= ~self._missed(slo, rows)
        return good

    def missed_by(self, rows: Rows) -> dict[str, int]:
        """How many rows each objective alone turns bad, and how many were not answered."""
        answered = rows.where(rows.ok)
        found = {slo.text: int(self._missed(slo, answered).sum()) for slo in self.each}
        return found | {"not answered": int((~rows.ok).sum())}

    def _missed(self, slo: Slo, rows: Rows) -> Mask:
        """An absent latency of an answered request (one token has no tpot) misses nothing."""
        missed: Mask = rows.numbers[f"{slo.name}_s"] * 1000 > slo.limit_ms
        if slo.tenant:
            missed &= rows.words["tenant"] == slo.tenant
        else:
            own = [one.tenant for one in self.each if one.name == slo.name and one.tenant]
            missed &= ~np.isin(rows.words["tenant"], own)
        return missed


def read(words: Sequence[str]) -> Slos:
    """Raises SloError that says what was expected."""
    found = []
    for word in (part for entry in words for part in entry.replace(",", " ").split()):
        tenant, _, rest = word.rpartition("/")
        name, colon, limit = rest.partition(":")
        name = _ALSO.get(name, name)
        try:
            limit_ms = float(limit)
        except ValueError:
            limit_ms = math.nan
        if not colon or name not in NAMES or not 0 < limit_ms < math.inf:
            raise SloError(
                f"{word!r} is no objective; expected NAME:MILLISECONDS with NAME one of "
                f"{', '.join(NAMES)}, as in ttft:500 tpot:50"
            )
        found.append(Slo(name, limit_ms, tenant))
    twice = len({(slo.name, slo.tenant) for slo in found}) < len(found)
    if twice:
        raise SloError("an objective is given twice")
    return Slos(tuple(found))
