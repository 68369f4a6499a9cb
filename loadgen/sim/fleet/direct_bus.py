"""The message server of a performance run: objects instead of bytes, one constant delay, no losses.

Answers always come, so questions have no timers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from loadgen.sim.bus import Answer, Bus, Handler, Interest, Respond, Silence
from loadgen.sim.process import Process
from loadgen.sim.scene import Scene
from shared.bus.headers import Headers
from shared.wire.codec import Message

HOP_S: Final = 0.0002
"""From one process to another by way of the server, one way."""
_Result = TypeVar("_Result")


def _mute(_: Message) -> None:
    """Nobody asked."""


class DirectBus(Bus):
    """The same subjects and interests; who listens to a subject is looked for once."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._found: dict[str, list[Interest]] = {}

    def subscribe(self, process: Process, subject: str, handler: Handler) -> None:
        super().subscribe(process, subject, handler)
        self._found.clear()

    def unsubscribe(self, process: Process, *wanted: str) -> None:
        super().unsubscribe(process, *wanted)
        self._found.clear()

    def publish(self, process: Process, subject: str, message: Message, headers: Headers) -> bool:
        self._pass(subject, message, headers, _mute)
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
        heap = self._scene.heap

        def respond(reply: Message) -> None:
            heap.after(HOP_S, process.guarded(partial(done, reply)))

        if not self._pass(subject, message, headers, respond):
            heap.after(HOP_S, process.guarded(partial(done, Silence.NO_RESPONDER)))

    def exchange(
        self,
        process: Process,
        work: Callable[[], _Result],
        timeout_s: float,
        done: Callable[[_Result | Silence], None],
    ) -> None:
        self._scene.heap.after(2 * HOP_S, process.guarded(lambda: done(work())))

    def _pass(self, subject: str, message: Message, headers: Headers, respond: Respond) -> bool:
        interests = self._found.get(subject)
        if interests is None:
            interests = self._found[subject] = self._interested(subject)
        heap = self._scene.heap
        for interest in interests:
            call = partial(interest.handler, message, headers, respond)
            heap.after(HOP_S, partial(interest.process.enter, call))
        return bool(interests)
