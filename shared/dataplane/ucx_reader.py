"""The reader's end of a link: asks the owner for portions of pages and receives them in place.

Receives are posted before the ask, so an answer costs one way only. Any number of reads share a
link, and what is wanted in one turn of the loop is asked for in one message. Knows nothing of
deadlines: the plane gives up by fencing the whole link.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from shared.dataplane import link_wire as wire
from shared.dataplane.flow import Portion, Turns
from shared.dataplane.link_address import PlaneAddress
from shared.dataplane.link_parts import PlaneParts, Start, long_way
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.observer import Cause
from shared.dataplane.region import Region
from shared.dataplane.transfer import LinkLost, Transfer
from shared.dataplane.ucx_channel import Channel
from shared.dataplane.ucx_direct import short_way
from shared.dataplane.ucx_library import UcxLibrary
from shared.dataplane.ucx_pump import Pump
from shared.errors import Code, TransferError

_TAG_ROOTS: Final = 1 << 42
_ACCEPTED: Final = int(wire.Answer.ACCEPTED)


class ReaderLink:
    """A link to one peer. `run` owns it from connect to close; `submit` may be called at once."""

    def __init__(
        self,
        address: PlaneAddress,
        lane: wire.Lane,
        parts: PlaneParts,
        library: UcxLibrary,
        pump: Pump,
        region: Region,
    ) -> None:
        self._address = address
        self._lane = lane
        self._parts = parts
        self._library = library
        self._pump = pump
        self._region = region
        self._turns: Turns[Transfer] = Turns(parts.budget, parts.window_bytes, self._ask_on)
        self._transfers: set[Transfer] = set()
        self._loop = asyncio.get_running_loop()
        self._stream: FrameStream | None = None
        self._channel: Channel | None = None
        self._open = False
        self._settled = True
        self._incompatible = False
        self.closed = False
        self.transport = ""
        """What the link really uses; empty until it moved its first pages."""
        self.start: Start = long_way

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
        portions = transfer.portions
        if len(portions) == 1 and self._open and self._turns.enter(portions[0]):
            self._ask((transfer, portions[0]))
        else:
            self._turns.add(transfer.ticket, transfer, portions)
            self._ask_on()

    def give_up(self, transfer: Transfer) -> None:
        """Nobody waits for it any more: ask for nothing more."""
        waiting = self._turns.drop(transfer.ticket, transfer)
        transfer.give_up(waiting, TransferError("the read was given up"))
        self._forget_if_over(transfer)

    def fence(self) -> bool:
        """End the link without awaiting. True: nothing lands in our pages through it any more."""
        if not self.closed:
            self.closed, self._open, self.start = True, False, long_way
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
        channel = Channel(self._library, self._lane, self._pump, self._region, self.fence)
        self._channel = channel
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
        # Nobody else can guess the tags of our receives.
        first_tag = (1 + secrets.randbelow(_TAG_ROOTS)) * wire.TAG_STEP
        channel.connect(welcome.address, first_tag)
        self._turns.slots = welcome.slots
        # UCX finishes a connection with the first message: let it be none that someone waits for.
        channel.posting().say(wire.ASK_TAG, wire.frame(wire.Kind.PING))
        return stream

    def _loss(self, transfer: Transfer) -> TransferError:
        if self._incompatible:
            text = "the peer's pages are of another model or layout"
            return TransferError(text, Code.INCOMPATIBLE_WORKERS)
        if transfer.answered or not self._settled:
            return TransferError("the link ended in the middle", Code.WORKER_LOST, self._settled)
        return LinkLost("the link ended before the owner answered")

    # -- asking ------------------------------------------------------------------------------

    def _landed(self, turn: tuple[Transfer, Portion], answer: int) -> None:
        """Every run of this portion has ended in the same way; below 0: the link is broken."""
        if answer < 0:
            self.fence()
        if self.closed:
            return
        transfer, portion = turn
        transfer.answered = True
        self._turns.ended(portion)
        if answer != _ACCEPTED:
            waiting = self._turns.drop(transfer.ticket, transfer)
            name = wire.Answer(answer).name.lower()
            transfer.give_up(waiting, TransferError(f"the owner refused: {name}", Code.STALE))
        elif not self.transport and self._channel is not None:
            self._moved_first(self._channel)
        transfer.portion_ended()
        if transfer.over:
            self._transfers.discard(transfer)
            self._pump.pause()
        if self._turns.waits:
            self._ask_on()

    def _moved_first(self, channel: Channel) -> None:
        """The link is known to work, and over which transport."""
        self.transport = channel.label
        self._parts.observer.link_opened(self.transport)
        self.start = short_way(
            self._library.compiled,
            channel,
            self._parts,
            self._turns,
            self._transfers,
            self._landed,
        )

    def _ask_on(self) -> None:
        """Ask for what credit allows."""
        while self._open and (turn := self._turns.next()) is not None:
            self._ask(turn)

    def _ask(self, turn: tuple[Transfer, Portion]) -> None:
        """Post the receives of a portion, and the ask that goes with them."""
        transfer, portion = turn
        left_ms = int((transfer.limit_s - self._loop.time()) * 1000) + 1
        timeout_ms = left_ms if 0 < left_ms < wire.MAX_TIMEOUT_MS else _clamped(left_ms)
        try:
            if self._channel is None:
                raise LinkLost("the link was never opened")
            exchange = self._channel.posting()
            exchange.ask(portion.runs, transfer.ticket, timeout_ms, self._landed, turn)
        except TransferError:
            self.fence()
        except Exception:  # noqa: BLE001 - our own pages are broken; the process lives on
            self._parts.observer.failed(Cause.INTERNAL)
            self.fence()  # part of the receives may be posted

    def _forget_if_over(self, transfer: Transfer) -> None:
        if transfer.over:
            self._transfers.discard(transfer)


def _clamped(timeout_ms: int) -> int:
    return max(1, min(timeout_ms, wire.MAX_TIMEOUT_MS))
