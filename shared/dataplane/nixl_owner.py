"""The owner's end of a one-sided link: grants reads by ticket, keeps their pages until told.

It cannot see or stop the bytes. What it can promise: a read that it confirms as closed was open
until then; when a read's time is over, the link ends instead, and the reader counts nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

from shared.dataplane import link_wire as wire
from shared.dataplane import nixl_wire
from shared.dataplane.link_parts import PlaneParts
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.nixl_agent import Mover
from shared.dataplane.nixl_reader import TRANSPORT
from shared.dataplane.observer import Cause
from shared.dataplane.ucx_owner import CAUSES, HELLO_S, SLOTS, named

_GRACE_S: Final = 2.0


class OwnerLink:
    """One accepted connection. Closes every read it opened, exactly once."""

    def __init__(self, stream: FrameStream, parts: PlaneParts, agent: Mover) -> None:
        self._stream = stream
        self._parts = parts
        self._agent = agent
        self._loop = asyncio.get_running_loop()
        self._reads: dict[int, tuple[int, wire.Ask, float, asyncio.TimerHandle]] = {}
        """By ask number: the guard's read, what was asked, since when, its end of time."""
        self._welcomed = False

    async def run(self) -> None:
        """Serve until the peer leaves or misbehaves."""
        observer = self._parts.observer
        try:
            async with asyncio.timeout(HELLO_S):
                await self._welcome()
            while self._welcomed:
                self._heard(*await self._stream.read())
        except wire.FrameError:
            observer.turned_away(Cause.MALFORMED)
        except TimeoutError:
            observer.turned_away(Cause.SILENT)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the peer left; nothing to count
        finally:
            self._stream.abort()
            for number in tuple(self._reads):
                observer.turned_away(Cause.LOST)
                self._close(number)

    async def _welcome(self) -> None:
        hello = wire.parse_hello(await self._stream.expect(wire.Kind.HELLO))
        if not hello.proven(self._parts.key):
            raise wire.FrameError("hello is not proven")
        if not wire.compatible(self._parts.content, hello.content):
            self._parts.observer.turned_away(Cause.INCOMPATIBLE)
            await self._stream.write(wire.Kind.REFUSAL, b"")
            await self._stream.finish()
            return
        welcome = wire.Welcome(SLOTS, self._agent.metadata).encode(self._parts.key)
        await self._stream.write(wire.Kind.WELCOME, welcome)
        self._welcomed = True

    def _heard(self, kind: wire.Kind, body: bytes) -> None:
        match kind:
            case wire.Kind.ASK:
                self._answer(wire.parse_ask(body))
            case wire.Kind.DONE:
                self._done(nixl_wire.parse_number(body))
            case _:
                raise wire.FrameError("frame is out of order")

    def _answer(self, ask: wire.Ask) -> None:
        """Check every number against our memory, then ask the guard."""
        memory = self._parts.memory
        if len(self._reads) >= SLOTS or ask.number in self._reads:
            raise wire.FrameError("more asks than slots")
        read: int | None = None
        answer = wire.Answer.REFUSED
        if ask.page_bytes != memory.page_bytes:
            answer = wire.Answer.PAGE_SIZE
        elif any(run.first + len(run.generations) > memory.pages for run in ask.runs):
            answer = wire.Answer.OUT_OF_RANGE
        else:
            read = self._parts.guard.open_read(ask.ticket, named(ask))
        if read is None:
            self._parts.observer.turned_away(CAUSES[answer])
            self._stream.post(wire.Kind.VERDICT, wire.Verdict(ask.number, answer).encode())
            return
        timer = self._loop.call_later(ask.timeout_ms / 1000 + _GRACE_S, self._stream.abort)
        self._reads[ask.number] = (read, ask, self._loop.time(), timer)
        here = self._agent.region
        grant = nixl_wire.Grant(ask.number, here.address, here.device)
        self._stream.post(wire.Kind.GRANT, grant.encode())

    def _done(self, number: int) -> None:
        if number not in self._reads:
            raise wire.FrameError("done with nothing that was granted")
        _, ask, started_s, _ = self._reads[number]
        self._close(number)
        size_bytes = ask.page_bytes * sum(len(run.generations) for run in ask.runs)
        self._parts.observer.served(TRANSPORT, size_bytes, self._loop.time() - started_s)
        self._stream.post(wire.Kind.CLOSED, nixl_wire.number(number))

    def _close(self, number: int) -> None:
        read, _, _, timer = self._reads.pop(number)
        timer.cancel()
        self._parts.guard.close_read(read)
