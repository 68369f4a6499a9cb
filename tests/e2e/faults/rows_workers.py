"""Rows about prefill and decode workers that die, stand still, refuse or run short."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shared.runtime.liveness import EXIT_STUCK
from tests.e2e.faults.events import (
    counts,
    ended,
    holds,
    lasting,
    poisonous,
    start,
    strikes,
    tokens_seen,
    uncounted,
    when_said,
)
from tests.e2e.faults.events_bus import deaf, heal
from tests.e2e.faults.events_processes import (
    alive,
    drain,
    kill,
    pause,
    restart,
    restart_the_dead,
    resume,
)
from tests.e2e.faults.events_threads import ended_itself, hang_engine, stuck
from tests.e2e.faults.row import Row
from tests.e2e.faults.stage import LEASE_S, PAIRS, wish

_PAGES: Final = "baton.decode.*.pages"
_POISON: Final = 300
"""A token that only prompts can hold."""
_ONE_PAIR: Final = replace(PAIRS, prefill=1, decode=1)

PREFILL: Final = (
    Row(
        id="F14",
        what="P SIGKILL with queued jobs; another P is there",
        events=(
            when_said("prefill", "baton.prefill.prefill-0.job", kill("prefill-0"), nth=2),
            start(8),
            strikes(),
            ended(),
            restart("prefill-0"),
        ),
    ),
    Row(
        id="F14",
        what="the only P SIGKILL: decode computes",
        wish=wish(replace(PAIRS, prefill=1), scheduler={"route": "auto"}),
        events=(
            when_said("prefill", "baton.prefill.prefill-0.job", kill("prefill-0"), nth=2),
            start(8),
            strikes(),
            ended(),
            restart("prefill-0"),
        ),
    ),
    Row(
        id="F15",
        what="P SIGKILL in mid-prompt",
        events=(
            when_said("decode", _PAGES, kill("prefill-0"), nth=20),
            start(8, length=3000),
            strikes(),
            ended(),
            restart("prefill-0"),
        ),
    ),
    Row(
        id="F16",
        what="P SIGKILL before its announcements left",
        proxied=("prefill",),
        events=(
            start(6, length=3000),
            holds("prefill-0"),
            deaf("prefill", "upstream"),
            lasting(0.3),
            kill("prefill-0"),
            heal("prefill"),
            ended(),
            restart("prefill-0"),
        ),
    ),
    Row(
        id="F17",
        what="P stands still and is killed while decode reads from it",
        events=(
            when_said("decode", _PAGES, pause("prefill-0"), nth=20),
            start(8, length=3000),
            strikes(),
            lasting(0.5),
            kill("prefill-0"),
            ended(),
            restart("prefill-0"),
        ),
    ),
    Row(
        id="F18",
        what="P SIGKILL after the last byte; no release reaches it",
        proxied=("prefill",),
        events=(
            start(4),
            tokens_seen(1, everywhere=False),
            deaf("prefill", "downstream"),
            lasting(0.3),
            kill("prefill-0"),
            heal("prefill"),
            ended(),
            restart("prefill-0"),
        ),
    ),
    Row(
        id="F19",
        what="P stopped past its lease, then continued",
        events=(
            when_said("decode", _PAGES, pause("prefill-0"), nth=20),
            start(8, length=3000),
            strikes(),
            lasting(LEASE_S + 2.0),
            resume("prefill-0"),
            ended(),
            alive("prefill-0"),
        ),
    ),
    Row(
        id="F20",
        what="P has pages for two prompts of eight",
        wish=wish(_ONE_PAIR, prefill={"kv_pages": 260}),
        events=(start(8), ended()),
    ),
    Row(
        id="F30",
        what="P stands still under reads for less than its lease",
        events=(
            when_said("decode", _PAGES, pause("prefill-0"), nth=20),
            start(8, length=3000),
            strikes(),
            lasting(LEASE_S / 2),
            resume("prefill-0"),
            ended(),
        ),
    ),
    Row(
        id="F34",
        what="P and D with different block sizes: refused, no byte moves",
        wish=wish(prefill={"block_tokens": 32}),
        codes=("incompatible_workers",),
        probe_code="incompatible_workers",
        events=(
            start(3),
            ended(),
            uncounted("baton_transfer_bytes_total", "decode-0", "decode-1"),
            uncounted("baton_transfer_served_bytes_total", "prefill-0", "prefill-1"),
        ),
    ),
)

DECODE: Final = (
    Row(
        id="F21",
        what="D SIGKILL before it acknowledges a job",
        events=(
            pause("decode-0"),
            start(6),
            lasting(0.5),
            kill("decode-0"),
            ended(),
            restart("decode-0"),
        ),
    ),
    Row(
        id="F22",
        what="D SIGKILL at the first announcement",
        events=(
            when_said("decode", _PAGES, kill("decode-0")),
            start(8, length=3000),
            strikes(),
            ended(),
            restart("decode-0"),
        ),
    ),
    Row(
        id="F23",
        what="D SIGKILL while it pulls",
        events=(
            when_said("decode", _PAGES, kill("decode-0"), nth=60),
            start(8, length=3000),
            strikes(),
            ended(),
            restart("decode-0"),
        ),
    ),
    Row(
        id="F24",
        what="D SIGKILL in mid-stream, 20 streams",
        events=(
            start(20, length=500, output=600),
            tokens_seen(20),
            kill("decode-0"),
            ended(),
            restart("decode-0"),
        ),
    ),
    Row(
        id="F25",
        what="D SIGTERM: finishes what it can, hands over the rest, exit 0",
        wish=wish(decode={"drain_s": 2.0}),
        events=(
            start(8, output=2500),
            tokens_seen(10),
            drain("decode-0"),
            ended(),
            restart("decode-0"),
        ),
    ),
    Row(
        id="F26",
        what="D is full and refuses",
        wish=wish(_ONE_PAIR, decode={"max_sequences": 2, "queue_limit": 1, "reserve_wait_s": 0.2}),
        codes=("queue_full", "kv_pages_exhausted"),
        events=(start(8), ended()),
    ),
    Row(
        id="F27",
        what="D out of pages: preempts, tokens unchanged",
        wish=wish(_ONE_PAIR, decode={"kv_pages": 340, "forecast": False}),
        events=(start(6), ended(), counts("decode-0", "baton_preemptions_total")),
    ),
    Row(
        id="F56",
        what="a request that crashes engines",
        wish=wish(
            replace(PAIRS, prefill=3),
            prefill={"poison_token": _POISON},
            decode={"poison_token": _POISON},
        ),
        events=(
            start(6),
            tokens_seen(1, everywhere=False),
            poisonous(_POISON),
            ended(),
            restart_the_dead(),
        ),
    ),
    Row(
        id="F57",
        what="D stands still past its heartbeats, then continues",
        events=(
            start(8),
            tokens_seen(20),
            pause("decode-0"),
            ended(),
            resume("decode-0"),
            alive("decode-0"),
        ),
    ),
    Row(
        id="F57",
        what="D's engine hangs: D says so, ends itself, and its streams go on elsewhere",
        wish=wish(decode={"engine_stall_s": 2.0}),
        events=(
            start(8),
            tokens_seen(20),
            hang_engine("decode-0"),
            stuck("decode-0", "engine without progress"),
            ended_itself("decode-0", EXIT_STUCK),
            ended(),
            restart("decode-0"),
        ),
    ),
    Row(
        id="F59",
        what="rolling restart of all workers under load",
        wish=wish(prefill={"drain_s": 2.0}, decode={"drain_s": 2.0}),
        events=(
            start(6, output=4000),
            tokens_seen(1),
            drain("prefill-0"),
            restart("prefill-0"),
            drain("decode-0"),
            restart("decode-0"),
            drain("prefill-1"),
            restart("prefill-1"),
            drain("decode-1"),
            restart("decode-1"),
            ended(),
        ),
    ),
)
