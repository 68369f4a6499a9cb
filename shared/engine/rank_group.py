"""The ranks of one tensor-parallel model as a `Team`: sums and joins over torch.distributed, by
NCCL between GPUs and by gloo between processors.

Uses its own process group, not torch's global one, so a process may hold several models.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.nn.functional as functional
from torch._C import _distributed_c10d as c10d

from shared.errors import StartupError

_WAIT_S: Final = 60.0
"""A rank that others wait for longer than this is lost: all of them run when they meet."""


class RankGroup:
    """Implements `Team`. Every rank builds one over the same file; building waits for all."""

    def __init__(self, rank: int, size: int, meeting_file: str, device: str = "cpu") -> None:
        """`meeting_file`: a path in a folder that only this worker uses. `device`: this rank's, of
        the same kind for all; a GPU becomes the calling thread's own. Raises StartupError."""
        self.rank = rank
        self.size = size
        place = torch.device(device)
        try:
            if place.type == "cuda":
                torch.cuda.set_device(place)
            store = c10d.FileStore(meeting_file, size)
            store.set_timeout(timedelta(seconds=_WAIT_S))
            self._group = (
                _nccl(store, rank, size) if place.type == "cuda" else _gloo(store, rank, size)
            )
            # Reading the sum waits for all, also where a device works on its own time.
            self.sum_(torch.ones(1, device=place)).item()
        except RuntimeError as error:
            raise StartupError(f"tensor parallel rank {rank} cannot join: {error}") from error

    def sum_(self, partial: torch.Tensor) -> torch.Tensor:
        self._group.allreduce([partial]).wait()
        return partial

    def join(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        """Parts may differ by one column, as `torch.tensor_split` makes them."""
        short, long = divmod(columns, self.size)
        width = short + (long > 0)
        padded = functional.pad(part, (0, width - part.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        self._group.allgather([parts], [padded]).wait()
        kept = [one[:, : short + (rank < long)] for rank, one in enumerate(parts)]
        return torch.cat(kept, dim=1)


def collectives(kind: str) -> Callable[[c10d.FileStore, int, int], Any]:
    """What ranks on this kind of device add up with."""
    return _nccl if kind == "cuda" else _gloo


def _gloo(store: c10d.FileStore, rank: int, size: int) -> Any:
    """torch's type stubs know neither the options nor the collectives of this class."""
    options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=_WAIT_S)
    # The ranks of a worker share a host: their sums never leave the loopback interface.
    options._devices = [c10d.ProcessGroupGloo.create_device(interface="lo")]
    return c10d.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: c10d.FileStore, rank: int, size: int) -> Any:
    """The current device's. Its sums run on the device: to wait for one is to queue behind it."""
    made = getattr(c10d, "ProcessGroupNCCL", None)
    if made is None:
        raise RuntimeError("this build of torch has no NCCL")
    options = made.Options()
    options._timeout = timedelta(seconds=_WAIT_S)
    return made(store, rank, size, options)
