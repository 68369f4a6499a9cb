"""The owner's end of a link: checks what a reader asks for, then sends from the pages in place.

Until a peer has proven that it knows our key it costs a socket and one small frame, and UCX has
not seen a byte of it. Each ask shows a ticket. Sends end before `close_read`, always.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

from shared.dataplane import link_wire as wire
from shared.dataplane.link_parts import PlaneParts
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.observer import Cause
from shared.dataplane.region import Region
from shared.dataplane.ucx_channel import Channel
from shared.dataplane.ucx_library import UcxLibrary
from shared.dataplane.ucx_pump import Pump
from shared.errors import TransferError
from shared.ids import Generation, PageId

HELLO_S: Final = 5.0
SLOTS: Final = 16
"""Asks of one link that are open at one time; a slot takes the next ask when its read ended."""
_WATCH_S: Final = 0.5
_GRACE_S: Final = 2.0
"""Beyond the reader's own deadline: after that its reads are ended from our side."""
CAUSES: Final = {
    wire.Answer.REFUSED: Cause.REFUSED,
    wire.Answer.OUT_OF_RANGE: Cause.OUT_OF_RANGE,
    wire.Answer.PAGE_SIZE: Cause.PAGE_SIZE,
}


class _Slot:
    """Takes one message of asks, and the next when all of these have ended."""

    __slots__ = ("_pinned", "buffer", "left", "where")

    def __init__(self) -> None:
        self._pinned = (ctypes.c_char * wire.MAX_FRAME_BYTES)()
        self.buffer = memoryview(self._pinned).cast("B")
        self.where = ctypes.addressof(self._pinned)
        self.left = 0


_Pages = list[tuple[PageId, Generation]]
_Asked = tuple[int, int, int, str, tuple[wire.PageRun, ...], _Pages]
"""Tag, bytes of a page, milliseconds, ticket and runs of an Ask, and its pages by name."""

_AsksIn = Callable[[memoryview, int], "list[_Asked] | None"]
"""What a frame of so many bytes asks for, in one call; None: link_wire's parsers are to say."""

_Answered = tuple[_Slot, int | None, int, float]
"""An ask whose messages are on their way: its slot, the read (None where it was refused), its bytes
and when it began."""


class OwnerLink:
    """One accepted connection, from its first byte to the end of its last send."""

    def __init__(
        self,
        stream: FrameStream,
        parts: PlaneParts,
        library: UcxLibrary,
        pump: Pump,
        region: Region,
    ) -> None:
        self._stream = stream
        self._parts = parts
        self._library = library
        self._pump = pump
        self._region = region
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._reads: dict[int, float] = {}
        """Open reads, and until when the reader may take them."""
        self._waiting: deque[tuple[_Slot, _Asked]] = deque()
        """Asks beyond the number of reads that are open at one time."""
        self._open = 0
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False
        self._asks_in: _AsksIn = _none if library.compiled is None else library.compiled.asks_in

    async def run(self, lanes: frozenset[wire.Lane]) -> None:
        """Serve until the peer leaves or misbehaves."""
        observer = self._parts.observer
        try:
            async with asyncio.timeout(HELLO_S):
                await self._welcome(lanes)
            if self._channel is None:
                return
            await self._stream.read()
            raise wire.FrameError("a reader says nothing more here")
        except wire.FrameError:
            observer.turned_away(Cause.MALFORMED)
        except TransferError:
            observer.turned_away(Cause.UNREACHABLE)
        except TimeoutError:
            observer.turned_away(Cause.SILENT)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the peer left; nothing to count
        finally:
            self.fence()

    def fence(self) -> bool:
        """End every send without awaiting. True: nothing reads our pages any more."""
        settled = True
        if self._channel is not None:
            self._closed = True
            settled = self._channel.fence()
        self._stream.abort()
        if self._watch is not None:
            self._watch.cancel()
        for read in tuple(self._reads):
            self._parts.observer.turned_away(Cause.LOST)
            self._close_read(read, settled)
        return settled

    async def _welcome(self, lanes: frozenset[wire.Lane]) -> None:
        hello = wire.parse_hello(await self._stream.expect(wire.Kind.HELLO))
        if hello.lane not in lanes or not hello.proven(self._parts.key):
            raise wire.FrameError("hello is not proven")
        if not wire.compatible(self._parts.content, hello.content):
            self._parts.observer.turned_away(Cause.INCOMPATIBLE)
            await self._stream.write(wire.Kind.REFUSAL, b"")
            await self._stream.finish()
            return
        channel = Channel(self._library, hello.lane, self._pump, self._region, self.fence)
        self._channel = channel
        channel.connect(hello.address)
        for _ in range(SLOTS):
            self._listen(_Slot())
        welcome = wire.Welcome(SLOTS, channel.address).encode(self._parts.key)
        await self._stream.write(wire.Kind.WELCOME, welcome)

    # -- asks --------------------------------------------------------------------------------

    def _listen(self, slot: _Slot) -> None:
        """A free slot takes the next message."""
        if not self._closed and self._channel is not None:
            exchange = self._channel.posting()
            exchange.hear(wire.ASK_TAG, slot.where, wire.MAX_FRAME_BYTES, self._heard, slot)

    def _heard(self, slot: _Slot, size_bytes: int) -> None:
        """A message of the reader; below 0: it was too long, or the link is broken."""
        if self._closed:
            return
        try:
            asks: Sequence[_Asked] | None = self._asks_in(slot.buffer, size_bytes)
            if asks is None:
                asks = _parsed(slot.buffer[: max(0, size_bytes)].tobytes())
        except wire.FrameError:
            self._parts.observer.turned_away(Cause.MALFORMED)
            self.fence()
            return
        slot.left = len(asks)
        if asks:
            self._waiting.extend([(slot, ask) for ask in asks])
            self._go_on()
        else:
            self._listen(slot)

    def _go_on(self) -> None:
        """Answer asks while there is room for open reads."""
        try:
            while self._waiting and self._open < SLOTS and not self._closed:
                self._answer(*self._waiting.popleft())
        except TransferError:
            self.fence()  # the link is broken
        except Exception:  # noqa: BLE001 - broken pages of ours must not take the process down
            self._parts.observer.failed(Cause.INTERNAL)
            self.fence()

    def _answer(self, slot: _Slot, ask: _Asked) -> None:
        """Check every number against our memory, then ask the guard."""
        tag, page_bytes, timeout_ms, ticket, runs, pages = ask
        region, read = self._region, None
        answer = wire.Answer.REFUSED
        for first, generations in runs:
            if first + len(generations) > region.pages:
                answer = wire.Answer.OUT_OF_RANGE
        if page_bytes != region.page_bytes:
            answer = wire.Answer.PAGE_SIZE
        elif answer is wire.Answer.REFUSED:
            read = self._parts.guard.open_read(ticket, pages)
        started_s = self._loop.time()
        if read is not None:
            answer = wire.Answer.ACCEPTED
            self._reads[read] = started_s + timeout_ms / 1000 + _GRACE_S
            if self._watch is None:
                self._watch = self._loop.call_later(_WATCH_S, self._expire)
        else:
            self._parts.observer.turned_away(CAUSES[answer])
        if self._channel is None:
            raise TransferError("the link was never opened")
        self._open += 1
        told = (slot, read, len(pages) * page_bytes, started_s)
        self._channel.posting().give(runs, tag, answer, self._answered, told)

    def _answered(self, told: _Answered, outcome: int) -> None:
        """Everything that was said to an ask has left, or could not."""
        if outcome < 0:
            self.fence()  # closes the reads, once it knows that nothing is sent any more
            return
        slot, read, size_bytes, started_s = told
        self._open -= 1
        if read is not None and read in self._reads:
            self._close_read(read, settled=True)
            label = self._channel.label if self._channel is not None else "unknown"
            self._parts.observer.served(label, size_bytes, self._loop.time() - started_s)
        slot.left -= 1
        try:
            if not slot.left:
                self._listen(slot)
        except TransferError:
            self.fence()
            return
        if self._waiting:
            self._go_on()

    def _expire(self) -> None:
        """A read that outlived its reader's deadline ends with the link."""
        self._watch = None
        if any(limit_s < self._loop.time() for limit_s in self._reads.values()):
            self.fence()
        elif self._reads:
            self._watch = self._loop.call_later(_WATCH_S, self._expire)

    def _close_read(self, read: int, settled: bool) -> None:
        """Tell the guard, unless a send of this link could not be stopped."""
        del self._reads[read]
        if settled:
            self._parts.guard.close_read(read)
        else:
            self._parts.observer.turned_away(Cause.UNSETTLED)


def _none(frame: memoryview, size_bytes: int) -> None:
    """An _AsksIn where nothing is compiled."""


def _parsed(frame: bytes) -> list[_Asked]:
    """What a message of the reader asks for: nothing, where it only says that it is there. Raises
    FrameError."""
    kind, body = wire.parse_frame(frame)
    if kind is wire.Kind.PING:
        return []
    if kind is not wire.Kind.ASK:
        raise wire.FrameError("frame is out of order")
    return [(*ask[1:], named(ask)) for ask in wire.parse_asks(body)]


def named(ask: wire.Ask) -> _Pages:
    """The pages as the guard knows them; numbers are ids as they are."""
    pages: list[tuple[int, int]] = []
    for first, generations in ask.runs:
        pages.extend(enumerate(generations, first))
    return cast("_Pages", pages)
