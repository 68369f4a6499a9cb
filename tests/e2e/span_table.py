"""The table of spans and attributes of the interface page (3.1), for the trace of one request that
was handed over with hints, blocks from the pool and everything else that a span may tell of.
"""

from __future__ import annotations

from typing import Any, Final

_IDENTITY: Final = ("baton.worker", "baton.epoch", "baton.attempt")
_HOP: Final = ("messaging.system", "messaging.destination.name", "messaging.operation.type")
_TRANSFER: Final = tuple(
    f"baton.transfer.{name}"
    for name in (
        "peer", "transport", "pages", "runs", "bytes_raw", "bytes_wire", "bytes_per_s",
        "exposed_s", "retries",
    )
)  # fmt: skip
_ROOT: Final = (
    *(f"gen_ai.{name}" for name in ("operation.name", "provider.name", "conversation.id")),
    *(
        f"gen_ai.request.{name}"
        for name in (
            "model", "max_tokens", "temperature", "top_p", "top_k", "seed", "stream",
            "choice.count",
        )
    ),
    *(
        f"gen_ai.response.{name}"
        for name in ("id", "model", "finish_reasons", "time_to_first_chunk")
    ),
    *(
        f"gen_ai.usage.{name}"
        for name in (
            "input_tokens", "output_tokens", "cache_read.input_tokens", "cache_write.input_tokens",
        )
    ),
    "server.address",
    *(f"baton.{name}" for name in ("request.id", "client_request_id", "tenant", "route")),
    "baton.attempts", "baton.hint.affinity_key", "baton.run",
)  # fmt: skip

TABLE: Final[dict[str, tuple[str, ...]]] = {
    "chat hashchain": _ROOT,
    "gateway.parse": (),
    "gateway.render": tuple(
        f"baton.render.{name}" for name in ("template", "tokens", "blocks", "cache_hit")
    ),
    "gateway.admit": tuple(f"baton.admit.{name}" for name in ("position", "reason", "estimate_s")),
    "gateway.attempt": ("baton.attempt",),
    "gateway.send": _HOP,
    "gateway.stream": tuple(
        f"baton.stream.{name}" for name in ("events", "bytes", "blocked_s", "stop_match")
    ),
    "scheduler.place": (
        *_HOP,
        *(
            f"baton.place.{name}"
            for name in (
                "candidates", "winner", "runner_up", "margin", "route_reason", "estimate_ttft_s",
                "index_age_s", "leader_epoch",
            )
        ),
        *(f"baton.place.reuse.{tier}_tokens" for tier in ("device", "host", "disk", "peer")),
    ),
    "prefill.job": (*_IDENTITY, *_HOP),
    "decode.job": (*_IDENTITY, *_HOP),
    "prefill.queue": (
        *_IDENTITY, "baton.queue.depth", "baton.queue.tokens_ahead", "baton.pages.reserved",
        "baton.pages.free",
    ),
    "decode.reserve": (*_IDENTITY, "baton.pages.reserved", "baton.pages.free"),
    "decode.queue": (
        *_IDENTITY, "baton.queue.depth", "baton.queue.tokens_ahead", "baton.batch.sequences",
        "baton.batch.tokens",
    ),
    "decode.generate": (
        *_IDENTITY, "baton.batch.sequences", "baton.stall_s", "baton.preemptions",
    ),
    "prefill.chunk": tuple(
        f"baton.chunk.{name}" for name in ("index", "tokens", "reused_tokens", "budget")
    ),
    "prefill.seal": ("baton.seal.pages", "baton.seal.lease_s"),
    "prefill.first_token": (),
    "transfer.pull": _TRANSFER,
    "decode.verify": ("baton.verify.pages", "baton.verify.mismatches"),
    "kvpool.lookup": _HOP,
    "kvpool.store": _HOP,
    "kv.settle": ("baton.outcome",),
}  # fmt: skip
"""By name of the span; `prefill.fetch` comes only when blocks return from the pool."""

KINDS: Final = {
    "chat hashchain": 2,
    "gateway.send": 4,
    "scheduler.place": 5,
    "prefill.job": 5,
    "decode.job": 5,
}
FETCH: Final = tuple(f"baton.fetch.{name}" for name in ("tier", "peer", "blocks", "bytes"))


def lacking(spans: list[dict[str, Any]]) -> list[str]:
    """What the trace does not tell and should."""
    names = {span["name"] for span in spans}
    found = [f"no span {name}" for name in sorted(TABLE.keys() - names)]
    for span in spans:
        wanted = FETCH if span["name"] == "prefill.fetch" else TABLE.get(span["name"])
        if wanted is None:
            found.append(f"{span['name']} is not in the table")
            continue
        missing = sorted(set(wanted) - set(span["attributes"]))
        found += [f"{span['name']} of {span['worker']} lacks {name}" for name in missing]
        if span["kind"] != KINDS.get(span["name"], 1):
            found.append(f"{span['name']} has kind {span['kind']}")
    return found
