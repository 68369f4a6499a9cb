"""Mooncake (FAST 2025): a pool beside prefill and decode, hits by capacity, early rejection, and
the link from which moving KV pays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from loadgen.sim.fleet import roofline
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.devices import DEVICES, MODELS
from loadgen.sim.fleet.fleet import Fleet
from loadgen.tables.claim import WHOLE_TOKENS, Claim, Line, Setting, Verdict, inside, near
from loadgen.workloads.catalogue import Wish, load
from loadgen.workloads.request import Workload

_A800: Final = replace(DEVICES["a100"], name="a800", peer_bytes_per_s=200e9)
PRICE: Final = roofline.price(MODELS["llama-3-70b"], _A800, 8)
"""One node: 8 x A800."""
_NODES: Final = 16
_BLOCK: Final = 512
_RATE: Final = 3.34
"""Requests a second of the conversation trace."""
_CARDS: Final = Link(bytes_per_s=100e9)
"""4 x 200 Gbit/s."""
_TTFT_S: Final = 30.0
_GAINS: Final = ((0.3, 0.59), (0.2, 1.57), (0.1, 4.98))


def _split(nodes: int) -> Design:
    return Design(
        prefills=nodes // 2,
        decodes=nodes - nodes // 2,
        prefill=PRICE,
        decode=PRICE,
        link=_CARDS,
        block_tokens=_BLOCK,
        route="disaggregated",
        kvpools=1,
        kvpool_tokens=30_000_000,
    )


def _conversation(setting: Setting, count: int, rate: float) -> Workload:
    return load(Wish("mooncake:conversation", count, rate), setting.data)


def _rows(design: Design, workload: Workload) -> list[Row]:
    rows: list[Row] = []
    Fleet(design, workload).run(rows.append)
    return rows


def _within(rows: list[Row], gap_s: float) -> int:
    return sum(row.ok and row.ttft_s <= _TTFT_S and row.slow_gap_s <= gap_s for row in rows)


def _pool(setting: Setting) -> Iterator[Line]:
    workload = _conversation(setting, setting.count(500), _RATE)
    setting.note("16 nodes without a pool, whole prompts")
    apart = replace(
        _split(_NODES),
        prefills=0,
        decodes=_NODES,
        kvpools=0,
        route="colocated",
        policy="least_requests",
        decode=replace(PRICE, pauses=True),
        step_tokens=WHOLE_TOKENS,
        chunk_tokens=WHOLE_TOKENS,
    )
    alone = _rows(apart, workload)
    setting.note("the same with chunks of 512")
    mixed = replace(apart, decode=PRICE, step_tokens=512, chunk_tokens=2_048, policy="baton")
    chunked = _rows(mixed, workload)
    setting.note("8P+8D with a pool")
    pooled = _rows(replace(_split(_NODES), stride=8), workload)
    for gap_s, gain in _GAINS:
        before, after = _within(alone, gap_s), _within(pooled, gap_s)
        found = after / before - 1 if before else 99.0
        verdict = inside(1 + found, 1 + gain, (1 + gain) * 1.1)
        shown = f"{found:+.0%} ({after}/{before})"
        yield Line(f"served within TBT {gap_s:g} s", f"{gain:+.0%}", shown, verdict)
        other = _within(chunked, gap_s)
        better = Verdict.HELD if after >= other else Verdict.SHORT
        yield Line(f"the same to chunks of 512, {gap_s:g} s", "-", f"{after}/{other}", better)


# -- hits by capacity --------------------------------------------------------------------------


_MILLION: Final = 1_000_000
_CURVES: Final = {
    "conversation": ((1, 5.3), (3, 13.6), (10, 28.5), (30, 35.9), (50, 36.4)),
    "synthetic": ((1, 13.9), (3, 30.9), (10, 56.6), (30, 64.0)),
}
"""Shares of blocks that least-recently-used keeps of the public traces, in millions of tokens."""
_PAPER: Final = {"conversation": 41.0, "synthetic": 46.0}
"""At 3M tokens a node, as the paper gives them for its own traces."""


def _hits(setting: Setting) -> Iterator[Line]:
    for trace, curve in _CURVES.items():
        workload = load(Wish(f"mooncake:{trace}", 1 << 20), setting.data)
        for millions, known in curve:
            found = hit_share(workload, millions * _MILLION // _BLOCK) * 100
            name = f"{trace}, {millions}M tokens, % of blocks"
            yield Line(name, f"{known}", f"{found:.1f}", near(found, known, 0.05))
            if millions == 3:
                paper = _PAPER[trace]
                yield Line(f"{name}, paper", f"{paper:g}", f"{found:.1f}", near(found, paper, 0.05))
        ideal = workload.ideal_hit * 100
        yield Line(f"{trace}, endless, % of tokens", "-", f"{ideal:.1f}", Verdict.HELD)


def hit_share(workload: Workload, capacity: int) -> float:
    """Of all blocks, with one cache of so many; a hit needs all blocks before it."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = total = 0
    for request in workload:
        missed = False
        for block in request.blocks:
            missed = missed or block not in kept
            hits += not missed
        total += len(request.blocks)
        for block in reversed(request.blocks):
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > capacity:
            kept.popitem(last=False)
    return hits / total if total else 0.0


# -- early rejection ---------------------------------------------------------------------------


_REPLAY: Final = 1.2
_TBT_S: Final = 0.05
_REJECTED: Final = (4_183, 3_771, 3_589)
_OF: Final = 23_608


def _rejections(setting: Setting) -> Iterator[Line]:
    workload = _conversation(setting, setting.count(300), _RATE * _REPLAY)
    lost: dict[str, int] = {}
    refused: dict[str, int] = {}
    for rule in ("none", "early_reject_now", "early_reject_predicted"):
        setting.note(rule)
        rows = _rows(judged(rule), workload)
        refused[rule] = sum(not row.ok for row in rows)
        lost[rule] = sum(not row.ok or row.ttft_s > _TTFT_S or row.tpot_s > _TBT_S for row in rows)
    before, published_before = max(1, lost["none"]), _REJECTED[0]
    for (rule, count), published in zip(lost.items(), _REJECTED, strict=True):
        share, known = count / before, published / published_before
        verdict = Verdict.BEATEN if share < known * 0.95 else near(share, known, 0.02)
        shown = f"{share:.2f} ({count} of {len(workload)})"
        text = f"{known:.2f} ({published} of {_OF})"
        name = f"lost, {rule} ({refused[rule]} refused), to the rule before"
        yield Line(name, text, shown, verdict)
        before, published_before = max(1, count), published


def judged(rule: str) -> Design:
    """Decode binds: one node of it. Whoever is refused is refused for good, but nobody is without
    a rule; every token is simulated, since the rules count with the time that each takes."""
    return replace(
        _split(_NODES),
        prefills=_NODES - 1,
        decodes=1,
        admission=rule,
        patience_s=_split(_NODES).patience_s if rule == "none" else 0.0,
        ttft_slo_s=_TTFT_S,
        tpot_slo_s=_TBT_S,
    )


# -- the link ----------------------------------------------------------------------------------


_REUSED: Final = 8_192
_NEW: Final = 512


def _link(setting: Setting) -> Iterator[Line]:
    setting.note("break-even")
    at_rate = flops_break_even_bytes_per_s() / 1e9
    verdict = near(at_rate, 6.0, 0.1)
    yield Line("8,192 reused tokens, full FLOP rate, GB/s", "6", f"{at_rate:.1f}", verdict)
    found = break_even_bytes_per_s() / 1e9
    yield Line("the same by our prices, GB/s", "6", f"{found:.1f}", near(found, 6.0, 0.25))
    needed = at_rate * 8
    verdict = Verdict.HELD if needed <= 100 else Verdict.SHORT
    yield Line("100 Gbit/s suffice; needed Gbit/s", "100", f"{needed:.0f}", verdict)


def flops_break_even_bytes_per_s() -> float:
    """The paper's inequality: 2*d*s / (gqa * (4*p*d + 22*d^2)) times the FLOP rate of a node."""
    model = MODELS["llama-3-70b"]
    width, groups = model.hidden, model.heads // model.kv_heads
    work = groups * (4 * _REUSED * width + 22 * width**2)
    return 2 * width * 2 / work * _A800.flops * 8


def break_even_bytes_per_s() -> float:
    """Where reading the prefix takes as long as computing it would."""
    whole = PRICE.mixed_s(_REUSED + _NEW, (_REUSED + _NEW) ** 2, 0, 0)
    rest = PRICE.mixed_s(_NEW, (_REUSED + _NEW) ** 2 - _REUSED**2, 0, 0)
    return _REUSED * PRICE.kv_token_bytes / (whole - rest - _CARDS.setup_s)


CLAIMS: Final = (
    Claim(
        name="Mooncake requests",
        source="Mooncake, FAST 2025, section 5.2 (16 nodes of 8 x A800, LLaMA3-70B)",
        inputs="the first requests of the public conversation trace at its own rate, 16 nodes by "
        "roofline; TBT of a request is the mean of its longest tenth of gaps; pool of 30M tokens",
        missing="the rest of the hour (caches stay colder), the baseline's own scheduler",
        measure=_pool,
    ),
    Claim(
        name="Mooncake hits",
        source="Mooncake, FAST 2025, cache hit rate against capacity",
        inputs="the public traces, one least-recently-used cache, 512-token blocks",
        missing="the paper's tool-and-agent trace; endless capacity caps the public conversation "
        "trace below the 41 % of the paper",
        measure=_hits,
    ),
    Claim(
        name="Mooncake rejections",
        source="Mooncake, FAST 2025, table of rejected requests (8P+8D, trace at twice its speed)",
        inputs=f"the first requests of the conversation trace at {_REPLAY:g} times its speed, "
        f"15P+1D, TTFT 30 s, TPOT {_TBT_S * 1000:g} ms; lost are refused requests and those that "
        "miss an objective",
        missing="the paper's trace of 23,608 requests. By roofline, decode of this model needs far "
        "fewer nodes than prefill, and its memory is full before a step takes 100 ms: so one node "
        "and a tighter objective, else nothing binds decode. The paper's baseline refuses after "
        "prefill; without a rule, here everything is served, late",
        measure=_rejections,
    ),
    Claim(
        name="Mooncake link",
        source="Mooncake, FAST 2025, section 3 (when reuse pays)",
        inputs="LLaMA3-70B on 8 x A800 by roofline",
        missing="the paper counts FLOPs at full rate; here kernels reach shares of the roofs",
        measure=_link,
    ),
)
