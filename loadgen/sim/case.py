"""One run, written down: the shape of the cluster, the requests and the faults. Values only.

A case is complete: the same case gives the same run, whatever becomes of the generator.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

PLANNED: Final = (
    "crash_gateway",
    "crash_scheduler",
    "crash_prefill",
    "crash_decode",
    "crash_kvpool",
    "pause",
    "cut_control",
    "cut_plane",
    "message_delay",
    "message_loss",
    "message_duplicate",
    "message_reorder",
    "page_late",
    "page_torn",
    "page_unsettled",
    "report_twice",
    "bit_flip_wire",
    "bit_flip_rest",
    "slow_link",
    "nats_outage",
    "wall_jump",
    "clock_drift",
    "engine_error",
    "client_gone",
)
"""Kinds of faults that a case may contain."""

BROUGHT_ABOUT: Final = (
    "pause_past_lease",
    "lease_expired",
    "read_after_lease",
    "read_of_reused_page",
    "arena_full",
    "eviction",
    "preemption",
    "stale_refused",
    "lead_taken_over",
)
"""What faults and tiny caches lead to; counted in the same table."""

KINDS: Final = (*PLANNED, *BROUGHT_ABOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many workers there are, and how small they are."""

    schedulers: int = 1
    gateways: int = 1
    prefills: int = 1
    decodes: int = 1
    kvpools: int = 1
    prefill_pages: int = 24
    decode_pages: int = 24
    kvpool_pages: int = 24
    kvpool_pull_pages: int = 4
    chunk_tokens: int = 8
    step_tokens: int = 12
    max_sequences: int = 8
    alone_tokens: int = 12
    forecast: bool = True
    recompute_tokens: int = 8192
    colocate_below_tokens: int = 6
    policy: str = ""
    """Placement policy; empty: the default one, with admission and split as they are live."""
    split: str = "always"
    """Under a named policy: when a request stays on decode."""
    admission: str = "none"
    """Under a named policy: which requests are refused at arrival, by these objectives."""
    ttft_slo_s: float = 1.0
    tpot_slo_s: float = 0.1
    lease_s: float = 3.0
    queue_limit: int = 16
    """Jobs that may wait at one worker."""
    reserve_wait_s: float = 0.5
    gateway_requests: int = 16
    gateway_tokens: int = 400
    """What one gateway takes in at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One client's request."""

    request: str
    at_s: float
    gateway: int
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 1
    stop: tuple[int, ...] = ()
    route: str = "auto"
    deadline_s: float = 8.0
    no_queue: bool = False
    priority: int = 0
    leaves_after: int | None = None
    """The client goes away once it has so many tokens."""
    leaves_at_s: float | None = None
    """The client goes away at this instant."""
    stops_after: int | None = None
    """A stop string matches once the client has so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong. Which fields count depends on the kind."""

    kind: str
    at_s: float = 0.0
    for_s: float = 0.0
    """A window, or the time until a crashed host is back."""
    host: str = ""
    """Empty: everybody."""
    way: str = ""
    """'up' or 'down': to or from the message server; or of pages, to read or to be read."""
    rate: float = 1.0
    """Share of messages, pages or steps that are hit."""
    amount: float = 0.0
    """Seconds, a factor, or a clock's rate."""
    event: int = 0
    """A crash at the n-th event of the host, instead of at an instant."""
    moment: str = ""
    """Of such a crash: 'before' the event, or 'after' it with 'none', 'half' or 'all' of its
    actions carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that a run depends on."""

    seed: int
    shape: Shape = field(default_factory=Shape)
    orders: tuple[Order, ...] = ()
    faults: tuple[Fault, ...] = ()
    fault_time_s: float = 6.0
    """Faults stop here at the latest."""


def dump(case: Case) -> str:
    """A case as text for a file; fields that have their usual value are left out."""
    usual: dict[str, Any] = {
        "shape": asdict(Shape()),
        "orders": asdict(Order(request="", at_s=-1, gateway=-1, prompt=(), max_tokens=-1)),
        "faults": asdict(Fault(kind="")),
    }
    fields = asdict(case)
    fields["shape"] = _unusual(fields["shape"], usual["shape"])
    for name in ("orders", "faults"):
        fields[name] = [_unusual(entry, usual[name]) for entry in fields[name]]
    return json.dumps(fields, indent=1)


def load(text: str) -> Case:
    """The reverse of `dump`."""
    fields = json.loads(text)
    orders = [
        Order(**{**entry, "prompt": tuple(entry["prompt"]), "stop": tuple(entry.get("stop", ()))})
        for entry in fields["orders"]
    ]
    return Case(
        seed=fields["seed"],
        shape=Shape(**fields["shape"]),
        orders=tuple(orders),
        faults=tuple(Fault(**entry) for entry in fields["faults"]),
        fault_time_s=fields["fault_time_s"],
    )


def _unusual(fields: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value != usual[name]}
