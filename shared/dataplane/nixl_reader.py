"""The reader's end of a one-sided link: asks, reads what was granted, and has it confirmed.

The owner takes no part while bytes move, so a portion counts only when the owner says afterwards
that its read was open all the time.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

from shared.dataplane import link_wire as wire
from shared.dataplane import nixl_wire
from shared.dataplane.flow import Portion, Turns
from shared.dataplane.link_address import PlaneAddress
from shared.dataplane.link_parts import PlaneParts, Start, long_way
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.nixl_agent import Mover, Piece
from shared.dataplane.transfer import LinkLost, Transfer
from shared.errors import Code, TransferError

TRANSPORT = "nixl"


@dataclass(frozen=True, slots=True)
class _Asked:
    transfer: Transfer
    portion: Portion


class ReaderLink:
    """Implements Link."""

    def __init__(self, address: PlaneAddress, parts: PlaneParts, agent: Mover) -> None:
        self._address = address
        self._parts = parts
        self._agent = agent
        self._turns: Turns[Transfer] = Turns(parts.budget, parts.window_bytes, self._ask_on)
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._reading: set[int] = set()
        self._transfers: set[Transfer] = set()
        self._stream: FrameStream | None = None
        self._peer: str | None = None
        self._settled = True
        self._incompatible = False
        self.closed = False
        self.transport = ""
        self.start: Start = long_way

    async def run(self, connect_timeout_s: float) -> None:
        try:
            async with asyncio.timeout(connect_timeout_s):
                stream = await self._connect()
            self._ask_on()
            while True:
                self._heard(*await stream.read())
        except (OSError, asyncio.IncompleteReadError, wire.FrameError, TransferError):
            pass  # TimeoutError is an OSError. Those who wait learn it from `fence`.
        finally:
            self.fence()

    def submit(self, transfer: Transfer) -> None:
        if self.closed:
            transfer.cut_off(LinkLost("the peer cannot be reached"))
            return
        self._transfers.add(transfer)
        self._turns.add(transfer.ticket, transfer, transfer.portions)
        self._ask_on()

    def give_up(self, transfer: Transfer) -> None:
        waiting = self._turns.drop(transfer.ticket, transfer)
        transfer.give_up(waiting, TransferError("the read was given up"))
        self._forget_if_over(transfer)

    def fence(self) -> bool:
        """Blocks for a moment while a read of this link is on its way."""
        if not self.closed:
            self.closed = True
            if self._stream is not None:
                self._stream.abort()
            if self._peer is not None:
                self._settled = self._agent.part(self._peer)
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
        hello = wire.Hello(wire.Lane.TCP, self._agent.metadata, self._parts.content)
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
        self._turns.slots = welcome.slots
        self._peer = await self._agent.meet(welcome.address)
        return stream

    def _loss(self, transfer: Transfer) -> TransferError:
        if self._incompatible:
            text = "the peer's pages are of another model or layout"
            return TransferError(text, Code.INCOMPATIBLE_WORKERS)
        if transfer.answered or not self._settled:
            return TransferError("the link ended in the middle", Code.WORKER_LOST, self._settled)
        return LinkLost("the link ended before the owner answered")

    # -- asking and reading --------------------------------------------------------------------

    def _ask_on(self) -> None:
        """Ask for what credit allows."""
        while self._peer is not None and self._stream is not None and not self.closed:
            turn = self._turns.next()
            if turn is None:
                return
            transfer, portion = turn
            number = next(self._numbers) % (1 << 32)
            self._asked[number] = _Asked(transfer, portion)
            left_s = transfer.limit_s - asyncio.get_running_loop().time()
            ask = wire.Ask(
                number=number,
                tag=wire.TAG_STEP,
                page_bytes=self._parts.memory.page_bytes,
                timeout_ms=max(1, min(round(left_s * 1000), wire.MAX_TIMEOUT_MS)),
                ticket=transfer.ticket,
                runs=tuple(wire.PageRun(run.source, run.generations) for run in portion.runs),
            )
            self._stream.post(wire.Kind.ASK, ask.encode())

    def _heard(self, kind: wire.Kind, body: bytes) -> None:
        match kind:
            case wire.Kind.GRANT:
                self._granted(nixl_wire.parse_grant(body))
            case wire.Kind.VERDICT:
                verdict = wire.parse_verdict(body)
                if verdict.answer is wire.Answer.ACCEPTED:
                    raise wire.FrameError("a read is accepted with a grant")
                self._end(verdict.number, f"the owner refused: {verdict.answer.name.lower()}")
            case wire.Kind.CLOSED:
                self._end(nixl_wire.parse_number(body), "")
            case _:
                raise wire.FrameError("frame is out of order")

    def _granted(self, grant: nixl_wire.Grant) -> None:
        asked = self._asked.get(grant.number)
        if asked is None or grant.number in self._reading or self._peer is None:
            raise wire.FrameError("grant of nothing that was asked")
        page_bytes, here = self._parts.memory.page_bytes, self._agent.region.address
        pieces = [
            Piece(
                here + run.target * page_bytes,
                grant.address + run.source * page_bytes,
                run.pages * page_bytes,
            )
            for run in asked.portion.runs
        ]
        asked.transfer.answered = True
        self._reading.add(grant.number)
        self._agent.read(self._peer, pieces, lambda good: self._landed(grant.number, good))

    def _landed(self, number: int, good: bool) -> None:
        self._reading.discard(number)
        if self.closed or self._stream is None:
            return
        if good:
            self._stream.post(wire.Kind.DONE, nixl_wire.number(number))
        else:
            self.fence()

    def _end(self, number: int, refusal: str) -> None:
        """The owner's last word on a portion. Empty: its pages are good."""
        asked = self._asked.pop(number, None)
        if asked is None or number in self._reading:
            raise wire.FrameError("answer to nothing that was asked")
        transfer = asked.transfer
        transfer.answered = True
        self._turns.ended(asked.portion)
        if refusal:
            waiting = self._turns.drop(transfer.ticket, transfer)
            transfer.give_up(waiting, TransferError(refusal, Code.STALE))
        elif not self.transport:
            self.transport = TRANSPORT
            self._parts.observer.link_opened(TRANSPORT)
        transfer.portion_ended()
        self._forget_if_over(transfer)
        self._ask_on()

    def _forget_if_over(self, transfer: Transfer) -> None:
        if transfer.over:
            self._transfers.discard(transfer)
