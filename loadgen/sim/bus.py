"""The simulated message server: at most once, bytes only, and worse than NATS on bad days.

Every message is encoded by the wire codec at one end and decoded at the other, so only what can
travel travels. Owns connections, interest and open questions.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

import xxhash

from loadgen.sim.process import Process
from loadgen.sim.scene import Scene
from shared.bus.headers import Headers
from shared.wire import codec
from shared.wire.codec import Message

_Result = TypeVar("_Result")

_STORE: Final = 1
"""Stands for the content of exchanges with the store."""
_GONE: Final = 2
"""Stands for the content of the server's advisories."""
_RECONNECT_S: Final = 0.8


class Silence(StrEnum):
    """Why a question got no answer."""

    UNAVAILABLE = "unavailable"
    NO_RESPONDER = "no_responder"
    TIMEOUT = "timeout"


Answer = Message | Silence
Respond = Callable[[Message], None]
Handler = Callable[[Message, Headers, Respond], None]


@dataclass(frozen=True, slots=True, eq=False)
class Interest:
    """Of one process in a subject."""

    process: Process
    handler: Handler


@dataclass(slots=True, eq=False)
class _Question:
    """Open until the first answer, or its time is over."""

    asker: Process
    done: Callable[[Any], None] | None

    def resolve(self, answer: object) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(answer)


class Bus:
    """All subjects of one run."""

    def __init__(self, scene: Scene) -> None:
        self.up = True
        self._scene = scene
        self._era = 0
        self._chance = random.Random(f"bus {scene.case.seed}")
        self._exact: dict[str, list[Interest]] = defaultdict(list)
        self._watchers: list[tuple[Process, Callable[[str, str], None]]] = []
        self._not_before: dict[tuple[str, str], float] = {}

    # -- what a process may do -------------------------------------------------------------

    def subscribe(self, process: Process, subject: str, handler: Handler) -> None:
        """`subject` may end in '.*.*', which stands for any two words."""
        self._exact[subject].append(Interest(process, handler))

    def publish(self, process: Process, subject: str, message: Message, headers: Headers) -> bool:
        """Fire and forget. False: not connected, nothing was sent."""
        if not process.connected:
            return False
        self._send(process, subject, codec.encode(message), headers.encode(), None)
        return True

    def request(
        self,
        process: Process,
        subject: str,
        message: Message,
        headers: Headers,
        timeout_s: float,
        done: Callable[[Answer], None],
    ) -> None:
        """Ask; `done` hears the first answer or why there is none, never before this returns."""
        question = _Question(process, done)
        if not process.connected:
            process.soon(lambda: question.resolve(Silence.UNAVAILABLE))
            return
        if headers.deadline_s is None:
            headers = replace(headers, deadline_s=timeout_s)
        process.later(timeout_s, lambda: question.resolve(Silence.TIMEOUT))
        self._send(process, subject, codec.encode(message), headers.encode(), question)

    def exchange(
        self,
        process: Process,
        work: Callable[[], _Result],
        timeout_s: float,
        done: Callable[[_Result | Silence], None],
    ) -> None:
        """Have the server's store do something. Silence: it may have been done or not."""
        question = _Question(process, done)
        if not process.connected:
            process.soon(lambda: question.resolve(Silence.UNAVAILABLE))
            return
        process.later(timeout_s, lambda: question.resolve(Silence.TIMEOUT))

        def arrive() -> None:
            result = work()
            passed = process.guarded(lambda: question.resolve(result))
            self._hop(process.name, "down", _STORE, passed)

        self._hop(process.name, "up", _STORE, arrive)

    def unsubscribe(self, process: Process, *wanted: str) -> None:
        for subject in wanted:
            interests = self._exact[subject]
            interests[:] = [entry for entry in interests if entry.process is not process]

    # -- the server's life -----------------------------------------------------------------

    def outage(self) -> None:
        """All connections end; what was on its way is lost."""
        self.up = False
        self._era += 1
        for process in self._scene.processes.values():
            process.connected = False

    def restore(self) -> None:
        """Back; each client notices in its own time."""
        self.up = True
        for process in self._scene.processes.values():
            again = _reconnect(process, self)
            self._scene.heap.after(_RECONNECT_S * self._chance.random(), again)

    def watch(self, process: Process, gone: Callable[[str, str], None]) -> None:
        """Tell it the role and the name of each client that the server lost."""
        self._watchers.append((process, gone))

    def gone(self, process: Process) -> None:
        """The server noticed that a client is dead."""
        for watcher, told in self._watchers:
            tell = partial(told, process.role, process.name)
            self._hop(watcher.name, "down", _GONE, watcher.guarded(tell))
        self._watchers = [entry for entry in self._watchers if entry[0] is not process]
        for interests in self._exact.values():
            interests[:] = [entry for entry in interests if entry.process is not process]

    # -- hops ------------------------------------------------------------------------------

    def _send(
        self,
        process: Process,
        subject: str,
        payload: bytes,
        fields: dict[str, str],
        question: _Question | None,
    ) -> None:
        mark = self._scene.log.message(subject, payload)
        route = lambda: self._route(subject, payload, fields, question)  # noqa: E731
        self._hop(process.name, "up", mark, route)

    def _hop(self, host: str, way: str, mark: int, arrive: Callable[[], None]) -> None:
        """Each copy arrives on its own, if the server does not go down meanwhile."""
        era, heap = self._era, self._scene.heap

        def arrives() -> None:
            if self._era == era:
                arrive()

        for passage in self._scene.weather.passages(host, way, mark):
            when_s = heap.now_s + passage.delay_s
            if passage.in_order:
                when_s = max(when_s, self._not_before.get((host, way), 0.0))
                self._not_before[host, way] = when_s
            heap.at(when_s, arrives)

    def _route(
        self, subject: str, payload: bytes, fields: dict[str, str], question: _Question | None
    ) -> None:
        interests = self._interested(subject)
        if not interests and question is not None:
            mark = xxhash.xxh3_64_intdigest(payload)
            self._answer(question, mark, Silence.NO_RESPONDER)
        for interest in tuple(interests):
            self._deliver(interest, payload, fields, question)

    def _interested(self, subject: str) -> list[Interest]:
        return self._exact.get(subject) or self._exact.get(_pattern(subject)) or []

    def _deliver(
        self,
        interest: Interest,
        payload: bytes,
        fields: dict[str, str],
        question: _Question | None,
    ) -> None:
        process = interest.process

        def respond(reply: Message) -> None:
            if question is None or not process.alive or not process.connected:
                return
            answer = codec.encode(reply)
            mark = self._scene.log.message("reply", answer)
            passed = lambda: self._answer(question, mark, codec.decode(answer))  # noqa: E731
            self._hop(process.name, "up", mark, passed)

        def arrive() -> None:
            interest.handler(codec.decode(payload), Headers.decode(fields), respond)

        mark = xxhash.xxh3_64_intdigest(payload)
        self._hop(process.name, "down", mark, lambda: process.enter(arrive))

    def _answer(self, question: _Question, mark: int, answer: Answer) -> None:
        asker = question.asker
        arrive = asker.guarded(lambda: question.resolve(answer))
        self._hop(asker.name, "down", mark, arrive)


def _pattern(subject: str) -> str:
    head = subject.rsplit(".", 2)[0]
    return f"{head}.*.*"


def _reconnect(process: Process, bus: Bus) -> Callable[[], None]:
    def again() -> None:
        if process.alive and bus.up and not process.connected:
            process.connected = True
            process.soon(process.reconnected)

    return again
