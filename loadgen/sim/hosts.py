"""Which hosts a shape has, and which process runs on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from loadgen.sim.case import Shape
from loadgen.sim.decode_host import DecodeHost
from loadgen.sim.gateway_host import GatewayHost
from loadgen.sim.kvpool_host import KvPoolHost
from loadgen.sim.prefill_host import PrefillHost
from loadgen.sim.process import Process
from loadgen.sim.scene import Scene
from loadgen.sim.scheduler_host import SchedulerHost

_KINDS: Final[dict[str, Callable[[Scene, str, int], Process]]] = {
    "scheduler": SchedulerHost,
    "kvpool": KvPoolHost,
    "decode": DecodeHost,
    "prefill": PrefillHost,
    "gateway": GatewayHost,
}


def names(shape: Shape) -> list[str]:
    """All hosts, in the order in which they start."""
    counts = (shape.schedulers, shape.kvpools, shape.decodes, shape.prefills, shape.gateways)
    pairs = zip(_KINDS, counts, strict=True)
    return [f"{role}-{number}" for role, count in pairs for number in range(count)]


def build(scene: Scene, name: str, incarnation: int) -> Process:
    """A process for this host, not started."""
    return _KINDS[name.rsplit("-", 1)[0]](scene, name, incarnation)
