"""The reader's end of a link: asks the owner for portions of pages and receives them in place.

Receives are posted before the ask, so an answer costs one way only. Any number of reads share a
link. Knows nothing of deadlines: the plane gives up by fencing the whole link.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from typing import Final

from shared.dataplane import link_wire as wire
from shared.dataplane.flow import Portion, Turns
from shared.dataplane.link_address import PlaneAddress
from shared.dataplane.link_parts import PlaneParts
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.observer import Cause
from shared.dataplane.transfer import LinkLost, Transfer
from shared.dataplane.ucx_channel import Batch, Channel
from shared.dataplane.ucx_library import UcxLibrary
from shared.dataplane.ucx_pump import Pump
from shared.errors import Code, TransferError

_TAG_ROOTS: Final = 1 << 42


class ReaderLink:
    """A link to one peer. `run` owns it from connect to close; `submit` may be called at once."""

    def __init__(
        self,
        address: PlaneAddress,
        lane: wire.Lane,
        parts: PlaneParts,
        library: UcxLibrary,
        pump: Pump,
    ) -> None:
        self._address = address
        self._lane = lane
        self._parts = parts
        self._library = library
        self._pump = pump
        self._turns: Turns[Transfer] = Turns(parts.budget, parts.window_bytes, self._ask_on)
        self._transfers: set[Transfer] = set()
        self._numbers = itertools.count(1)
        # Nobody else can guess the tags of our receives.
        self._tags = itertools.count(
            (1 + secrets.randbelow(_TAG_ROOTS)) * wire.TAG_STEP, wire.TAG_STEP
        )
        self._stream: FrameStream | None = None
        self._channel: Channel | None = None
        self._open = False
        self._settled = True
        self._incompatible = False
        self.closed = False
        self.transport = ""
        """What the link really uses; empty until it moved its first pages."""

    async def run(self, connect_timeout_s: float) -> None:
        """Connect, then stay until the peer leaves or `fence` is called."""
        try:
            async with asyncio.timeout(connect_timeout_s):
                stream = await self._connect()
            self._open = True
            self._ask_on()
            await stream.read()  # an owner says nothing more here: its end is what we wait for
        except (OSError, asyncio.IncompleteReadError, wire.FrameError, TransferError):
            pass  # TimeoutError is an OSError. Those who wait learn it from `fence`.
        finally:
            self.fence()

    def submit(self, transfer: Transfer) -> None:
        """Bring it to its end; `transfer` tells which. Never raises."""
        if self.closed:
            transfer.cut_off(LinkLost("the peer cannot be reached"))
            return
        self._transfers.add(transfer)
        self._turns.add(transfer.ticket, transfer, transfer.portions)
        self._ask_on()

    def give_up(self, transfer: Transfer) -> None:
        """Nobody waits for it any more: ask for nothing more."""
        waiting = self._turns.drop(transfer.ticket, transfer)
        transfer.give_up(waiting, TransferError("the read was given up"))
        self._forget_if_over(transfer)

    def fence(self) -> bool:
        """End the link without awaiting. True: nothing lands in our pages through it any more."""
        if not self.closed:
            self.closed = True
            if self._channel is not None:
                self._settled = self._channel.fence()
            if self._stream is not None:
                self._stream.abort()
            if self.transport:
                self._parts.observer.link_closed(self.transport)
            self._turns.close()
            for transfer in tuple(self._transfers):
                transfer.cut_off(self._loss(transfer))
            self._transfers.clear()
        return self._settled

    # -- opening -----------------------------------------------------------------------------

    async def _connect(self) -> FrameStream:
        address, key = self._address, self._address.key
        connection = await asyncio.open_connection(address.host, address.port)
        stream = self._stream = FrameStream(*connection)
        if self.closed:
            raise LinkLost("the link was closed while it opened")
        channel = self._channel = Channel(self._library, self._lane, self._pump)
        hello = wire.Hello(self._lane, channel.address, self._parts.content)
        await stream.write(wire.Kind.HELLO, hello.encode(key))
        kind, body = await stream.read()
        if kind is wire.Kind.REFUSAL:
            self._incompatible = True
            raise LinkLost("the peer's pages hold something else")
        if kind is not wire.Kind.WELCOME:
            raise wire.FrameError("frame is out of order")
        welcome = wire.parse_welcome(body)
        if not welcome.proven(key):
            raise wire.FrameError("welcome is not proven")
        channel.connect(welcome.address)
        self._turns.slots = welcome.slots
        # UCX finishes a connection with the first message: let it be none that someone waits for.
        ping = Batch(self._ended_well)
        channel.send(wire.frame(wire.Kind.PING), wire.ASK_TAG, ping)
        ping.seal()
        return stream

    def _loss(self, transfer: Transfer) -> TransferError:
        if self._incompatible:
            text = "the peer's pages are of another model or layout"
            return TransferError(text, Code.INCOMPATIBLE_WORKERS)
        if transfer.answered or not self._settled:
            return TransferError("the link ended in the middle", Code.WORKER_LOST, self._settled)
        return LinkLost("the link ended before the owner answered")

    # -- asking ------------------------------------------------------------------------------

    def _ask_on(self) -> None:
        """Ask for what credit allows."""
        while self._open and not self.closed:
            turn = self._turns.next()
            if turn is None:
                return
            try:
                self._ask(*turn)
            except TransferError:
                self.fence()
            except Exception:  # noqa: BLE001 - our own pages are broken; the process lives on
                self._parts.observer.failed(Cause.INTERNAL)
                self.fence()  # part of the receives may be posted

    def _ask(self, transfer: Transfer, portion: Portion) -> None:
        channel, memory = self._channel, self._parts.memory
        if channel is None:
            raise LinkLost("the link was never opened")
        left_s = transfer.limit_s - asyncio.get_running_loop().time()
        tag = next(self._tags)
        ask = wire.Ask(
            number=next(self._numbers) % (1 << 32),
            tag=tag,
            page_bytes=memory.page_bytes,
            timeout_ms=max(1, min(round(left_s * 1000), wire.MAX_TIMEOUT_MS)),
            ticket=transfer.ticket,
            runs=tuple(wire.PageRun(run.source, run.generations) for run in portion.runs),
        )
        verdict = bytearray(wire.VERDICT_BYTES)

        def landed(good: bool) -> None:
            self._landed(transfer, portion, ask.number, verdict if good else b"")

        batch = Batch(landed)
        channel.receive(verdict, tag, batch)
        for index, run in enumerate(portion.runs, start=1):
            channel.receive(memory.run(run.target, run.pages), tag + index, batch)
        channel.send(wire.frame(wire.Kind.ASK, ask.encode()), wire.ASK_TAG, batch)
        batch.seal()

    def _landed(
        self, transfer: Transfer, portion: Portion, number: int, verdict: bytes | bytearray
    ) -> None:
        """Every operation of this ask has ended; no `verdict` where one of them failed."""
        if self.closed:
            return
        answer = wire.Answer.ACCEPTED
        if verdict != wire.accepted(number):
            try:
                answer = _answer(verdict, number)
            except wire.FrameError:
                self.fence()
                return
        transfer.answered = True
        self._turns.ended(portion)
        if answer is not wire.Answer.ACCEPTED:
            waiting = self._turns.drop(transfer.ticket, transfer)
            refusal = TransferError(f"the owner refused: {answer.name.lower()}", Code.STALE)
            transfer.give_up(waiting, refusal)
        elif not self.transport and self._channel is not None:
            self.transport = self._channel.label
            self._parts.observer.link_opened(self.transport)
        transfer.portion_ended()
        self._forget_if_over(transfer)
        self._ask_on()

    def _forget_if_over(self, transfer: Transfer) -> None:
        if transfer.over:
            self._transfers.discard(transfer)

    def _ended_well(self, good: bool) -> None:
        if not good:
            self.fence()


def _answer(frame: bytes | bytearray, number: int) -> wire.Answer:
    kind, body = wire.parse_frame(bytes(frame))
    verdict = wire.parse_verdict(body)
    if kind is not wire.Kind.VERDICT or verdict.number != number:
        raise wire.FrameError("verdict of another ask")
    return verdict.answer
