"""The ranks of one tensor-parallel model as a `Team`: sums and joins over torch.distributed.

Uses its own process group, not torch's global one, so a process may hold several models.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import torch
import torch.nn.functional as functional
from torch._C._distributed_c10d import FileStore, ProcessGroupGloo

from shared.errors import StartupError

_WAIT_S: Final = 60.0
"""A rank that others wait for longer than this is lost: all of them run when they meet."""


class RankGroup:
    """Implements `Team`. Every rank builds one over the same file; building waits for all."""

    def __init__(self, rank: int, size: int, meeting_file: str) -> None:
        """`meeting_file`: a path in a folder that only this worker uses. Raises StartupError."""
        self.rank = rank
        self.size = size
        try:
            store = FileStore(meeting_file, size)
            store.set_timeout(timedelta(seconds=_WAIT_S))
            self._group = _group(store, rank, size)
            self._group.barrier().wait()
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


def _group(store: FileStore, rank: int, size: int) -> Any:
    """torch's type stubs know neither the options nor the collectives of this class."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=_WAIT_S)
    # The ranks of a worker share a host: their sums never leave the loopback interface.
    options._devices = [ProcessGroupGloo.create_device(interface="lo")]
    return ProcessGroupGloo(store, rank, size, options)
