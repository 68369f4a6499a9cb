"""The owner's end of a link: checks what a reader asks for, then sends from the pages in place.

Until a first ask was granted by the guard the peer costs a socket and two small frames, and UCX
has not seen a byte of it. Sends end before `close_read`, always.
"""

from __future__ import annotations

import asyncio
from typing import Final

from shared.dataplane import ucx_wire as wire
from shared.dataplane.observer import Cause, PlaneObserver
from shared.dataplane.plane import PageMemory, ReadGuard
from shared.dataplane.ucx_channel import Channel, Operation
from shared.dataplane.ucx_library import UcxLibrary
from shared.dataplane.ucx_stream import FrameStream
from shared.errors import TransferError
from shared.ids import Generation, PageId

FIRST_ASK_S: Final = 5.0
_GRACE_S: Final = 2.0
"""Beyond the reader's own deadline: after that its reads are ended from our side."""
_MAX_OPEN_READS: Final = 64
_CAUSES: Final = {
    wire.Answer.REFUSED: Cause.REFUSED,
    wire.Answer.OUT_OF_RANGE: Cause.OUT_OF_RANGE,
    wire.Answer.PAGE_SIZE: Cause.PAGE_SIZE,
    wire.Answer.MALFORMED: Cause.MALFORMED,
}


class OwnerLink:
    """One accepted connection, from its first byte to the end of its last send."""

    def __init__(
        self,
        stream: FrameStream,
        library: UcxLibrary,
        memory: PageMemory,
        guard: ReadGuard,
        observer: PlaneObserver,
    ) -> None:
        self._stream = stream
        self._library = library
        self._memory = memory
        self._guard = guard
        self._observer = observer
        self._channel: Channel | None = None
        self._slots = asyncio.Semaphore(_MAX_OPEN_READS)
        self._reads: set[int] = set()

    async def run(self, lanes: frozenset[wire.Lane]) -> None:
        """Serve until the peer leaves or misbehaves."""
        try:
            async with asyncio.TaskGroup() as sends:
                try:
                    await self._serve(sends, lanes)
                finally:
                    self.fence()  # ends the sends, so that the group can
        finally:
            self._stream.abort()
            for read in tuple(self._reads):  # granted, but its task never ran
                self._close_read(read)

    def fence(self) -> bool:
        """End every send without awaiting. True: nothing reads our pages any more."""
        return self._channel is None or self._channel.fence()

    async def _serve(self, sends: asyncio.TaskGroup, lanes: frozenset[wire.Lane]) -> None:
        try:
            async with asyncio.timeout(FIRST_ASK_S):
                hello = await self._stream.expect(wire.Kind.HELLO)
                ask = wire.parse_ask(await self._stream.expect(wire.Kind.ASK))
            if not await self._welcome(hello, ask, lanes, sends):
                await self._stream.finish()
                return
            while True:
                ask = wire.parse_ask(await self._stream.expect(wire.Kind.ASK))
                await self._grant(ask, sends)
        except wire.FrameError:
            self._observer.turned_away(Cause.MALFORMED)
        except TransferError:
            self._observer.turned_away(Cause.UNREACHABLE)
        except TimeoutError:
            self._observer.turned_away(Cause.SILENT)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the peer left; nothing to count

    async def _welcome(
        self,
        hello: bytes,
        ask: wire.Ask,
        lanes: frozenset[wire.Lane],
        sends: asyncio.TaskGroup,
    ) -> bool:
        """Only a granted ask lets UCX see the peer's address. False: close the connection."""
        greeting = wire.parse_hello(hello)
        if greeting.lane not in lanes or not wire.proven(ask.proof, ask.ticket, hello):
            await self._refuse(ask, wire.Answer.MALFORMED)
            return False
        read = await self._open_read(ask)
        if read is None:
            return False
        self._channel = Channel(self._library, greeting.lane)
        self._channel.connect(greeting.address)
        await self._slots.acquire()
        self._start(ask, read, sends, welcome=self._channel.address)
        return True

    async def _grant(self, ask: wire.Ask, sends: asyncio.TaskGroup) -> None:
        await self._slots.acquire()
        read = await self._open_read(ask)
        if read is None:
            self._slots.release()
            return
        self._start(ask, read, sends, welcome=b"")

    async def _open_read(self, ask: wire.Ask) -> int | None:
        """Check every number against our memory, then ask the guard. Refuses by itself."""
        answer = wire.Answer.REFUSED
        read: int | None = None
        if ask.page_bytes != self._memory.page_bytes:
            answer = wire.Answer.PAGE_SIZE
        elif any(run.first + len(run.generations) > self._memory.pages for run in ask.runs):
            answer = wire.Answer.OUT_OF_RANGE
        else:
            read = self._guard.open_read(ask.ticket, _named(ask))
        if read is None:
            await self._refuse(ask, answer)
        else:
            self._reads.add(read)
        return read

    def _close_read(self, read: int) -> None:
        """Tell the guard, unless a send of this link could not be stopped."""
        self._reads.discard(read)
        if self._channel is None or not self._channel.unsettled:
            self._guard.close_read(read)
        else:
            self._observer.turned_away(Cause.UNSETTLED)

    async def _refuse(self, ask: wire.Ask, answer: wire.Answer) -> None:
        self._observer.turned_away(_CAUSES[answer])
        await self._stream.write(wire.Kind.VERDICT, wire.Verdict(ask.number, answer).encode())

    def _start(self, ask: wire.Ask, read: int, sends: asyncio.TaskGroup, welcome: bytes) -> None:
        sends.create_task(self._send(ask, read, welcome), name=f"plane-send-{ask.number}")

    async def _send(self, ask: wire.Ask, read: int, welcome: bytes) -> None:
        """Accept and send. However it ends: sends terminal first, then `close_read`."""
        posted: list[Operation] = []
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            await self._accept(ask, welcome)
            posted = self._post(ask)
            limit_s = ask.timeout_ms / 1000 + _GRACE_S
            await asyncio.wait([operation.ended for operation in posted], timeout=limit_s)
        except (OSError, TransferError):
            pass  # the link is gone; the peer learns it from its socket
        finally:
            self._end(read, posted, loop.time() - started_s)

    async def _accept(self, ask: wire.Ask, welcome: bytes) -> None:
        if welcome:
            proof = wire.prove(ask.ticket, welcome)
            await self._stream.write(wire.Kind.WELCOME, wire.Welcome(proof, welcome).encode())
        verdict = wire.Verdict(ask.number, wire.Answer.ACCEPTED)
        await self._stream.write(wire.Kind.VERDICT, verdict.encode())

    def _post(self, ask: wire.Ask) -> list[Operation]:
        channel = self._channel
        if channel is None:
            raise TransferError("the link was never opened")
        return [
            channel.send(self._memory.run(PageId(run.first), len(run.generations)), ask.tag + index)
            for index, run in enumerate(ask.runs)
        ]

    def _end(self, read: int, posted: list[Operation], seconds: float) -> None:
        done = bool(posted) and all(operation.ended.done() for operation in posted)
        if not done:
            self.fence()
            self._stream.abort()
        self._close_read(read)
        self._slots.release()
        if done and all(operation.ended.result() for operation in posted):
            label = self._channel.label if self._channel is not None else "unknown"
            size_bytes = sum(operation.size_bytes for operation in posted)
            self._observer.served(label, size_bytes, seconds)
        else:
            self._observer.turned_away(Cause.LOST)


def _named(ask: wire.Ask) -> list[tuple[PageId, Generation]]:
    return [
        (PageId(run.first + offset), Generation(generation))
        for run in ask.runs
        for offset, generation in enumerate(run.generations)
    ]
