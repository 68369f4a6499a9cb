"""Which device each rank of a tensor-parallel worker computes on. Pure."""

from __future__ import annotations

from shared.errors import StartupError


def rank_devices(device: str, ranks: int, gpus: int) -> tuple[str, ...]:
    """The host's processors for all of them, or neighbouring GPUs, one a rank, from the one that is
    named ('cuda': from the first). `gpus`: how many there are. Raises StartupError."""
    if device == "cpu":
        return ("cpu",) * ranks
    kind, _, index = device.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise StartupError(f"device {device!r} is not 'cpu', 'cuda' or 'cuda:N'")
    first = int(index or 0)
    if first + ranks > gpus:
        raise StartupError(
            f"tensor_parallel {ranks} on {device!r} needs GPUs {first} to {first + ranks - 1}: "
            f"torch sees {gpus}"
        )
    return tuple(f"cuda:{first + rank}" for rank in range(ranks))
