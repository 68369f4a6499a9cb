"""Decode steps as CUDA graphs: the launches of a step are recorded once and replayed as one.

At small batches the device computes faster than Python launches; a graph removes the launches.
A recorded step reads fixed tensors, so each replay first copies its step into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from shared.engine.attention import StepAttention
from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import StepItem
from shared.engine.graph_plan import GraphPlan, Shape, padded
from shared.engine.model import DecoderModel, StepInputs
from shared.engine.paged_kv import PagedKv
from shared.ids import PageId

_WARM_UPS: Final = 2
"""The first runs compile kernels and let libraries allocate, which must not be recorded."""

Replay = Callable[[], torch.Tensor]


class Recorder(Protocol):
    """Something that can repeat a piece of device work."""

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        """Run `work`, keep what it launched, and return what launches it again: on the same
        tensors, into the same result."""
        ...


class CudaRecorder:
    """Records with torch's CUDA graphs, all into one memory pool: one replay at a time. Sums of
    ranks are recorded with the rest: all ranks record the same work at the same time, and replay
    it so."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog asks for events from a thread of its own, which must not end the capture.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


class StaticAttention(StepAttention, Protocol):
    """Attention whose tables stay where they are."""

    def fill(self, items: Sequence[StepItem]) -> None:
        """Take over another step of the same shape."""
        ...


@dataclass(frozen=True, slots=True)
class _Recorded:
    inputs: StepInputs
    attention: StaticAttention
    replay: Replay


class DecodeGraphs:
    """The recorded decode steps of one engine. Use from its one thread."""

    def __init__(
        self,
        model: DecoderModel,
        kv: PagedKv,
        plan: GraphPlan,
        recorder: Recorder,
        attention_of: Callable[[Shape], StaticAttention],
    ) -> None:
        self._model = model
        self._kv = kv
        self._plan = plan
        self._recorder = recorder
        self._attention_of = attention_of
        self._recorded: dict[Shape, _Recorded] = {}

    @classmethod
    def on_device(
        cls, model: DecoderModel, kv: PagedKv, rules: AttentionRules, plan: GraphPlan
    ) -> DecodeGraphs | None:
        """Graphs for a CUDA device; None on the CPU, which has no launches to save."""
        if kv.device.type != "cuda" or not plan.items:
            return None
        from shared.engine.device_attention import DeviceStaticAttention

        recorder = CudaRecorder(kv.device)
        return cls(model, kv, plan, recorder, lambda at: DeviceStaticAttention(kv, rules, at))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """What is recorded."""
        return tuple(self._recorded)

    @torch.inference_mode()
    def record_all(self) -> None:
        """Record every shape of the plan. Overwrites page 0, so only before any page is in use."""
        for shape in self._plan.shapes():
            self._recorded[shape] = self._record(shape)

    @torch.inference_mode()
    def logits(self, items: Sequence[StepItem]) -> torch.Tensor | None:
        """[item, vocab] float32 of a decode step, valid until the next call; None when no graph
        holds it and it must run as it is."""
        shape = self._plan.shape_of(items)
        recorded = None if shape is None else self._recorded.get(shape)
        if shape is None or recorded is None:
            return None
        self._fill(recorded.inputs, recorded.attention, padded(items, shape))
        return recorded.replay()[: len(items)]

    def _record(self, shape: Shape) -> _Recorded:
        first = StepItem((0,), 0, (PageId(0),), None)
        device, count = self._kv.device, shape.items
        inputs = StepInputs(
            tokens=torch.zeros(count, dtype=torch.int64, device=device),
            positions=torch.zeros(count, dtype=torch.int64, device=device),
            new_rows=torch.zeros(count * self._kv.layer_strips, dtype=torch.int64, device=device),
            drawn_rows=torch.arange(count, device=device),
        )
        attention = self._attention_of(shape)
        self._fill(inputs, attention, [first] * count)
        replay = self._recorder.record(lambda: self._model.forward(inputs, attention))
        return _Recorded(inputs, attention, replay)

    def _fill(
        self, inputs: StepInputs, attention: StaticAttention, items: Sequence[StepItem]
    ) -> None:
        tokens = torch.tensor([item.tokens[0] for item in items])
        inputs.tokens.copy_(tokens, non_blocking=True)
        inputs.positions.copy_(torch.tensor([item.start for item in items]), non_blocking=True)
        inputs.new_rows.copy_(self._kv.new_rows(items), non_blocking=True)
        attention.fill(items)
