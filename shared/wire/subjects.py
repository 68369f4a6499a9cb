"""Every subject of the control plane, and which message types may travel on it.

The subject tree is also the permission tree: each role's credential is derived from `GRANTS`.
"""

from __future__ import annotations

from typing import Final

from shared.ids import WorkerId

PLACE: Final = "baton.scheduler.place"
PLACEMENT_ENDED: Final = "baton.scheduler.ended"
REGISTRATIONS: Final = "baton.scheduler.register.*.*"
HEARTBEATS: Final = "baton.heartbeat.*.*"
BLOCK_EVENTS: Final = "baton.blocks.*.*"
LOST: Final = "baton.cluster.lost"
"""Broadcast by the scheduler: WorkerLost."""
SERVING: Final = "baton.cluster.serving"
"""Broadcast by the leading scheduler: ClusterStatus."""

CLUSTER: Final = "baton.scheduler.cluster"
"""Request to the leading scheduler: AskCluster -> ClusterSeen."""
CLIENT_GONE: Final = "baton.server.client_gone"
"""Said by the message server itself, in its own words: a client's connection ended."""

EPOCHS: Final = "baton-epochs"
BUCKETS: Final = (EPOCHS,)
"""JetStream key-value buckets that the scheduler alone may make, read and write."""


def register(role: str, worker: WorkerId) -> str:
    """Request: RegisterWorker -> Registered. The subject says who asks, so that a credential can
    take names of its own role only."""
    return f"baton.scheduler.register.{role}.{worker}"


def heartbeat(role: str, worker: WorkerId) -> str:
    return f"baton.heartbeat.{role}.{worker}"


def block_events(role: str, worker: WorkerId) -> str:
    return f"baton.blocks.{role}.{worker}"


def snapshot(role: str, worker: WorkerId) -> str:
    """Request: SnapshotRequest -> BlockSnapshot."""
    return f"baton.snapshot.{role}.{worker}"


def switch(role: str, worker: WorkerId) -> str:
    """Request of the leading scheduler: SwitchRole -> Acknowledged | Refused."""
    return f"baton.switch.{role}.{worker}"


def figures(role: str, worker: WorkerId) -> str:
    """Request: AskFigures -> Figures."""
    return f"baton.figures.{role}.{worker}"


def job(role: str, worker: WorkerId) -> str:
    """Request: DecodeJob | PrefillJob | CancelRequest | ResendTokens -> Accepted | Refused | ..."""
    return f"baton.{role}.{worker}.job"


def pages(worker: WorkerId) -> str:
    """Request to a decode worker: PagesReady | PrefillFailed -> Acknowledged | Refused."""
    return f"baton.decode.{worker}.pages"


def leases(worker: WorkerId) -> str:
    """Request to a prefill worker: RenewLeases | ReleaseLease -> LeasesRenewed | Acknowledged."""
    return f"baton.prefill.{worker}.leases"


def lookups(worker: WorkerId) -> str:
    """Request of a prefill worker to another one: LookupBlocks | ReleaseBlocks -> BlocksFound |
    Acknowledged | Refused."""
    return f"baton.prefill.{worker}.blocks"


def tokens(gateway: WorkerId) -> str:
    """Publish to a gateway: TokenChunk | JobFailed."""
    return f"baton.gateway.{gateway}.tokens"


def pool(worker: WorkerId) -> str:
    """Request to a pool node: OfferBlocks | LookupBlocks | ReleaseBlocks."""
    return f"baton.kvpool.{worker}.blocks"


GRANTS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "gateway": {
        "publish": (
            PLACE,
            PLACEMENT_ENDED,
            CLUSTER,
            "baton.figures.*.*",
            "baton.scheduler.register.gateway.*",
            "baton.heartbeat.gateway.*",
            "baton.prefill.*.job",
            "baton.decode.*.job",
        ),
        "subscribe": ("baton.gateway.*.tokens", "baton.figures.gateway.*", LOST, SERVING),
    },
    "scheduler": {
        "publish": (
            "baton.snapshot.*.*",
            "baton.switch.prefill.*",
            "baton.switch.decode.*",
            LOST,
            SERVING,
        ),
        "subscribe": (
            PLACE,
            PLACEMENT_ENDED,
            CLUSTER,
            REGISTRATIONS,
            HEARTBEATS,
            BLOCK_EVENTS,
            CLIENT_GONE,
            "baton.figures.scheduler.*",
        ),
    },
    "prefill": {
        "publish": (
            "baton.scheduler.register.prefill.*",
            "baton.heartbeat.prefill.*",
            "baton.blocks.prefill.*",
            "baton.decode.*.pages",
            "baton.gateway.*.tokens",
            "baton.kvpool.*.blocks",
            "baton.prefill.*.blocks",
        ),
        "subscribe": (
            "baton.prefill.*.job",
            "baton.prefill.*.leases",
            "baton.prefill.*.blocks",
            "baton.snapshot.prefill.*",
            "baton.figures.prefill.*",
            "baton.switch.prefill.*",
            LOST,
        ),
    },
    "decode": {
        "publish": (
            "baton.scheduler.register.decode.*",
            "baton.heartbeat.decode.*",
            "baton.blocks.decode.*",
            "baton.prefill.*.leases",
            "baton.gateway.*.tokens",
            "baton.kvpool.*.blocks",
        ),
        "subscribe": (
            "baton.decode.*.job",
            "baton.decode.*.pages",
            "baton.snapshot.decode.*",
            "baton.figures.decode.*",
            "baton.switch.decode.*",
            LOST,
        ),
    },
    "kvpool": {
        "publish": (
            "baton.scheduler.register.kvpool.*",
            "baton.heartbeat.kvpool.*",
            "baton.blocks.kvpool.*",
        ),
        "subscribe": (
            "baton.kvpool.*.blocks",
            "baton.snapshot.kvpool.*",
            "baton.figures.kvpool.*",
            LOST,
        ),
    },
}
"""Per role: subjects it may publish and subscribe, besides its own inbox `_INBOX_<role>.>`.
The scheduler alone also uses JetStream KV, for `BUCKETS`."""
