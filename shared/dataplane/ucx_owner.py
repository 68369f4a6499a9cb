"""The owner's end of a link: checks what a reader asks for, then sends from the pages in place.

Until a peer has proven that it knows our key it costs a socket and one small frame, and UCX has
not seen a byte of it. Each ask shows a ticket. Sends end before `close_read`, always.
"""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np

from shared.dataplane import link_wire as wire
from shared.dataplane.link_parts import PlaneParts
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.observer import Cause
from shared.dataplane.ucx_channel import Batch, Channel
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


class OwnerLink:
    """One accepted connection, from its first byte to the end of its last send."""

    def __init__(
        self, stream: FrameStream, parts: PlaneParts, library: UcxLibrary, pump: Pump
    ) -> None:
        self._stream = stream
        self._parts = parts
        self._library = library
        self._pump = pump
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._reads: dict[int, float] = {}
        """Open reads, and until when the reader may take them."""
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False

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
        channel = Channel(self._library, hello.lane, self._pump)
        self._channel = channel
        channel.connect(hello.address)
        for _ in range(SLOTS):
            self._listen()
        welcome = wire.Welcome(SLOTS, channel.address).encode(self._parts.key)
        await self._stream.write(wire.Kind.WELCOME, welcome)

    # -- asks --------------------------------------------------------------------------------

    def _listen(self) -> None:
        """A free slot takes the next ask."""
        if self._closed or self._channel is None:
            return
        slot = bytearray(wire.MAX_FRAME_BYTES)

        def heard(good: bool) -> None:
            self._heard(slot, good)

        batch = Batch(heard)
        self._channel.receive(slot, wire.ASK_TAG, batch)
        batch.seal()

    def _heard(self, slot: bytearray, good: bool) -> None:
        if self._closed:
            return
        observer = self._parts.observer
        try:
            if not good:
                raise wire.FrameError("ask is too long, or the link is broken")
            kind, body = wire.parse_frame(bytes(slot))
            match kind:
                case wire.Kind.PING:
                    self._listen()
                case wire.Kind.ASK:
                    self._answer(wire.parse_ask(body))
                case _:
                    raise wire.FrameError("frame is out of order")
        except wire.FrameError:
            observer.turned_away(Cause.MALFORMED)
            self.fence()
        except TransferError:
            self.fence()  # the link is broken
        except Exception:  # noqa: BLE001 - broken pages of ours must not take the process down
            observer.failed(Cause.INTERNAL)
            self.fence()

    def _answer(self, ask: wire.Ask) -> None:
        """Check every number against our memory, then ask the guard."""
        memory = self._parts.memory
        read: int | None = None
        answer = wire.Answer.REFUSED
        if ask.page_bytes != memory.page_bytes:
            answer = wire.Answer.PAGE_SIZE
        elif any(run.first + len(run.generations) > memory.pages for run in ask.runs):
            answer = wire.Answer.OUT_OF_RANGE
        else:
            read = self._parts.guard.open_read(ask.ticket, named(ask))
        if read is None:
            self._refuse(ask, answer)
        else:
            self._send(ask, read)

    def _refuse(self, ask: wire.Ask, answer: wire.Answer) -> None:
        """The verdict, and for each posted receive a message without content, which ends it."""
        self._parts.observer.turned_away(CAUSES[answer])

        def told(good: bool) -> None:
            if good:
                self._listen()
            else:
                self.fence()

        self._say(ask, answer, [_NOTHING] * len(ask.runs), Batch(told))

    def _send(self, ask: wire.Ask, read: int) -> None:
        memory, started_s = self._parts.memory, self._loop.time()
        self._reads[read] = started_s + ask.timeout_ms / 1000 + _GRACE_S
        if self._watch is None:
            self._watch = self._loop.call_later(_WATCH_S, self._expire)

        def sent(good: bool) -> None:
            if not good:
                self.fence()
            elif read in self._reads:
                self._close_read(read, settled=True)
                self._served(size_bytes, self._loop.time() - started_s)
                self._listen()

        runs = [memory.run(PageId(run.first), len(run.generations)) for run in ask.runs]
        size_bytes = memory.page_bytes * sum(len(run.generations) for run in ask.runs)
        self._say(ask, wire.Answer.ACCEPTED, runs, Batch(sent))

    def _say(
        self, ask: wire.Ask, answer: wire.Answer, contents: list[object], batch: Batch
    ) -> None:
        channel = self._channel
        if channel is None:
            raise TransferError("the link was never opened")
        verdict = wire.accepted(ask.number)
        if answer is not wire.Answer.ACCEPTED:
            verdict = wire.frame(wire.Kind.VERDICT, wire.Verdict(ask.number, answer).encode())
        channel.send(verdict, ask.tag, batch)
        for index, content in enumerate(contents, start=1):
            channel.send(content, ask.tag + index, batch)
        batch.seal()

    def _served(self, size_bytes: int, seconds: float) -> None:
        label = self._channel.label if self._channel is not None else "unknown"
        self._parts.observer.served(label, size_bytes, seconds)

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


_NOTHING: Final = np.empty(0, np.uint8)


def named(ask: wire.Ask) -> list[tuple[PageId, Generation]]:
    return [
        (PageId(run.first + offset), Generation(generation))
        for run in ask.runs
        for offset, generation in enumerate(run.generations)
    ]
