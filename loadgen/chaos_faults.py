"""The faults that a running cluster can be struck with, and how each is carried out and undone."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadgen.chaos_cluster import NATS, Cluster, strike


@dataclass(frozen=True, slots=True)
class Fault:
    """One signal to one process, and perhaps one more when its time is over."""

    name: str
    what: str
    role: str
    """A service, of which the busiest process is struck; or NATS."""
    first: signal.Signals
    then: signal.Signals | None = None

    @property
    def lasts(self) -> bool:
        return self.then is not None


def _faults() -> dict[str, Fault]:
    found = []
    for role in ("prefill", "decode", "scheduler", "kvpool"):
        found += [
            Fault(f"kill-{role}", f"SIGKILL one {role}", role, signal.SIGKILL),
            Fault(
                f"pause-{role}",
                f"SIGSTOP one {role}, SIGCONT after --fault-seconds",
                role,
                signal.SIGSTOP,
                signal.SIGCONT,
            ),
        ]
    for role in ("prefill", "decode"):
        found.append(Fault(f"drain-{role}", f"SIGTERM one {role}: it drains", role, signal.SIGTERM))
    found += [
        Fault("kill-nats", "SIGKILL the bus", NATS, signal.SIGKILL),
        Fault(
            "stop-nats",
            "SIGSTOP the bus, SIGCONT after --fault-seconds",
            NATS,
            signal.SIGSTOP,
            signal.SIGCONT,
        ),
    ]
    return {fault.name: fault for fault in found}


FAULTS: Final = _faults()


async def victim(cluster: Cluster, fault: Fault) -> str:
    """The process of the role that holds most right now."""
    if fault.role == NATS:
        return NATS
    held = await cluster.accounting()
    names = cluster.names(fault.role)
    if not names:
        return ""
    return max(names, key=lambda name: int(held.get(name, {}).get("requests") or 0))


async def carry_out(fault: Fault, run_dir: Path, name: str, seconds: float) -> None:
    """Strike; a fault that lasts is over when this returns, also when it is cancelled. Raises
    StartupError when the process is gone."""
    strike(run_dir, name, fault.first)
    if fault.then is None:
        return
    try:
        await asyncio.sleep(seconds)
    finally:
        strike(run_dir, name, fault.then)
