"""A rank's page memory on a GPU, mapped by rank 0: CUDA IPC handles as JSON.

The owner must outlive the mapping; rank 0 ends when a rank does.
"""

from __future__ import annotations

from typing import Final

import torch

from shared.engine.device_pages import DevicePages
from shared.errors import EngineError

Lent = dict[str, object]
_FIELDS: Final = (
    *("device", "handle", "size", "offset"),
    *("counter", "counter_offset", "event", "event_sync"),
)
"""Of torch's description of shared storage, in its order."""


def lend(pages: DevicePages) -> Lent:
    """What another process maps this memory with. Raises EngineError."""
    try:
        told = pages.bytes.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise EngineError(f"pages on a GPU cannot be shared: {error}") from error
    return pack(told)


def borrow(lent: object, pages: int, page_bytes: int) -> DevicePages:
    """Map the memory of another process on this host. Raises EngineError."""
    told = unpack(lent)
    try:
        storage = torch.UntypedStorage._new_shared_cuda(*told)
        memory = torch.empty(0, dtype=torch.uint8, device=storage.device)
        memory.set_(storage, 0, (pages, page_bytes), (page_bytes, 1))
    except RuntimeError as error:
        raise EngineError(f"a rank's pages cannot be mapped: {error}") from error
    return DevicePages(memory)


def pack(told: tuple[object, ...]) -> Lent:
    """Bytes as hexadecimal digits."""
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in zip(_FIELDS, told, strict=True)
    }


def unpack(lent: object) -> tuple[object, ...]:
    """The inverse. Raises EngineError."""
    if not isinstance(lent, dict) or set(lent) != set(_FIELDS):
        raise EngineError("a rank did not say where its pages are")
    try:
        values = (lent[name] for name in _FIELDS)
        return tuple(bytes.fromhex(one) if isinstance(one, str) else one for one in values)
    except ValueError as error:
        raise EngineError("a rank did not say where its pages are") from error
