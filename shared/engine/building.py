"""Builds the engine that a worker was configured for: the one place that knows all backends."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.geometry import page_layout
from shared.engine.batch import Engine
from shared.engine.hashchain import HashchainEngine
from shared.engine.paced import Pace, PacedEngine
from shared.errors import StartupError
from shared.kv.layout import PageLayout

if TYPE_CHECKING:
    from shared.engine.parallel import ParallelEngine
    from shared.engine.runner import TorchEngine

BACKENDS: Final = ("torch", "hashchain")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the torch engine computes; the defaults suit one process on a shared host."""

    threads: int = 0
    """torch's on the CPU; 0: half of the host's, shared out over the ranks."""
    weights: str = "auto"
    """How the CPU keeps the weights: as stored, dense in the dtype, or int8; auto is measured."""
    ranks: int = 1
    """Processes that the model is split over (tensor parallelism)."""
    graph_sequences: int = 0
    """On a GPU, decode steps of up to so many sequences are recorded as graphs."""
    pace: str = ""
    """Of the weightless engine: what its steps take at least (paced.py); empty: nothing."""


def build_engine(
    checkpoint: Checkpoint,
    device: str,
    dtype: str,
    pages: int,
    block_tokens: int,
    backend: str,
    options: EngineOptions | None = None,
) -> Engine:
    """Load the weights and allocate the pages; blocks for seconds. Raises StartupError,
    CheckpointError, EngineError."""
    options = options or EngineOptions()
    if backend not in BACKENDS:
        raise StartupError(f"engine {backend!r} is not one of {', '.join(BACKENDS)}")
    if backend != checkpoint.backend:
        raise StartupError(
            f"model {checkpoint.name!r} runs on engine {checkpoint.backend!r}, not {backend!r}"
        )
    if pages < 1 or block_tokens < 1:
        raise StartupError(f"{pages} pages of {block_tokens} tokens: both must be at least 1")
    if options.pace and backend != "hashchain":
        raise StartupError("pace is for engine hashchain only")
    layout = page_layout(checkpoint, dtype, block_tokens)
    if backend == "hashchain":
        if options.ranks > 1:
            raise StartupError("hashchain is never split: set tensor_parallel to 1")
        if options.pace:
            return PacedEngine(checkpoint, layout, pages, Pace.parse(options.pace))
        return HashchainEngine(checkpoint, layout, pages)
    engine: TorchEngine | ParallelEngine
    if options.ranks > 1:
        engine = _parallel(checkpoint, device, layout, pages, options)
    else:
        engine = _alone(checkpoint, device, layout, pages, options)
    engine.record_graphs(options.graph_sequences)
    return engine


def _alone(
    checkpoint: Checkpoint, device: str, layout: PageLayout, pages: int, options: EngineOptions
) -> TorchEngine:
    # A hashchain worker never pays for loading torch.
    from shared.engine.runner import TorchEngine
    from shared.engine.tuning import HostSetup

    setup = HostSetup(options.threads, options.weights)
    return TorchEngine.load(checkpoint, device, layout, pages, setup)


def engine_facts(engine: Engine) -> dict[str, object]:
    """What was chosen at start, for the log; nothing where nothing was to choose."""
    tuned = getattr(engine, "tuned", None)
    return {} if tuned is None else asdict(tuned)


def pool_layout(engine: Engine, ranks: int) -> str:
    """What a worker tells the pool about its pages. The pool stores pages of one rank: those of
    several are no pages of its own, so it neither has nor takes any."""
    return engine.layout_digest if ranks == 1 else f"{engine.layout_digest} in {ranks}"


def _parallel(
    checkpoint: Checkpoint, device: str, layout: PageLayout, pages: int, options: EngineOptions
) -> ParallelEngine:
    ranks = options.ranks
    from shared.engine.parallel import ParallelEngine
    from shared.engine.tuning import HostSetup

    fair = options.threads or max(1, len(os.sched_getaffinity(0)) // 2 // ranks)
    # Ranks that measured for themselves could choose differently.
    weights = "stored" if options.weights == "auto" else options.weights
    setup = HostSetup(fair, weights)
    return ParallelEngine.load(checkpoint, layout, pages, setup, ranks, device)


def poison(engine: Engine, token: int) -> None:
    """Arm the weightless engine's fault once its costs were measured (that computes any token).
    No effect on other engines, or for -1."""
    if isinstance(engine, HashchainEngine):
        engine.poison_token = token
