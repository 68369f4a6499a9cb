"""How many pages the sequences will need at their worst moment, before anyone is let in.

LightLLM's estimate: sequence j holds run_j tokens and grows by left_j more; at the instant when
the i-th longest ends, the i longest are alive and each grew by left_i:

    peak = max over i of ( left_i * i + sum of run_j for j <= i )        longest left first

How long answers become is learnt (`lengths.py`): Past-Future scheduler, ASPLOS 2025.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Run
from dataclasses import dataclass
from typing import Final

from services.decode.core.desk import Desk
from services.decode.core.lengths import Lengths
from services.decode.core.rules import pages_for
from services.decode.core.sequences import Sequence
from shared.ids import PageId
from shared.kv.cache import HeldPage

_BRAVEST: Final = 0.5
_SHYEST: Final = 0.95
_AFTER_PREEMPTION: Final = 0.05
_AFTER_QUIET: Final = 0.01
_QUIET_S: Final = 60.0
_MARGIN: Final = 4


@dataclass(frozen=True, slots=True)
class Member:
    """One sequence's memory in tokens: what it holds now, and how much it will still grow."""

    run: int
    left: int
    late: int = 0
    """Steps by which it may end later than `left`, because it is not generating yet."""

    @property
    def end(self) -> int:
        return self.left + self.late


def future_peak(members: Iterable[Member]) -> int:
    """Most tokens that will ever be held together if nobody else comes. O(n log n), and O(n) for
    each member that is late: such a one is taken to grow at once and to stay until it ends."""
    peak = held = growing = 0
    late: list[Member] = []
    for member in sorted(members, key=lambda one: one.end, reverse=True):
        if member.late:
            late.append(member)
        else:
            held += member.run
            growing += 1
        then = member.end
        waiting = sum(one.run + min(one.left, then) for one in late)
        peak = max(peak, held + growing * then + waiting)
    return peak


class Forecast:
    """Whether a newcomer fits, in this moment and until everyone has ended.

    `quantile` of the lengths is assumed: each preemption makes it shyer, quiet makes it braver.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.lengths = Lengths()
        self.quantile = _BRAVEST
        self._quiet_since_s = 0.0

    def fits(
        self, newcomer: Sequence, others: list[Sequence], pages: Run[HeldPage], granted: int
    ) -> bool:
        """`others` are those that hold pages, `pages` what the newcomer shares already, `granted`
        what it would get in addition. Alone it always fits: the door refused what never can."""
        if not others:
            return True
        size = self._desk.rules.block_tokens
        taken = {page.page for page in pages}
        for other in self._desk.sequences.values():
            taken.update(page.page for page in other.pages if page is not None)
        capacity = self._desk.cache.available + len(taken)
        grown = [self._growth(other) for other in others]
        shared = [page.page for page in pages]
        lacking = len(newcomer.tokens) - len(pages) * size
        late = self._late(lacking)
        grown.append(_Growth(shared, granted, self.left(newcomer), late, newcomer.worst_pages))
        return future_peak(_members(grown, size)) <= capacity * size

    def peak_pages(self) -> int:
        """For monitors: the worst moment ahead, in pages."""
        size = self._desk.rules.block_tokens
        holding = [s for s in self._desk.sequences.values() if s.pages]
        grown = [self._growth(sequence) for sequence in holding]
        return -(-future_peak(_members(grown, size)) // size)

    def left(self, sequence: Sequence) -> int:
        """Tokens that a sequence is expected to generate still. Never more than it may."""
        most = max(0, sequence.job.sampling.max_tokens - sequence.generated)
        if sequence.job.sampling.ignore_eos:
            return most
        out = sequence.job.first_index + sequence.generated
        return min(most, self.lengths.left(sequence.job.namespace, out, self.quantile))

    def preempted(self, now: float) -> None:
        """Too brave: assume longer answers."""
        self.quantile = min(_SHYEST, self.quantile + _AFTER_PREEMPTION)
        self._quiet_since_s = now

    def ended(self, sequence: Sequence) -> None:
        """A sequence finished by itself: its length is known."""
        out = sequence.job.first_index + sequence.generated
        self.lengths.add(sequence.job.namespace, out)

    def tick(self, now: float) -> None:
        if now - self._quiet_since_s >= _QUIET_S:
            self.quantile = max(_BRAVEST, self.quantile - _AFTER_QUIET)
            self._quiet_since_s = now

    def _growth(self, sequence: Sequence) -> _Growth:
        there = [page.page for page in sequence.pages if page is not None]
        absent = max(0, pages_for(len(sequence.tokens), sequence.block_tokens) - len(there))
        lacking = 0 if sequence.decoding else sequence.open_tokens()
        late = self._late(lacking)
        return _Growth(there, absent, self.left(sequence), late, sequence.worst_pages)

    def _late(self, lacking: int) -> int:
        """Steps until the first token, with a margin: other prompts may come first."""
        return _MARGIN * -(-max(0, lacking) // self._desk.rules.step_tokens)


@dataclass(frozen=True, slots=True)
class _Growth:
    """Pages that exist, pages to be granted, tokens to come, and the most pages there can be."""

    pages: Run[PageId]
    granted: int
    left: int
    late: int
    worst_pages: int


def _members(grown: list[_Growth], block_tokens: int) -> list[Member]:
    """In tokens of whole pages, each with a page to spare, because a sequence grows by whole
    pages. A shared page counts once, for the sharer that ends last."""
    seen: set[PageId] = set()
    members: list[Member] = []
    for growth in sorted(grown, key=lambda one: one.left, reverse=True):
        mine = [page for page in growth.pages if page not in seen]
        seen.update(mine)
        present = len(growth.pages) + growth.granted
        spare = min(1, max(0, growth.worst_pages - present))
        left = min(growth.left, (growth.worst_pages - present - spare) * block_tokens)
        run = (len(mine) + growth.granted + spare) * block_tokens
        members.append(Member(run, max(0, left), growth.late))
    return members
