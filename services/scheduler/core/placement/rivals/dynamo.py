"""NVIDIA Dynamo's KV router: prefill tokens and decode blocks added up as if they were equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from services.scheduler.core.cluster import Worker
from services.scheduler.core.placement.option import Chance
from services.scheduler.core.placement.rivals.rule import Ranked
from services.scheduler.core.placement.rivals.simple import by_lot
from services.scheduler.core.placement.view import View


@dataclass(frozen=True, slots=True)
class DynamoSettings:
    """Its defaults; `decay` and `temperature` are off, a request weighs nothing by itself."""

    prefill_weight: float = 1.0
    device_credit: float = 1.0
    host_credit: float = 0.75
    temperature: float = 0.0
    decay: float = 0.0
    request_weight: float = 0.0


DEFAULTS: Final = DynamoSettings()


class DynamoCost:
    """Cost in blocks: s * max(active prefill + incoming - hits, 0) + decode blocks + new blocks.
    `lmetric`: the product of both loads instead of their sum."""

    def __init__(
        self, chance: Chance, settings: DynamoSettings = DEFAULTS, *, lmetric: bool = False
    ) -> None:
        self.name = "dynamo_lmetric" if lmetric else "dynamo_cost"
        self._chance = chance
        self._settings = settings
        self._lmetric = lmetric

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]:
        least = min(self._active(worker) for worker in workers)
        ranked = [self._judge(view, worker, least) for worker in workers]
        if self._settings.temperature <= 0.0:
            return by_lot(ranked, self._chance)
        return self._soften(ranked)

    def placed(self, view: View, worker: Worker) -> None:
        """Has no memory: the workers' charges are its predictions."""

    def cost(self, prefill: float, incoming: float, hits: float, decode: float) -> float:
        """All in blocks; `hits` with its credit."""
        adjusted = self._settings.prefill_weight * max(prefill + incoming - hits, 0.0)
        if self._lmetric:
            return adjusted * (decode + 1.0)
        return adjusted + decode + incoming

    def _active(self, worker: Worker) -> float:
        return worker.tokens() / worker.report.block_tokens

    def _judge(self, view: View, worker: Worker, least: float) -> Ranked:
        settings, active = self._settings, self._active(worker)
        incoming = view.ask.prompt_tokens / worker.report.block_tokens
        excess = (active - least) / max(1.0, incoming)
        credit = settings.device_credit / (1.0 + settings.decay * excess)
        hits = credit * view.cached(worker)
        value = self.cost(active, incoming, hits, float(worker.pages_used()))
        value += settings.request_weight * worker.requests()
        return Ranked(worker, value, f"cost {value:.1f} blocks, {hits:.0f} of them credited")

    def _soften(self, ranked: list[Ranked]) -> list[Ranked]:
        """Drawn with weights exp(-normalised cost / temperature)."""
        low = min(entry.value for entry in ranked)
        spread = max(entry.value for entry in ranked) - low
        heat = self._settings.temperature
        weights = [
            math.exp(-(entry.value - low) / spread / heat) if spread > 0 else 1.0
            for entry in ranked
        ]
        mark = self._chance.random() * sum(weights)
        chosen = ranked[-1]
        for entry, weight in zip(ranked, weights, strict=True):
            mark -= weight
            if mark <= 0:
                chosen = entry
                break
        rest = sorted((e for e in ranked if e is not chosen), key=lambda entry: entry.value)
        return [chosen, *rest]
