"""What this worker tells decode workers and gateways over the bus.

Announcements of pages are repeated until answered; tokens are sent once, since the gateway asks
again for what it misses.
"""

from __future__ import annotations

import contextlib
from typing import Final

from services.prefill.core import events as on
from services.prefill.core.actions import EmitTokens, FailJob, SendPages
from shared.bus.headers import Headers
from shared.errors import BusError, Code
from shared.runtime.retry import Sender
from shared.wire import subjects
from shared.wire.requests import Acknowledged, Refused

_PAGES_S: Final = 600.0
"""Longer than any request lives; the job's end stops the sending before."""
_NOTICE_S: Final = 10.0


class Courier:
    """Sends; knows no state but what it is handed."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._bus = sender.bus

    async def send_pages(self, wish: SendPages, headers: Headers) -> on.Event:
        """Repeat until decode answers; cancelled when the job ends."""
        ready, subject = wish.ready, subjects.pages(wish.decode.worker)
        key = (ready.request, ready.attempt, ready.chunk)
        try:
            reply = await self._sender.send(subject, ready, headers, _PAGES_S)
        except BusError as error:
            return on.PagesRefused(*key, error.code)
        match reply:
            case Acknowledged():
                return on.PagesAcknowledged(*key)
            case Refused(code=code):
                return on.PagesRefused(*key, code)
            case _:
                return on.PagesRefused(*key, Code.INTERNAL)

    async def emit(self, wish: EmitTokens, headers: Headers) -> None:
        """Raises BusError; then the gateway has to ask."""
        await self._bus.publish(subjects.tokens(wish.gateway), wish.chunk, headers)

    async def fail(self, wish: FailJob, headers: Headers) -> None:
        """Tell both legs. Neither depends on it: leases and stalls find out as well."""
        with contextlib.suppress(BusError):
            await self._bus.publish(subjects.tokens(wish.gateway), wish.failed, headers)
        subject = subjects.pages(wish.decode.worker)
        with contextlib.suppress(BusError):
            await self._sender.send(subject, wish.notice, headers, _NOTICE_S)
