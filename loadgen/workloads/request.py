"""One request of a workload, and a workload: lengths, prefix-block ids and times; never text.

Knows no file format and no clock; the live load generator and the simulator both read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

LIMIT_TOKENS: Final = 1 << 24
_LIMIT_S: Final = 1e9


class WorkloadError(ValueError):
    """A workload that cannot be: says where (file and line, or row) and which field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. Block i names the prefix up to and including its tokens: two requests with
    equal ids share that prefix; there are ceil(prompt_tokens / block_tokens) of them."""

    at_s: float
    """Seconds from the start; for a follow-up, seconds after the end of `after` (think time)."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Empty: shares nothing with anyone."""
    after: int | None = None
    """Row of the request that must end first: the turn before, or the parent of a tool call."""
    session: int | None = None
    tenant: str = "default"
    priority: int = 0
    expected_tokens: int = 0
    """The client's forecast of its answer. 0: none."""
    ttft_slo_s: float = 0.0
    tpot_slo_s: float = 0.0
    """The client's own objectives. 0: none."""

    def check(self, row: int, block_tokens: int) -> None:
        """Raises WorkloadError naming the field."""
        for name, least in (("prompt_tokens", 1), ("output_tokens", 1)):
            value = getattr(self, name)
            if not least <= value <= LIMIT_TOKENS:
                raise WorkloadError(f"{name} is {value}; expected {least}..{LIMIT_TOKENS}")
        if not (math.isfinite(self.at_s) and 0 <= self.at_s <= _LIMIT_S):
            raise WorkloadError(f"at_s is {self.at_s}; expected 0..{_LIMIT_S:g} seconds")
        wanted = -(-self.prompt_tokens // block_tokens)
        if self.blocks and len(self.blocks) != wanted:
            raise WorkloadError(
                f"blocks has {len(self.blocks)} ids, but {self.prompt_tokens} prompt_tokens "
                f"in blocks of {block_tokens} make {wanted}"
            )
        for name in ("expected_tokens", "ttft_slo_s", "tpot_slo_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= LIMIT_TOKENS):
                raise WorkloadError(f"{name} is {value}; expected 0..{LIMIT_TOKENS}")
        if self.after is not None and not 0 <= self.after < row:
            raise WorkloadError(f"after is {self.after}; expected an earlier row than {row}")


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of row. Those without `after` are sorted by `at_s`."""

    name: str
    block_tokens: int
    requests: tuple[Request, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    @property
    def rate_per_s(self) -> float:
        """Mean rate of the requests with a time of their own; 0 where there is no span."""
        times = [request.at_s for request in self.requests if request.after is None]
        span_s = times[-1] - times[0] if times else 0.0
        return (len(times) - 1) / span_s if span_s > 0 else 0.0

    @property
    def ideal_hit(self) -> float:
        """Share of prompt tokens that an infinite cache would have had, in order of row."""
        seen: set[int] = set()
        reused = 0
        for request in self.requests:
            known = 0
            for block in request.blocks:
                if block not in seen:
                    break
                known += 1
            reused += min(known * self.block_tokens, request.prompt_tokens)
            seen.update(request.blocks)
        total = sum(request.prompt_tokens for request in self.requests)
        return reused / total if total else 0.0


def build(name: str, block_tokens: int, requests: Iterable[Request]) -> Workload:
    """Checked. Raises WorkloadError naming row and field."""
    rows = tuple(requests)
    latest_s = 0.0
    for row, request in enumerate(rows):
        try:
            request.check(row, block_tokens)
        except WorkloadError as error:
            raise WorkloadError(f"{name}, row {row}: {error}") from None
        if request.after is None:
            if request.at_s < latest_s:
                raise WorkloadError(
                    f"{name}, row {row}: at_s is {request.at_s}, before the row above ({latest_s})"
                )
            latest_s = request.at_s
    if not rows:
        raise WorkloadError(f"{name}: no requests")
    return Workload(name, block_tokens, rows)


def finer(blocks: Sequence[int], prompt_tokens: int, coarse: int, fine: int) -> tuple[int, ...]:
    """The ids of the *full* blocks of `fine` tokens, given ids of blocks of `coarse` tokens.

    A coarse block is split into coarse / fine ids that keep the meaning: equal id, equal prefix.
    Raises WorkloadError where fine does not divide coarse."""
    if coarse % fine:
        raise WorkloadError(f"blocks of {coarse} tokens do not split into blocks of {fine}")
    parts = coarse // fine
    whole = prompt_tokens // fine
    return tuple(block * parts + part for block in blocks for part in range(parts))[:whole]
