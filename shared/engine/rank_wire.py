"""What rank 0 and its followers tell each other: JSON behind a length, over a socket pair.

    4 bytes: length | JSON        step: [[tokens, start, page table, whether it draws], …]
                                  recording: {"record": most sequences}
The follower needs no sampling parameters: only rank 0 draws.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from shared.engine.batch import Draw, StepItem
from shared.errors import EngineError
from shared.ids import PageId

_MAX_BYTES: Final = 256 << 20
_RECORD: Final = "record"
_DRAWS: Final = Draw(temperature=0.0, top_p=1.0, seed=0, position=0)


@dataclass(frozen=True, slots=True)
class RankOrder:
    """How a follower starts: everything but its sockets and its page memory."""

    model_path: str
    dtype: str
    pages: int
    block_tokens: int
    threads: int
    weights: str
    rank: int
    size: int
    meeting_file: str
    device: str


class RankLink:
    """One end of the socket pair. Raises EngineError when the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: object) -> None:
        content = orjson.dumps(message)
        try:
            self._end.sendall(len(content).to_bytes(4, "little") + content)
        except OSError as error:
            raise EngineError("the other end of a rank's socket is gone") from error

    def receive(self) -> object:
        size = int.from_bytes(self._exactly(4), "little")
        if size > _MAX_BYTES:
            raise EngineError("a rank's message is too long")
        message: object = orjson.loads(self._exactly(size))
        return message

    def close(self) -> None:
        self._end.close()

    def wait_for_end(self) -> None:
        """Returns once the other end is gone, whatever it sent before."""
        poll = select.poll()
        poll.register(self._end, select.POLLRDHUP)
        poll.poll()

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                part = self._end.recv(min(size, 1 << 20))
            except OSError as error:
                raise EngineError("the other end of a rank's socket is silent") from error
            if not part:
                raise EngineError("the other end of a rank's socket is gone")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def pack_step(items: Sequence[StepItem]) -> list[object]:
    return [[item.tokens, item.start, item.page_table, item.draw is not None] for item in items]


def pack_recording(most_sequences: int) -> dict[str, int]:
    return {_RECORD: most_sequences}


def unpack_recording(message: object) -> int | None:
    """How many sequences the largest recorded step has; None where the message is a step. Raises
    EngineError."""
    if not isinstance(message, dict):
        return None
    sequences = message.get(_RECORD)
    if not isinstance(sequences, int) or len(message) != 1:
        raise EngineError("a rank was sent something that is no recording")
    return sequences


def unpack_step(message: object) -> list[StepItem]:
    """Raises EngineError."""
    try:
        return [
            StepItem(tuple(tokens), start, tuple(map(PageId, table)), _DRAWS if draws else None)
            for tokens, start, table, draws in message  # type: ignore[attr-defined]
        ]
    except (TypeError, ValueError) as error:
        raise EngineError("a rank was sent something that is no step") from error
