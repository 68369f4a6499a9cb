"""Rows about the bus, its messages, the pool and the trace collector."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.e2e.faults.events import (
    Event,
    counts,
    ended,
    hang_up,
    holds,
    lasting,
    refused,
    served,
    start,
    strikes,
    tokens_seen,
    when_said,
)
from tests.e2e.faults.events_bus import (
    cut,
    deaf,
    heal,
    recorded,
    repeated,
    replayed,
    slow,
    start_nats,
    stop_nats,
)
from tests.e2e.faults.events_processes import (
    alive,
    kill,
    pause,
    restart,
    resume,
)
from tests.e2e.faults.row import Row
from tests.e2e.faults.rows_clients import WORKERS
from tests.e2e.faults.stage import COLLECTOR, LEASE_S, PAIRS, wish

_JOBS: Final = ("baton.decode.*.job", "baton.prefill.*.job")
_PAGES: Final = "baton.decode.*.pages"
_LEASES: Final = "baton.prefill.*.leases"
_TOKENS: Final = "baton.gateway.*.tokens"
_POOL: Final = "baton.kvpool.*.blocks"

_ONLY_THE_POOL_IS_WARM: Final[tuple[Event, ...]] = (
    start(4, output=40),
    ended(),
    counts("kvpool-0", "baton_pool_stored_blocks_total", 300),
    kill(*WORKERS),
    restart(*WORKERS),
)

MESSAGES: Final = (
    Row(
        id="F28",
        what="renewals and releases again after the end, the last first",
        events=(
            recorded("prefill", _LEASES),
            start(6),
            ended(),
            replayed("decode", _LEASES),
            alive(*WORKERS),
        ),
    ),
    Row(
        id="F29",
        what="tokens of ended requests arrive again",
        events=(
            recorded("gateway", _TOKENS),
            start(6),
            ended(),
            replayed("decode", _TOKENS),
            alive("gateway-0"),
        ),
    ),
    Row(
        id="F31",
        what="every job, announcement and release arrives twice",
        events=(
            repeated("decode", "gateway", _JOBS[0], late_s=0.05),
            repeated("prefill", "gateway", _JOBS[1], late_s=0.05),
            repeated("decode", "prefill", _PAGES, late_s=0.05),
            repeated("prefill", "decode", _LEASES, late_s=0.05),
            start(8),
            ended(),
        ),
    ),
    Row(
        id="F32",
        what="announcements out of order and after the cancel",
        events=(
            repeated("decode", "prefill", _PAGES, late_s=1.5),
            start(4),
            tokens_seen(5),
            hang_up(),
            replayed("prefill", _PAGES),
            start(4, first=20),
            ended(),
            replayed("prefill", _PAGES),
        ),
    ),
    Row(
        id="F36",
        what="nothing that D says arrives for longer than a lease",
        proxied=("decode",),
        events=(
            start(6, length=3000),
            holds("decode-0"),
            deaf("decode", "upstream"),
            lasting(LEASE_S + 1.5),
            heal("decode"),
            ended(),
        ),
    ),
    Row(
        id="F37",
        what="a slow link between D and the bus (the data plane cannot be slowed from outside)",
        proxied=("decode",),
        events=(
            slow("decode", delay_s=0.05, bytes_per_s=200_000.0),
            start(6, output=200),
            ended(),
            heal("decode"),
        ),
    ),
    Row(
        id="F38",
        what="token messages late and repeated",
        events=(repeated("gateway", "decode", _TOKENS, late_s=0.4), start(8), ended()),
    ),
    Row(
        id="F38",
        what="token messages lost",
        proxied=("decode",),
        events=(
            start(8),
            tokens_seen(20),
            deaf("decode", "upstream"),
            lasting(0.7),
            heal("decode"),
            ended(),
        ),
    ),
)

POOL: Final = (
    Row(
        id="F40",
        what="the pool does not answer: what the placement named is computed",
        wish=wish(prefill={"fetch_timeout_s": 0.5}),
        events=(
            *_ONLY_THE_POOL_IS_WARM,
            pause("kvpool-0"),
            start(4, output=40),
            ended(),
            resume("kvpool-0"),
        ),
    ),
    Row(
        id="F41",
        what="pool SIGKILL while it stores",
        events=(
            when_said("kvpool", _POOL, kill("kvpool-0")),
            start(6),
            strikes(),
            ended(),
            restart("kvpool-0"),
            start(6, first=30),
            ended(),
            counts("kvpool-0", "baton_pool_stored_blocks_total"),
        ),
    ),
    Row(
        id="F42",
        what="pool SIGKILL while it is asked and read",
        events=(
            *_ONLY_THE_POOL_IS_WARM,
            when_said("kvpool", _POOL, kill("kvpool-0"), nth=2),
            start(4, output=40),
            strikes(),
            ended(),
            restart("kvpool-0"),
        ),
    ),
    Row(
        id="F45",
        what="pool restarts empty",
        events=(
            *_ONLY_THE_POOL_IS_WARM,
            kill("kvpool-0"),
            start(4, output=40),
            restart("kvpool-0"),
            ended(),
            start(4, output=40),
            ended(),
        ),
    ),
    Row(
        id="F47",
        what="a worker comes back without its cache, the index still lists it",
        events=(
            start(6, output=40),
            ended(),
            kill("prefill-0", "decode-0"),
            start(6, output=40),
            restart("prefill-0", "decode-0"),
            ended(),
        ),
    ),
)

OUTAGES: Final = (
    Row(
        id="F48",
        what="NATS killed for 5 s",
        events=(
            start(8, output=2000),
            tokens_seen(5),
            stop_nats(),
            lasting(5.0),
            alive("gateway-0", "scheduler-0", "kvpool-0", *WORKERS),
            start_nats(),
            ended(),
        ),
    ),
    Row(
        id="F49",
        what="NATS down for 15 s (for the 10 min of the matrix): new requests 503 at once",
        events=(
            start(6, output=4000),
            tokens_seen(5),
            stop_nats(),
            lasting(2.0),
            refused("control_plane_down", 2.0),
            lasting(12.0),
            refused("control_plane_down", 2.0),
            start_nats(),
            ended(),
        ),
    ),
    Row(
        id="F49",
        what="NATS down for longer than a deadline: streams end with it, and say so",
        wish=wish(gateway={"deadline_s": 8.0}),
        codes=("deadline_exceeded",),
        events=(
            start(6, output=6000),
            tokens_seen(5),
            stop_nats(),
            ended(),
            refused("control_plane_down", 2.0),
            lasting(LEASE_S),
            start_nats(),
        ),
    ),
    Row(
        id="F50",
        what="NATS loses its key-value store; a worker takes an epoch again",
        events=(
            start(6, output=1500),
            tokens_seen(5),
            stop_nats(),
            start_nats(empty=True),
            kill("decode-1"),
            restart("decode-1"),
            ended(),
            served(),
        ),
    ),
    Row(
        id="F51",
        what="block events of decode lost: the gap is seen and repaired",
        proxied=("decode",),
        events=(
            start(8),
            tokens_seen(20),
            deaf("decode", "upstream"),
            lasting(1.0),
            heal("decode"),
            ended(),
            counts("scheduler-0", "baton_index_resyncs_total"),
        ),
    ),
    Row(
        id="F48",
        what="all bus connections of the workers reset, again and again",
        proxied=("prefill", "decode"),
        events=(
            start(8, output=1000),
            tokens_seen(1, everywhere=False),
            *(each for _ in range(4) for each in (cut("prefill"), cut("decode"), lasting(0.4))),
            ended(),
        ),
    ),
    Row(
        id="F60",
        what="the trace collector takes connections and says nothing",
        wish=replace(PAIRS, prefill=1, decode=1),
        proxied=(COLLECTOR,),
        events=(deaf(COLLECTOR, "upstream"), start(6), ended()),
    ),
)
