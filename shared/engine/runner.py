"""The torch engine: weights, pages and sampler of one model on one device."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import torch

from shared.checkpoint.checkpoint import Checkpoint
from shared.engine.attention import plan_attention
from shared.engine.batch import StepItem, StepResult
from shared.engine.checking import Limits, check_items
from shared.engine.device_pages import DevicePages
from shared.engine.host_attention import Workspace
from shared.engine.host_pages import HostPages
from shared.engine.model import LlamaModel, step_inputs
from shared.engine.paged_kv import DTYPES, PagedKv
from shared.engine.sampler import sample
from shared.engine.weights import load_weights
from shared.errors import EngineError, StartupError
from shared.ids import PageId
from shared.kv.layout import PageLayout


class TorchEngine:
    """Implements Engine for Llama-family checkpoints. Use from one thread at a time."""

    def __init__(
        self, checkpoint: Checkpoint, model: LlamaModel, kv: PagedKv, pages: HostPages | DevicePages
    ) -> None:
        self._checkpoint = checkpoint
        self._model = model
        self._kv = kv
        self._pages = pages
        self._workspace = Workspace(kv.dtype)
        self._digest = checkpoint.digest
        spec = checkpoint.spec
        self._limits = Limits(spec.vocab, spec.context, pages.pages, kv.layout.block_tokens)

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, device: str, layout: PageLayout, pages: int, threads: int
    ) -> TorchEngine:
        """Read the weights onto the device and allocate the pages; blocks for seconds. Sets the
        process's torch threads. Raises StartupError, CheckpointError, EngineError."""
        place = _device(device)
        torch.set_num_threads(threads or _fair_threads())
        try:
            weights = load_weights(checkpoint, place, DTYPES[layout.dtype])
            memory, view = _memory(pages, layout, place)
        except torch.OutOfMemoryError as error:
            raise StartupError(
                f"{device} has no room for the model and {pages} pages of "
                f"{layout.page_bytes} bytes; lower kv_pages"
            ) from error
        kv = PagedKv(view, layout)
        return cls(checkpoint, LlamaModel(checkpoint.spec, weights, kv), kv, memory)

    @property
    def memory(self) -> HostPages | DevicePages:
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
        try:
            drawn = iter(self._run(items))
        except RuntimeError as error:
            raise EngineError(f"engine step failed: {error}") from error
        tokens = tuple(None if item.draw is None else next(drawn) for item in items)
        return StepResult(tokens, time.perf_counter() - started)

    def checksums(self, pages: Sequence[PageId]) -> tuple[int, ...]:
        return self._pages.checksums(pages)

    @torch.inference_mode()
    def _run(self, items: Sequence[StepItem]) -> list[int]:
        attention = plan_attention(self._kv, items, self._checkpoint.spec.heads, self._workspace)
        logits = self._model.forward(step_inputs(self._kv, items), attention)
        tokens = sample(logits, [item.draw for item in items if item.draw is not None])
        if self._kv.device.type == "cuda":
            # Peers read pages from outside this stream: they must be complete by now.
            torch.cuda.current_stream(self._kv.device).synchronize()
        return tokens


def _fair_threads() -> int:
    """Half of the CPUs: a decode worker shares a host with a prefill worker, and torch's threads
    spin, so two that claim every CPU run several times slower than two that share."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


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
        return torch.device("cuda", index)
    return device


def _memory(
    pages: int, layout: PageLayout, device: torch.device
) -> tuple[HostPages | DevicePages, torch.Tensor]:
    if device.type == "cuda":
        on_device = DevicePages(pages, layout.page_bytes, device)
        return on_device, on_device.bytes
    on_host = HostPages(pages, layout.page_bytes)
    return on_host, torch.from_numpy(on_host.bytes)
