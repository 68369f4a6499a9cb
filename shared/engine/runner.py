"""The torch engine: weights, pages and sampler of one model on one device."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from shared.checkpoint.checkpoint import Checkpoint
from shared.engine.attention import StepAttention, host_library, plan_attention
from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import StepItem, StepResult
from shared.engine.checking import Limits, check_items
from shared.engine.device_pages import DevicePages
from shared.engine.drawing import result_of
from shared.engine.graph_plan import graph_plan
from shared.engine.graphs import DecodeGraphs
from shared.engine.host_attention import Workspace
from shared.engine.host_pages import HostPages
from shared.engine.logprobs import score
from shared.engine.model import DecoderModel, step_inputs
from shared.engine.native.library import rounds
from shared.engine.native.operations import NativeOperations
from shared.engine.operations import Operations
from shared.engine.paged_kv import DTYPES, PagedKv
from shared.engine.sampler import sample
from shared.engine.sharded_pages import ShardedPages
from shared.engine.team import Alone, Team
from shared.engine.tuning import HostSetup, Tuned, tune
from shared.engine.weights import load_weights
from shared.errors import EngineError, StartupError
from shared.ids import PageId
from shared.kv.layout import PageLayout
from shared.wire.sampling import TokenLogprobs

if TYPE_CHECKING:
    from shared.engine.device_kernels import DeviceKernels


class TorchEngine:
    """Implements Engine for decoder-only checkpoints. Use from one thread at a time."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: DecoderModel,
        kv: PagedKv,
        pages: HostPages | DevicePages,
        tuned: Tuned,
        library: ctypes.CDLL | None = None,
        kernels: DeviceKernels | None = None,
    ) -> None:
        """`library` computes attention on the CPU; None: torch does. `kernels`: a GPU's, which
        also draw."""
        self._checkpoint = checkpoint
        self._model = model
        self._kv = kv
        self._pages = pages
        self._memory = ShardedPages(kv.layout, [pages])
        self._workspace = Workspace(kv.dtype)
        self._digest = checkpoint.digest
        spec = checkpoint.spec
        self._rules = AttentionRules.of(spec.shard(model.ranks))
        self._limits = Limits(spec.vocab, spec.context, pages.pages, kv.layout.block_tokens)
        self.tuned = tuned
        self._library = library
        self._kernels = kernels
        self._graphs: DecodeGraphs | None = None

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        device: str,
        layout: PageLayout,
        pages: int,
        setup: HostSetup,
        team: Team | None = None,
        pages_fd: int | None = None,
    ) -> TorchEngine:
        """Read the weights onto the device and allocate the pages; blocks for seconds. Sets the
        process's torch threads. `team`: the ranks that share the model, whose share `pages_fd` has
        the pages of. Raises StartupError, CheckpointError, EngineError."""
        place = _device(device)
        team = team or Alone()
        layout = layout.shard(team.size)
        rules = AttentionRules.of(checkpoint.spec.shard(team.size))
        by_kernels = setup.kernels or place.type == "cuda"
        dtype = DTYPES[layout.dtype]
        library = None if by_kernels else host_library(layout, rules, setup.weights)
        tuned = tune(checkpoint.tensors, dtype, library, setup)
        kept = tuned.weights if library else None
        try:
            placed = load_weights(
                checkpoint, place, dtype, team, kept, rounds(library, layout.dtype)
            )
            memory, view = _memory(pages, layout, place, pages_fd)
        except torch.OutOfMemoryError as error:
            raise StartupError(
                f"{device} has no room for the model and {pages} pages of "
                f"{layout.page_bytes} bytes; lower kv_pages"
            ) from error
        kv = PagedKv(view, layout)
        kernels = _kernels(kv, rules) if by_kernels else None
        operations: Operations | None = kernels.operations if kernels else None
        if library:
            operations = NativeOperations(library, kv)
        model = DecoderModel(checkpoint.spec, placed, kv, team, operations)
        return cls(checkpoint, model, kv, memory, tuned, library, kernels)

    def record_graphs(self, most_sequences: int) -> int:
        """Record decode steps of up to so many sequences, where the device has graphs; overwrites
        page 0. How many were recorded. Ranks of one model do so together. Raises EngineError."""
        self._enter()
        layout = self._kv.layout
        context = min(self.context_tokens, self._pages.pages * layout.block_tokens)
        plan = graph_plan(most_sequences, context, layout.block_tokens)
        graphs = DecodeGraphs.on_device(self._model, self._kv, self._rules, plan)
        if graphs is None:
            return 0
        try:
            graphs.record_all()
        except RuntimeError as error:
            raise EngineError(f"decode steps cannot be recorded: {error}") from error
        self._graphs = graphs
        return len(graphs.shapes)

    def forget_graphs(self) -> None:
        """Steps run as they are from now on. Recorded sums hold on to the group of their ranks."""
        self._graphs = None

    @property
    def matrix_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        return self._model.matrix_bytes

    @property
    def memory(self) -> ShardedPages:
        return self._memory

    @property
    def pages(self) -> HostPages | DevicePages:
        """This rank's piece of the memory."""
        return self._pages

    @property
    def vocab_size(self) -> int:
        return self._limits.vocab

    @property
    def context_tokens(self) -> int:
        return self._limits.context_tokens

    @property
    def model_digest(self) -> str:
        return self._digest

    @property
    def layout_digest(self) -> str:
        return self._kv.layout.digest

    def step(self, items: Sequence[StepItem]) -> StepResult:
        started = time.perf_counter()
        check_items(items, self._limits)
        if not items:
            return StepResult((), time.perf_counter() - started)
        self._enter()
        try:
            tokens, told = self._run(items)
        except RuntimeError as error:
            raise EngineError(f"engine step failed: {error}") from error
        return result_of(items, tokens, told, time.perf_counter() - started)

    def follow(self, items: Sequence[StepItem]) -> None:
        """This rank's share of a step that rank 0 runs and draws from. Raises EngineError."""
        check_items(items, self._limits)
        self._enter()
        try:
            with torch.inference_mode():
                self._computed(items)
            self._settle()
        except RuntimeError as error:
            raise EngineError(f"engine step failed: {error}") from error

    def logits(self, items: Sequence[StepItem]) -> torch.Tensor:
        """[drawing item, vocab] of a step, for those who compare them; draws nothing. Raises
        EngineError."""
        check_items(items, self._limits)
        self._enter()
        with torch.inference_mode():
            return self._logits(items)

    def checksums(self, pages: Sequence[PageId], parts: int | None = None) -> tuple[int, ...]:
        return self._memory.checksums(pages, parts or 1)

    def _enter(self) -> None:
        """Kernels are launched on the thread's current device, whatever that of their tensors."""
        if self._kv.device.type == "cuda":
            torch.cuda.set_device(self._kv.device)

    def _settle(self) -> None:
        """Peers read pages from outside this stream: they must be complete by the step's end."""
        if self._kv.device.type == "cuda":
            torch.cuda.current_stream(self._kv.device).synchronize()

    @torch.inference_mode()
    def _run(self, items: Sequence[StepItem]) -> tuple[list[int], list[TokenLogprobs | None]]:
        logits = self._computed(items)
        draws = [item.draw for item in items if item.draw is not None]
        tokens = (self._kernels.sample if self._kernels else sample)(logits, draws)
        told = score(logits, draws, tokens)
        self._settle()
        return tokens, told

    def _computed(self, items: Sequence[StepItem]) -> torch.Tensor:
        """By a recorded step where one holds it; all ranks find the same one, or none."""
        graphs = self._graphs
        recorded = None if graphs is None else graphs.logits(items)
        return self._logits(items) if recorded is None else recorded

    def _logits(self, items: Sequence[StepItem]) -> torch.Tensor:
        return self._model.forward(step_inputs(self._kv, items), self._planned(items))

    def _planned(self, items: Sequence[StepItem]) -> StepAttention:
        if self._kernels:
            return self._kernels.plan(items)
        return plan_attention(self._kv, items, self._rules, self._workspace, self._library)


def _kernels(kv: PagedKv, rules: AttentionRules) -> DeviceKernels:
    from shared.engine.device_kernels import DeviceKernels

    return DeviceKernels(kv, rules)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise StartupError(f"device {name!r} is not 'cpu', 'cuda' or 'cuda:N'") from error
    if device.type not in ("cpu", "cuda"):
        raise StartupError(f"device {name!r} is not 'cpu', 'cuda' or 'cuda:N'")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise StartupError("device 'cuda' was asked for, but torch sees no CUDA GPU")
        index = int(name.partition(":")[2] or torch.cuda.current_device())
        if index >= torch.cuda.device_count():
            raise StartupError(f"device {name!r}: torch sees {torch.cuda.device_count()} GPUs")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)  # What is measured and recorded at start runs there.
    return device


def _memory(
    pages: int, layout: PageLayout, device: torch.device, pages_fd: int | None
) -> tuple[HostPages | DevicePages, torch.Tensor]:
    if device.type == "cuda":
        on_device = DevicePages.allocated(pages, layout.page_bytes, device)
        return on_device, on_device.bytes
    on_host = HostPages(pages, layout.page_bytes, pages_fd)
    return on_host, torch.from_numpy(on_host.bytes)
