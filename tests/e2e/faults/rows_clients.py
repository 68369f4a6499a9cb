"""Rows about clients, the gateway, the scheduler and everything around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.e2e.faults.events import (
    counts,
    crowd,
    disperse,
    ended,
    hang_up,
    holds,
    huge_bodies,
    lasting,
    nothing_held,
    refused,
    served,
    start,
    strikes,
    tokens_seen,
    when_said,
)
from tests.e2e.faults.events_processes import (
    alive,
    drain,
    few_descriptors,
    kill,
    on_leader,
    pause,
    restart,
    restart_the_dead,
    resume,
    resume_old_leader,
)
from tests.e2e.faults.row import Row
from tests.e2e.faults.stage import PAIRS, wish

WORKERS: Final = ("prefill-0", "prefill-1", "decode-0", "decode-1")
_SCHEDULERS: Final = replace(PAIRS, scheduler=2)

CLIENTS: Final = (
    Row(
        id="F01",
        what="clients leave while they wait in line for pages",
        wish=wish(replace(PAIRS, prefill=1, decode=1), decode={"kv_pages": 300}),
        events=(
            start(8),
            tokens_seen(1, everywhere=False),
            holds("gateway-0", "sessions", 3),
            hang_up(),
            counts("gateway-0", 'baton_cancels_total{cause="client_gone"', 3),
        ),
    ),
    Row(
        id="F02",
        what="clients leave in mid-chunk",
        events=(start(8, length=4000), holds("prefill-0"), hang_up()),
    ),
    Row(
        id="F03",
        what="clients leave when pages are announced",
        events=(
            when_said("decode", "baton.decode.*.pages", hang_up()),
            start(8, length=3000),
            strikes(),
        ),
    ),
    Row(
        id="F04",
        what="clients leave while decode pulls",
        events=(
            when_said("decode", "baton.decode.*.pages", hang_up(), nth=40),
            start(8, length=3000),
            strikes(),
        ),
    ),
    Row(
        id="F05",
        what="clients leave in mid-stream",
        events=(start(8), tokens_seen(20), hang_up()),
    ),
    Row(
        id="F07",
        what="gateway SIGKILL in mid-stream",
        may_break=True,
        events=(
            start(8, output=3000),
            tokens_seen(5),
            kill("gateway-0"),
            ended(),
            nothing_held(*WORKERS),
            restart("gateway-0"),
        ),
    ),
    Row(
        id="F08",
        what="gateway SIGTERM: streams finish, exit 0",
        events=(
            start(4, output=300),
            tokens_seen(5),
            drain("gateway-0"),
            ended(),
            restart("gateway-0"),
        ),
    ),
    Row(
        id="F08",
        what="gateway SIGTERM: streams that outlast the drain get an error event",
        wish=wish(gateway={"drain_s": 2.0}),
        codes=("draining",),
        events=(
            start(8, output=6000),
            tokens_seen(5),
            drain("gateway-0"),
            ended(),
            nothing_held(*WORKERS),
            restart("gateway-0"),
        ),
    ),
    Row(
        id="F09",
        what="gateway SIGKILL between the two jobs",
        may_break=True,
        events=(
            pause("decode-0"),
            pause("decode-1"),
            when_said("decode", "baton.decode.*.job", kill("gateway-0"), nth=4),
            start(4),
            strikes(),
            resume("decode-0"),
            resume("decode-1"),
            ended(),
            nothing_held(*WORKERS),
            restart("gateway-0"),
        ),
    ),
    Row(
        id="F54",
        what="huge bodies do not hold up streams",
        events=(start(4), tokens_seen(5), huge_bodies(4), served(), ended()),
    ),
    Row(
        id="F55",
        what="300 requests cut at once, twice",
        events=(
            start(300, length=200, output=200, step=1),
            holds("gateway-0", "sessions", 200),
            hang_up(),
            start(300, length=200, output=200, step=1, first=1000),
            tokens_seen(1, everywhere=False),
            hang_up(),
            nothing_held("gateway-0", *WORKERS),
        ),
    ),
    Row(
        id="F61",
        what="gateway out of file descriptors",
        events=(
            start(4, output=1500),
            tokens_seen(5),
            few_descriptors("gateway-0", 8),
            crowd(40),
            lasting(2.0),
            ended(),
            few_descriptors("gateway-0", -1),
            disperse(),
            alive("gateway-0"),
            served(),
        ),
    ),
)

SCHEDULERS: Final = (
    Row(
        id="F10",
        what="the only scheduler is killed: 503 for new requests, streams go on",
        events=(
            start(6, output=1500),
            tokens_seen(5),
            kill("scheduler-0"),
            refused("control_plane_down", 15.0),
            ended(),
            restart("scheduler-0"),
            served(),
        ),
    ),
    Row(
        id="F10",
        what="the leading scheduler is killed: the standby places",
        wish=_SCHEDULERS,
        events=(
            start(6, output=1500),
            tokens_seen(5),
            on_leader(kill),
            served(),
            ended(),
            restart_the_dead(),
        ),
    ),
    Row(
        id="F11",
        what="scheduler restarts empty",
        events=(
            start(8, length=3000),
            tokens_seen(1, everywhere=False),
            kill("scheduler-0"),
            restart("scheduler-0"),
            served(),
            ended(),
            counts("scheduler-0", "baton_index_blocks", 100),
        ),
    ),
    Row(
        id="F12",
        what="two schedulers believe they lead",
        wish=_SCHEDULERS,
        events=(
            start(6, output=1500),
            tokens_seen(1),
            on_leader(pause),
            served(),
            resume_old_leader(),
            served(),
            served(),
            ended(),
        ),
    ),
    Row(
        id="F13",
        what="scheduler stopped past its lease, then continued",
        wish=_SCHEDULERS,
        events=(
            start(6, output=1500),
            on_leader(pause),
            lasting(5.0),
            served(),
            resume_old_leader(),
            served(),
            ended(),
        ),
    ),
)
