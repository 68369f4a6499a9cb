"""Frames of a one-sided link, all on its socket, beside Hello, Welcome, Ask and Verdict.

Grant    ask number u32 | address u64 | device u32     owner: the read is open, here is where
Done     ask number u32                                reader: everything has landed
Closed   ask number u32                                owner: the read was open until now
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from shared.dataplane.link_wire import FrameError

_GRANT: Final = struct.Struct(">IQI")
_NUMBER: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Grant:
    number: int
    address: int
    """Of the owner's first page, as its library knows it."""
    device: int

    def encode(self) -> bytes:
        return _GRANT.pack(self.number, self.address, self.device)


def parse_grant(body: bytes) -> Grant:
    return Grant(*_exactly(_GRANT, body))


def number(ask: int) -> bytes:
    """The body of a Done or a Closed."""
    return _NUMBER.pack(ask)


def parse_number(body: bytes) -> int:
    return _exactly(_NUMBER, body)[0]


def _exactly(layout: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) != layout.size:
        raise FrameError("frame has a wrong length")
    return layout.unpack(body)
