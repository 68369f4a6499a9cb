"""Builds the engine that a worker was configured for: the one place that knows all backends."""

from __future__ import annotations

from typing import Final

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.geometry import page_layout
from shared.engine.batch import Engine
from shared.engine.hashchain import HashchainEngine
from shared.errors import StartupError

BACKENDS: Final = ("torch", "hashchain")


def build_engine(
    checkpoint: Checkpoint,
    device: str,
    dtype: str,
    pages: int,
    block_tokens: int,
    backend: str,
    threads: int = 0,
) -> Engine:
    """Load the weights and allocate the pages; blocks for seconds. `threads` are torch's on the
    CPU, 0 for half of the host's. Raises StartupError, CheckpointError, EngineError."""
    if backend not in BACKENDS:
        raise StartupError(f"engine {backend!r} is not one of {', '.join(BACKENDS)}")
    if backend != checkpoint.backend:
        raise StartupError(
            f"model {checkpoint.name!r} runs on engine {checkpoint.backend!r}, not {backend!r}"
        )
    if pages < 1 or block_tokens < 1:
        raise StartupError(f"{pages} pages of {block_tokens} tokens: both must be at least 1")
    layout = page_layout(checkpoint, dtype, block_tokens)
    if backend == "hashchain":
        return HashchainEngine(checkpoint, layout, pages)
    # A hashchain worker never pays for loading torch.
    from shared.engine.runner import TorchEngine

    return TorchEngine.load(checkpoint, device, layout, pages, threads)


def poison(engine: Engine, token: int) -> None:
    """Arm the weightless engine's fault once its costs were measured (that computes any token).
    No effect on other engines, or for -1."""
    if isinstance(engine, HashchainEngine):
        engine.poison_token = token
