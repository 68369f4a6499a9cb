"""What can be varied, over which values, and how a value changes the fleet or the workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from loadgen import arrivals
from loadgen.sim.fleet.design import Design
from loadgen.workloads.prefixes import BLOCK_TOKENS, Family, families
from loadgen.workloads.request import Workload


@dataclass(frozen=True, slots=True)
class Scene:
    """One point: a fleet, and what is sent to it."""

    design: Design
    draw: Callable[[float], Workload]
    """The workload at a rate."""
    rate_per_s: float

    def workload(self) -> Workload:
        return self.draw(self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Axis:
    """`apply` gives the scene at one value; values in `unit`."""

    name: str
    unit: str
    text: str
    values: tuple[float, ...]
    apply: Callable[[Scene, float], Scene]


_OUTPUT: Final = 64
_USUAL_PROMPT: Final = 2_048
_GROUPS: Final = 24


def _bandwidth(scene: Scene, value: float) -> Scene:
    link = replace(scene.design.link, bytes_per_s=value * 1e9)
    return replace(scene, design=replace(scene.design, link=link))


def _load(scene: Scene, value: float) -> Scene:
    return replace(scene, rate_per_s=scene.rate_per_s * value)


def _context(scene: Scene, value: float) -> Scene:
    """As many prompt tokens a second at every length."""
    rate = scene.rate_per_s * _USUAL_PROMPT / value
    return replace(scene, draw=_prompts(scene, int(value), 0.0), rate_per_s=rate)


def _sharing(scene: Scene, value: float) -> Scene:
    return replace(scene, draw=_prompts(scene, _USUAL_PROMPT, value))


def _block(scene: Scene, value: float) -> Scene:
    size = int(value)
    chunk = max(scene.design.chunk_tokens, size)
    return replace(scene, design=replace(scene.design, block_tokens=size, chunk_tokens=chunk))


def _pool(scene: Scene, value: float) -> Scene:
    """Devices hold so little that what is shared does not fit."""
    tokens = int(value * 1_000)
    small = max(16_000, 8 * scene.design.block_tokens)
    design = replace(scene.design, kvpools=1 if tokens else 0, kvpool_tokens=tokens)
    if design.prefills:
        design = replace(design, prefill_kv_tokens=small)
    return replace(scene, design=design, draw=_prompts(scene, _USUAL_PROMPT, 0.75))


def _chunk(scene: Scene, value: float) -> Scene:
    size = int(value)
    return replace(scene, design=replace(scene.design, chunk_tokens=size, step_tokens=size))


def _prompts(scene: Scene, prompt: int, share: float) -> Callable[[float], Workload]:
    """As many requests as the scene's own workload, of one length, a share of it common."""
    count = len(scene.workload())
    shared = round(prompt * share) // BLOCK_TOKENS * BLOCK_TOKENS
    family = Family(_GROUPS, shared, max(1, prompt - shared), _OUTPUT)

    def draw(rate_per_s: float) -> Workload:
        times = arrivals.poisson(rate_per_s, count, seed=1)
        return families(f"{prompt} in, {share:.0%} shared", family, times, seed=1)

    return draw


AXES: Final = {
    axis.name: axis
    for axis in (
        Axis(
            "bandwidth",
            "GB/s",
            "of each worker's card",
            (0.25, 0.5, 1, 2, 5, 12.5, 25, 50),
            _bandwidth,
        ),
        Axis(
            "load",
            "x rate",
            "queue load: the rate, times",
            (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2),
            _load,
        ),
        Axis(
            "context",
            "tokens",
            "prompt length, the rate falls as it grows",
            (256, 512, 1_024, 2_048, 4_096, 8_192),
            _context,
        ),
        Axis(
            "sharing",
            "share",
            "of a prompt that others have too",
            (0, 0.25, 0.5, 0.75, 0.9),
            _sharing,
        ),
        Axis("block", "tokens", "in one block of KV cache", (16, 32, 64, 128, 256), _block),
        Axis("pool", "k tokens", "in the pool beside small devices", (0, 16, 32, 64, 128), _pool),
        Axis("chunk", "tokens", "budget of one step", (128, 256, 512, 1_024, 2_048, 4_096), _chunk),
    )
}


def rivals(design: Design) -> dict[str, Design]:
    """The same GPUs as colocated workers with chunks, with every request handed over, and under
    Baton's own choice."""
    workers = max(1, design.devices // design.decode.devices)
    colocated = replace(design, prefills=0, decodes=workers, route="colocated")
    return {
        "colocated": colocated,
        "P/D always": replace(design, route="disaggregated"),
        "baton": replace(design, route="auto", split="baton_cost"),
    }
