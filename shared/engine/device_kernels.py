"""What a GPU runs a model with: our kernels over one page memory, behind the engine's seams.

Loading Triton costs seconds and memory, so an engine on the CPU never imports this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import torch

from kernels.dispatch import Fusing, sample_tokens
from kernels.paged_attention.fusing import AttentionCosts
from kernels.paged_attention.launch import PAIRED_HEAD_DIM
from kernels.paged_attention.measure import measure_costs
from kernels.paged_attention.scratch import FusedScratch, for_device
from kernels.sampling.draw import INVALID
from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import Draw, StepItem
from shared.engine.chance import uniform
from shared.engine.device_attention import DeviceAttention
from shared.engine.device_operations import DeviceOperations
from shared.engine.paged_kv import PagedKv
from shared.engine.sampler import GREEDY_BELOW
from shared.engine.shaping import shape
from shared.errors import EngineError

_BELOW_ONE: Final = 1.0 - 2.0**-24
_PROGRAMS: Final = 2


class DeviceKernels:
    """One engine's. Use from its one thread and on one stream."""

    def __init__(
        self,
        kv: PagedKv,
        rules: AttentionRules,
        choice: Literal["auto", "always", "never"] = "auto",
    ) -> None:
        """`choice`: when prefill and decode attention of a step are fused; auto where the costs,
        measured now on the pages as they are, say that it pays."""
        self.operations = DeviceOperations(kv)
        self._kv = kv
        self._rules = rules
        self._fusing = Fusing(_scratch(kv.device), _costs(kv, rules, choice), choice)

    def plan(self, items: Sequence[StepItem]) -> DeviceAttention:
        """The attention of one step."""
        return DeviceAttention(self._kv, items, self._rules, self._fusing)

    def sample(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        """As `sampler.sample`, by one launch for all rows. Tokens are cumulated in the order of the
        vocabulary, so a narrowed draw may differ from the CPU's. Raises EngineError."""
        if not draws:
            return []
        shaped = shape(logits, draws)
        reals = [
            [0.0 if draw.temperature < GREEDY_BELOW else draw.temperature for draw in draws],
            [draw.top_p for draw in draws],
            [draw.min_p for draw in draws],
            [min(uniform(draw.seed, draw.position), _BELOW_ONE) for draw in draws],
        ]
        heat, top_p, min_p, chance = torch.tensor(reals, dtype=torch.float32).to(logits.device)
        top_k = torch.tensor([draw.top_k for draw in draws], dtype=torch.int32)
        top_k = top_k.to(logits.device)
        tokens: list[int] = sample_tokens(shaped, heat, top_k, top_p, min_p, chance).tolist()
        if INVALID in tokens:
            raise EngineError("logits are not finite")
        return tokens


def _scratch(device: torch.device) -> FusedScratch:
    """For all processors of a GPU; a few programs for the interpreter."""
    return for_device(device) if device.type == "cuda" else FusedScratch(device, _PROGRAMS)


def _costs(kv: PagedKv, rules: AttentionRules, choice: str) -> AttentionCosts | None:
    """Nothing to measure with on the CPU; float32 is never fused for speed, nor are heads of which
    an SM holds one program."""
    if choice != "auto" or kv.device.type != "cuda" or kv.dtype == torch.float32:
        return None
    if kv.layout.head_dim > PAIRED_HEAD_DIM:
        return None
    return measure_costs(kv.cells[:, 0], rules.heads, cap=rules.cap)
