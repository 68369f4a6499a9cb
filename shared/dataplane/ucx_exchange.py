"""The operations of one UCX worker, in groups that end as one, and who is told of their end.

`native/exchange.c` does this at a fraction of the cost; what is here does the same where there is
no C compiler, and is the plainer text of the two. One thread only. Knows no tickets and no guards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from shared.dataplane import link_wire as wire
from shared.dataplane.region import Region
from shared.dataplane.runs import Run
from shared.dataplane.ucx_calls import PENDING, WHOLE_TAG, Calls, failed

FAILED: Final = -1
"""The outcome of what did not end well."""
MOVED: Final = 1
LANDED: Final = 2
"""What a turn did: something moved or ended; and a direct read landed too."""
_ROOM: Final = wire.MAX_FRAME_BYTES - wire.HEADER_BYTES
_BURST: Final = 32
"""Progress calls at one go."""
_SWEEP: Final = 64
"""Unfinished operations looked at per turn: completions come nearly in order."""


Sink = Callable[[Any, int], None]
"""Is told, within `turn`, what has ended and how. Below 0 it failed: the link is broken."""


class Exchange(Protocol):
    """Posts groups of operations; `sink` is told of the end of `what`. What cannot be posted fails
    as if the peer had gone. Runs that are not in our pages raise IndexError."""

    @property
    def unfinished(self) -> int:
        """Groups that have not ended."""
        ...

    @property
    def broken(self) -> bool:
        """A message of ours could not leave."""
        ...

    def connect(self, endpoint: int, first_tag: int) -> None:
        """Asks take tags from `first_tag` on, each `TAG_STEP` beyond the last."""
        ...

    def ask(
        self, runs: tuple[Run, ...], ticket: str, timeout_ms: int, sink: Sink, what: Any
    ) -> None:
        """Receive pages in place, each run `RUN_STEP` beyond the last, and ask for them: asks leave
        with the next turn, in one message with their neighbours. The outcome is the `Answer` on
        which all runs agree. Pages count only when their whole length came as accepted; a refusal
        is empty."""
        ...

    def give(
        self, runs: tuple[wire.PageRun, ...], tag: int, answer: wire.Answer, sink: Sink, what: Any
    ) -> None:
        """Answer an ask: with the pages, from where they lie, which must not change until it has
        ended; or for each run with a message without content."""
        ...

    def say(self, tag: int, message: bytes) -> None:
        """Send a message. Nobody is told, but see `broken`."""
        ...

    def hear(self, tag: int, where: int, size_bytes: int, sink: Sink, what: Any) -> None:
        """Receive one message of at most this size; the outcome is its length. Many under one
        tag fill in the order in which they were posted."""
        ...

    def turn(self, patience_ns: int) -> int:
        """Move what can be moved, or wait for so long; then tell the sinks. MOVED, LANDED, or 0
        where nothing moved or ended."""
        ...

    def stop(self) -> None:
        """Nothing is said and no sink is told from now on: the endpoint may be gone. Every receive
        is cancelled; each still ends by itself, in a later turn."""
        ...


class _Group:
    __slots__ = ("left", "outcome", "sink", "what")

    def __init__(self, left: int, sink: Sink | None, what: Any) -> None:
        self.sink = sink
        self.what = what
        self.left = left
        self.outcome: int | None = None


class _Operation(NamedTuple):
    request: int
    group: _Group
    size_bytes: int
    """Of pages; 0: a message of any length."""
    content: bytes | None = None


class PlainExchange:
    """Implements Exchange over ctypes calls, with a look at every operation."""

    def __init__(self, calls: Calls, worker: int, region: Region) -> None:
        self._calls = calls
        self._worker = worker
        self._region = region
        self._to = 0
        self._receives: deque[_Operation] = deque()
        self._sends: deque[_Operation] = deque()
        self._ended: deque[_Group] = deque()
        self._asks: list[bytes] = []
        """For the next turn."""
        self._room = _ROOM
        self._number = 0
        self._tag = 0
        self._news = False
        """Something may have completed since the last look."""
        self._silent = False
        self.unfinished = 0
        self.broken = False

    def connect(self, endpoint: int, first_tag: int) -> None:
        self._to = endpoint
        self._tag = first_tag

    def ask(
        self, runs: tuple[Run, ...], ticket: str, timeout_ms: int, sink: Sink, what: Any
    ) -> None:
        region, tag = self._region, self._tag
        page_bytes = region.page_bytes
        places = [(region.at(run.target, run.pages), run.pages * page_bytes) for run in runs]
        named = tuple(wire.PageRun(run.source, run.generations) for run in runs)
        ask = wire.Ask(self._number, tag, page_bytes, timeout_ms, ticket, named).encode()
        if len(self._asks) == wire.MAX_ASKS or len(ask) > self._room:
            self._say_asks()
        self._asks.append(ask)
        self._room -= len(ask)
        self._number = (self._number + 1) % (1 << 32)
        self._tag += wire.TAG_STEP
        group = self._group(len(runs), sink, what)
        for where, size_bytes in places:
            self._receive(group, where, size_bytes, tag, size_bytes)
            tag += wire.RUN_STEP

    def give(
        self, runs: tuple[wire.PageRun, ...], tag: int, answer: wire.Answer, sink: Sink, what: Any
    ) -> None:
        region, accepted = self._region, answer is wire.Answer.ACCEPTED
        places = [
            (region.at(first, len(pages)), len(pages) * region.page_bytes) if accepted else (0, 0)
            for first, pages in runs
        ]
        group = self._group(len(runs), sink, what)
        for where, size_bytes in places:
            self._send(group, where, size_bytes, tag | answer)
            tag += wire.RUN_STEP

    def say(self, tag: int, message: bytes) -> None:
        self._send(self._group(1), message, len(message), tag)

    def hear(self, tag: int, where: int, size_bytes: int, sink: Sink, what: Any) -> None:
        self._receive(self._group(1, sink, what), where, size_bytes, tag, 0)

    def turn(self, patience_ns: int) -> int:
        """Never waits: the pump turns again."""
        if self._asks:
            self._say_asks()
        progress, worker, moved = self._calls.progress, self._worker, 0
        while moved < _BURST and progress(worker):
            moved += 1
        if moved or self._news:
            self._news = False
            self._look(self._receives, self._received)
            self._look(self._sends, self._sent)
        ended, self._ended = self._ended, deque()
        for group in ended:
            if group.sink is not None and not self._silent:
                group.sink(group.what, FAILED if group.outcome is None else group.outcome)
        return MOVED if moved or ended else 0

    def stop(self) -> None:
        self._silent = self._news = True
        self._asks.clear()
        for operation in self._receives:
            self._calls.cancel(self._worker, operation.request)

    # -- operations --------------------------------------------------------------------------

    def _say_asks(self) -> None:
        asks, self._asks, self._room = self._asks, [], _ROOM
        self.say(wire.ASK_TAG, wire.frame(wire.Kind.ASK, b"".join(asks)))

    def _group(self, left: int, sink: Sink | None = None, what: Any = None) -> _Group:
        self.unfinished += 1
        self._news = True
        return _Group(left, sink, what)

    def _receive(
        self, group: _Group, where: int, size_bytes: int, tag: int, pages_bytes: int
    ) -> None:
        calls = self._calls
        mask = wire.RUN_MASK if pages_bytes else WHOLE_TAG
        request: int | None = calls.receive(
            self._worker, where, size_bytes, tag, mask, calls.receiving
        )
        if failed(request):
            self._settle(group, FAILED)
        elif request is None:
            self._settle(group, self._judged(pages_bytes))
        else:
            self._receives.append(_Operation(request, group, pages_bytes))

    def _send(self, group: _Group, what: int | bytes, size_bytes: int, tag: int) -> None:
        calls = self._calls
        request: int | None = calls.send(self._to, what, size_bytes, tag, calls.sending)
        if failed(request):
            self._settle(group, FAILED)
        elif request is None:
            self._settle(group, 0)
        else:
            content = what if isinstance(what, bytes) else None
            self._sends.append(_Operation(request, group, size_bytes, content))

    def _look(
        self, queue: deque[_Operation], outcome_of: Callable[[_Operation], int | None]
    ) -> None:
        waiting: list[_Operation] = []
        while queue and len(waiting) < _SWEEP:
            operation = queue.popleft()
            outcome = outcome_of(operation)
            if outcome is None:
                waiting.append(operation)
            else:
                self._calls.free(operation.request)
                self._settle(operation.group, outcome)
        queue.extendleft(reversed(waiting))

    def _received(self, operation: _Operation) -> int | None:
        status = self._calls.test(operation.request)
        if status == PENDING:
            return None
        return FAILED if status else self._judged(operation.size_bytes)

    def _sent(self, operation: _Operation) -> int | None:
        status = self._calls.check(operation.request)
        if status == PENDING:
            return None
        return FAILED if status else 0

    def _judged(self, pages_bytes: int) -> int:
        """The outcome of what was received last."""
        found = self._calls.received
        if not pages_bytes:
            return int(found.size_bytes)
        answer = int(found.tag) & wire.ANSWER_MASK
        accepted = answer == wire.Answer.ACCEPTED
        if found.size_bytes:
            return answer if accepted and found.size_bytes == pages_bytes else FAILED
        return FAILED if accepted or answer not in wire.ANSWERS else answer

    def _settle(self, group: _Group, outcome: int) -> None:
        """One operation has ended. Those that disagree are a failure of the whole group."""
        group.outcome = outcome if group.outcome in (None, outcome) else FAILED
        group.left -= 1
        if group.left:
            return
        self.unfinished -= 1
        if group.sink is not None:
            self._ended.append(group)
        elif group.outcome == FAILED:
            self.broken = True
