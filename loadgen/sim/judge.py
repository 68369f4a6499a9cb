"""The rules that a run is judged by, seen from outside the cores (reliability, invariants I2 to
I7). The first broken rule ends the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from shared.ids import Generation, PageId
from shared.kv.blocks import State
from shared.kv.cache import PageCache


class Violation(Exception):
    """A rule was broken: which one, how, and for which request."""

    def __init__(self, rule: str, text: str, request: str = "") -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text
        self.request = request


@dataclass(frozen=True, slots=True)
class Committed:
    """Who committed an attempt."""

    worker: str
    incarnation: int


class Judge:
    """Asked by the simulated shells; remembers what rules across hosts need."""

    def __init__(self) -> None:
        self._commits: dict[tuple[str, int], Committed] = {}
        self.declared: set[tuple[str, int]] = set()
        """Workers that a scheduler declared lost, or that died."""
        self.landings = 0
        self.commits = 0
        self.endings: Counter[str] = Counter()

    # -- I2: a page that something may still write is given to nobody ----------------------

    def landing(self, cache: PageCache, page: PageId, generation: Generation, story: str) -> None:
        """Bytes of a read arrive in a target page."""
        self.landings += 1
        seen = cache.look(page)
        if seen.generation != generation:
            raise Violation("I2", f"a read lands in a page that was granted again: {story}")
        if seen.state in (State.FREE, State.CACHED) or seen.sealed:
            raise Violation("I2", f"a read lands in a {seen.state.name} page: {story}")

    def written(self, cache: PageCache, page: PageId, inbound: bool, story: str) -> None:
        """An engine step writes a page."""
        seen = cache.look(page)
        if seen.sealed or seen.state is not State.REFERENCED:
            raise Violation("I2", f"a step writes a {seen.state.name} page: {story}")
        if inbound:
            raise Violation("I2", f"a step writes a page that a read writes too: {story}")

    # -- I3: a page that somebody may read stays as it is ----------------------------------

    def serving(self, cache: PageCache, page: PageId, generation: Generation, story: str) -> None:
        """A page is about to be read by a peer."""
        seen = cache.look(page)
        if seen.generation != generation:
            raise Violation("I3", f"a page is read that was granted again: {story}")
        if not seen.sealed:
            raise Violation("I4", f"a page is read before it was sealed: {story}")

    def unchanged(self, before: int, after: int, story: str) -> None:
        if before != after:
            raise Violation("I3", f"a page changed under an open read: {story}")

    def kept(self, sealed: int | None, found: int, where: str) -> None:
        """A sealed page is looked at again."""
        if sealed != found:
            raise Violation("I13", f"a sealed page at {where} does not have its checksum")

    # -- I5: one commit --------------------------------------------------------------------

    def committed(self, key: tuple[str, int], by: Committed, story: Callable[[], str]) -> None:
        """A decode incarnation took over an attempt."""
        self.commits += 1
        if key in self._commits:
            text = f"{key} committed by {self._commits[key]} and by {by}\n{story()}"
            raise Violation("I5", text, key[0])
        self._commits[key] = by
