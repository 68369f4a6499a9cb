"""One client process's requests: sent when they are due, whatever the server does meanwhile.

Open loop: the schedule is absolute and fixed before the start. Closed loop: a user's next request
is due when its last one has ended and it has thought. Follow-ups (turns, tool calls) are due so
long after the end of what they follow.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from loadgen.events import EventReader
from loadgen.load.envelope import Envelope
from loadgen.load.exchange import Exchange, Heard, connect
from loadgen.load.payloads import Ids, Messages, Prompts, Said, body_prompt
from loadgen.load.plan import Asking, Pace, Share
from loadgen.load.sink import RowSink
from loadgen.load.sockets import Sockets
from loadgen.load.wishes import wishes_of
from loadgen.records import Row
from loadgen.workloads.request import Workload


class Sender:
    """`run` returns when every request of this process's share has ended or was cut."""

    def __init__(
        self,
        workload: Workload,
        prompts: Prompts,
        asking: Asking,
        pace: Pace,
        share: Share,
        sockets: Sockets,
        sink: RowSink,
    ) -> None:
        self._workload = workload
        self._prompts = prompts
        self._asking = asking
        self._pace = pace
        self._share = share
        self._sockets = sockets
        self._sink = sink
        self._envelope = Envelope(asking, sockets.address)
        self._sessions = asking.sessions
        self._children = _children(workload)
        self._root_of = _roots(workload) if self._children else {}
        self._open: dict[int, int] = {}
        first_s, end_s = pace.slot
        roots = [
            number
            for number, request in enumerate(workload.requests)
            if request.after is None and first_s <= request.at_s < end_s
        ]
        self._roots = roots[share.index :: share.of]
        self._cap = _share_of_cap(pace.cap, share)
        self._said: dict[int, Said] = {}
        self._due: dict[asyncio.TimerHandle, None] = {}
        self._waiting: deque[tuple[Row, bytes, Heard | None, float]] = deque()
        self._running: dict[Exchange, Heard | None] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self._stopped = asyncio.Event()
        self._waker: asyncio.Future[None] | None = None
        self._origin_s = 0.0
        self.sent = 0
        self.scheduled = 0
        self.capped = 0

    @property
    def running(self) -> int:
        return len(self._running)

    async def run(self, begin_s: float, origin_s: float) -> None:
        """`begin_s`: monotonic instant of the workload's 0; rows count from `origin_s`."""
        self._origin_s = origin_s
        offset_s = begin_s - origin_s
        if self._pace.closed:
            self._begin_users(offset_s)
        else:
            await self._keep_schedule(begin_s, offset_s)
        if not self._stopped.is_set():
            await self._until_quiet()
        self.cut("cut after the grace period")
        for task in tuple(self._connecting):
            task.cancel()

    def cut(self, reason: str) -> None:
        """Send nothing more, and give up what runs."""
        self._stopped.set()
        _wake(self._waker)
        for handle in self._due:
            handle.cancel()
        self._due.clear()
        while self._waiting:
            row = self._waiting.popleft()[0]
            row.outcome, row.reason = "incomplete", f"not sent: {reason}"
            self._sink.add(row)
        for exchange in tuple(self._running):
            exchange.give_up("incomplete", reason)
        self._note_quiet()

    # -- when ----------------------------------------------------------------------------------

    async def _keep_schedule(self, begin_s: float, offset_s: float) -> None:
        limit_s = self._pace.duration_s or float("inf")
        for number in self._roots:
            at_s = self._workload.requests[number].at_s
            if at_s >= limit_s or self._stopped.is_set():
                return
            at_s -= self._pace.slot[0]
            ready = self._prepare(number, offset_s + at_s, None)
            wait_s = begin_s + at_s - time.monotonic()
            # Even a late one lets the answers of others in.
            if wait_s > 0:
                await self._asleep(wait_s)
            elif self.scheduled % 8 == 0:
                await asyncio.sleep(0)
            if self._stopped.is_set():
                return
            self._launch(*ready)

    async def _asleep(self, seconds: float) -> None:
        """Until then, or until everything is stopped."""
        loop = asyncio.get_running_loop()
        self._waker = loop.create_future()
        handle = loop.call_later(seconds, _wake, self._waker)
        try:
            await self._waker
        finally:
            handle.cancel()

    def _begin_users(self, offset_s: float) -> None:
        self._roots.reverse()
        for _ in range(min(self._cap, len(self._roots))):
            self._next_of_user(offset_s)

    def _next_of_user(self, due_s: float) -> None:
        late = self._pace.duration_s and due_s >= self._pace.duration_s
        if self._roots and not late and not self._stopped.is_set():
            self._launch(*self._prepare(self._roots.pop(), due_s, None))

    def _later(self, due_s: float, number: int | None) -> None:
        """A follow-up, or (None) a user's next request, at an instant of the run."""
        loop = asyncio.get_running_loop()
        wait_s = max(0.0, self._origin_s + due_s - time.monotonic())

        def act() -> None:
            del self._due[handle]
            if number is None:
                self._next_of_user(due_s)
            else:
                self._launch(*self._prepare(number, due_s, self._before(number)))
            self._note_quiet()

        handle = loop.call_later(wait_s, act)
        self._due[handle] = None

    async def _until_quiet(self) -> None:
        self._note_quiet()
        grace_s = self._pace.grace_s or None
        if grace_s is not None and self._pace.closed:
            grace_s += self._pace.duration_s
        try:
            async with asyncio.timeout(grace_s):
                await self._quiet.wait()
        except TimeoutError:
            return

    def _note_quiet(self) -> None:
        if self._running or self._waiting or self._due:
            self._quiet.clear()
        else:
            self._quiet.set()

    # -- what ----------------------------------------------------------------------------------

    def _prepare(
        self, number: int, due_s: float, before: Said | None
    ) -> tuple[Row, bytes, Heard | None]:
        """The row and the bytes, before they are due."""
        request, chat = self._workload.requests[number], self._asking.chat
        row = Row(
            number=number,
            group=request.session if request.session is not None else number,
            intended_s=due_s,
            trace_id="",
            phase=self._share.phase,
            step=self._share.step,
            tenant=request.tenant,
            turn=0 if before is None else before.turn + 1,
            wanted_prompt_tokens=request.prompt_tokens,
            wanted_output_tokens=request.output_tokens,
        )
        wishes = wishes_of(request, self._sessions)
        prompt = body_prompt(self._prompts, number, chat, before)
        heard = None
        if number in self._children:
            heard = Heard()
            ids, said = prompt.get("prompt"), prompt.get("messages", [])
            self._remember(number, ids, said, row.turn)
        self.scheduled += 1
        return row, self._envelope.build(row, prompt, wishes), heard

    def _remember(self, number: int, ids: Ids | str | None, said: Messages, turn: int) -> None:
        kept = None if ids is None or isinstance(ids, str) else ids
        request = self._workload.requests[number]
        followers = len(self._children[number])
        self._said[number] = Said(request, kept, said, turn=turn, followers=followers)

    def _before(self, number: int) -> Said | None:
        """What a follow-up repeats; forgotten once the last one has taken it."""
        parent = self._workload.requests[number].after
        said = self._said.get(parent) if parent is not None else None
        if said is not None and parent is not None:
            if said.followers <= 1:
                del self._said[parent]
            else:
                self._said[parent] = said.taken()
        return said

    def _launch(self, row: Row, request: bytes, heard: Heard | None) -> None:
        if self._cap and not self._pace.closed and len(self._running) >= self._cap:
            self.capped += 1
            held_since_s = max(row.intended_s, self._now())
            self._waiting.append((row, request, heard, held_since_s))
            return
        self._send(row, request, heard)

    def _send(self, row: Row, request: bytes, heard: Heard | None) -> None:
        if self._pace.stall_s:
            time.sleep(self._pace.stall_s)
        gaps = self._sink.gaps.add if self._sink.counts_gaps(row) else None
        on_text = heard.texts.append if heard is not None and self._asking.chat else None
        on_ids = heard.ids.extend if heard is not None else None
        reader = EventReader(row, on_text, on_ids, gaps)
        exchange = Exchange(row, request, self._origin_s, reader, self._ended)
        self._running[exchange] = heard
        self.sent += 1
        connection = self._sockets.idle()
        if connection is not None:
            exchange.begin(connection, self._connect)
        else:
            self._connect(exchange)
        exchange.limit(self._asking.timeout_s, partial(exchange.give_up, "error", "timeout"))
        if self._pace.cancel_rate and self._draws_cancel(row.number):
            why = partial(exchange.give_up, "cancelled", "by the load generator")
            exchange.limit(self._pace.cancel_after_s, why)

    def _connect(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(
            connect(self._sockets, exchange), name=f"connect-{exchange.row.number}"
        )
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _ended(self, exchange: Exchange) -> None:
        """The one place where a request ends."""
        row, heard = exchange.row, self._running.pop(exchange)
        if row.output_tokens is None and row.chunks:
            row.output_tokens, row.counted = row.chunks, "chunks"
        self._sink.add(row)
        if not self._stopped.is_set():
            self._follow(row, heard)
            while self._waiting and len(self._running) < self._cap:
                waiting, request, its, since_s = self._waiting.popleft()
                waiting.held_s = self._now() - since_s
                self._send(waiting, request, its)
        self._note_quiet()

    def _follow(self, row: Row, heard: Heard | None) -> None:
        """A conversation or an agent whose request failed goes no further on that branch."""
        now_s, number = self._now(), row.number
        said = self._said.pop(number, None)
        followers: Sequence[int] = ()
        if said is not None and heard is not None and row.outcome == "ok":
            self._said[number] = said.answered(tuple(heard.ids), "".join(heard.texts))
            followers = self._children[number]
        for child in followers:
            self._later(now_s + self._workload.requests[child].at_s, child)
        root = self._root_of.get(number, number)
        still = self._open.pop(root, 1) - 1 + len(followers)
        if still:
            self._open[root] = still
        elif self._pace.closed:
            self._later(now_s + self._pace.think_s, None)

    def _draws_cancel(self, number: int) -> bool:
        chance = random.Random(f"cancel:{self._pace.seed}:{number}")
        return chance.random() < self._pace.cancel_rate

    def _now(self) -> float:
        return time.monotonic() - self._origin_s


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _children(workload: Workload) -> dict[int, Sequence[int]]:
    found: dict[int, list[int]] = {}
    for number, request in enumerate(workload.requests):
        if request.after is not None:
            found.setdefault(request.after, []).append(number)
    return dict(found)


def _roots(workload: Workload) -> dict[int, int]:
    """Of each follow-up, the request with which its session began."""
    found: dict[int, int] = {}
    for number, request in enumerate(workload.requests):
        if request.after is not None:
            found[number] = found.get(request.after, request.after)
    return found


def _share_of_cap(cap: int, share: Share) -> int:
    return cap // share.of + (share.index < cap % share.of)
