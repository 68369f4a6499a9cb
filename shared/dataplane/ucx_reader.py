"""The reader's end of a link: asks the owner for runs of pages and receives them in place.

Any number of reads share a link, told apart by number and tag. Knows nothing of deadlines: the
plane gives up by fencing the whole link.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from typing import Final

from shared.dataplane import ucx_wire as wire
from shared.dataplane.observer import PlaneObserver
from shared.dataplane.plane import PageMemory
from shared.dataplane.runs import Run
from shared.dataplane.ucx_channel import Channel
from shared.dataplane.ucx_library import UcxLibrary
from shared.dataplane.ucx_stream import FrameStream
from shared.errors import Code, TransferError

_TAG_ROOTS: Final = 1 << 44


class LinkLost(TransferError):
    """The link ended before the owner answered: nothing was posted, asking again is safe."""

    code = Code.WORKER_LOST


class ReaderLink:
    """A link to one peer. `run` owns it from connect to close; `pull` may be called at once."""

    def __init__(
        self,
        endpoint: tuple[str, int],
        lane: wire.Lane,
        library: UcxLibrary,
        memory: PageMemory,
        observer: PlaneObserver,
    ) -> None:
        self._endpoint = endpoint
        self._lane = lane
        self._library = library
        self._memory = memory
        self._observer = observer
        self._opened = asyncio.Event()
        self._numbers = itertools.count(1)
        self._verdicts: dict[int, asyncio.Future[wire.Answer | None]] = {}
        self._stream: FrameStream | None = None
        self._channel: Channel | None = None
        self._hello = b""
        self._first_ticket: str | None = None
        self._settled = True
        self.closed = False
        self.transport = ""
        """What the link really uses; empty until it moved its first pages."""

    async def run(self, connect_timeout_s: float) -> None:
        """Connect, dispatch the owner's frames, and close whatever ends it."""
        try:
            async with asyncio.timeout(connect_timeout_s):
                await self._open()
            while True:
                self._dispatch(*await self._connected().read())
        except (OSError, asyncio.IncompleteReadError, wire.FrameError, TransferError):
            pass  # TimeoutError is an OSError. Those who wait learn it from `fence`.
        finally:
            self.fence()

    async def pull(self, ticket: str, runs: Sequence[Run], timeout_s: float) -> None:
        """Ask, then receive every run. Raises TransferError; LinkLost when it never started.
        Cancelling it does not stop the bytes: `fence` does."""
        await self._opened.wait()
        tag = secrets.randbelow(_TAG_ROOTS) * wire.TAG_STEP
        match await self._ask(ticket, runs, tag, timeout_s):
            case None:
                raise LinkLost("the link ended before the owner answered")
            case wire.Answer.ACCEPTED:
                await self._receive(runs, tag)
            case answer:
                raise TransferError(f"the owner refused: {answer.name.lower()}", Code.STALE)

    def fence(self) -> bool:
        """End the link without awaiting. True: nothing lands in our pages through it any more."""
        if not self.closed:
            self.closed = True
            if self._channel is not None:
                self._settled = self._channel.fence()
            if self._stream is not None:
                self._stream.abort()
            if self.transport:
                self._observer.link_closed(self.transport)
            for verdict in self._verdicts.values():
                if not verdict.done():
                    verdict.set_result(None)
            self._opened.set()
        return self._settled

    async def _open(self) -> None:
        host, port = self._endpoint
        self._stream = FrameStream(*await asyncio.open_connection(host, port))
        self._channel = Channel(self._library, self._lane)
        self._hello = wire.Hello(self._lane, self._channel.address).encode()
        await self._stream.write(wire.Kind.HELLO, self._hello)
        self._opened.set()

    def _connected(self) -> FrameStream:
        if self._stream is None or self.closed:
            raise LinkLost("the peer cannot be reached")
        return self._stream

    async def _ask(
        self, ticket: str, runs: Sequence[Run], tag: int, timeout_s: float
    ) -> wire.Answer | None:
        stream = self._connected()
        if self._first_ticket is None:
            self._first_ticket = ticket
        ask = wire.Ask(
            number=next(self._numbers) % (1 << 32),
            tag=tag,
            page_bytes=self._memory.page_bytes,
            timeout_ms=max(1, min(round(timeout_s * 1000), wire.MAX_TIMEOUT_MS)),
            ticket=ticket,
            proof=wire.prove(ticket, self._hello),
            runs=tuple(wire.PageRun(run.source, run.generations) for run in runs),
        )
        verdict: asyncio.Future[wire.Answer | None] = asyncio.get_running_loop().create_future()
        self._verdicts[ask.number] = verdict
        try:
            await stream.write(wire.Kind.ASK, ask.encode())
            return await verdict
        except OSError as error:
            raise LinkLost("the link ended while asking") from error
        finally:
            del self._verdicts[ask.number]

    async def _receive(self, runs: Sequence[Run], tag: int) -> None:
        channel = self._channel
        if channel is None:
            raise LinkLost("the link was never opened")
        try:
            posted = [
                channel.receive(self._memory.run(run.target, run.pages), tag + index)
                for index, run in enumerate(runs)
            ]
            await asyncio.wait([operation.ended for operation in posted])
        except BaseException:
            self.fence()  # part of the receives may be posted
            raise
        if not all(operation.ended.result() for operation in posted):
            settled = self.fence()
            raise TransferError("the link ended in the middle", Code.WORKER_LOST, settled)
        if not self.transport:
            self.transport = channel.label
            self._observer.link_opened(self.transport)

    def _dispatch(self, kind: wire.Kind, body: bytes) -> None:
        match kind:
            case wire.Kind.WELCOME:
                self._welcome(wire.parse_welcome(body))
            case wire.Kind.VERDICT:
                verdict = wire.parse_verdict(body)
                waiting = self._verdicts.get(verdict.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(verdict.answer)
            case _:
                raise wire.FrameError("frame is out of order")

    def _welcome(self, welcome: wire.Welcome) -> None:
        ticket, channel = self._first_ticket, self._channel
        if ticket is None or channel is None:
            raise wire.FrameError("welcome before the first ask")
        if not wire.proven(welcome.proof, ticket, welcome.address):
            raise wire.FrameError("welcome is not proven")
        channel.connect(welcome.address)
