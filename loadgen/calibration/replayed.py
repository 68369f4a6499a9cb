"""A live run's rows played again on a simulated fleet with learnt costs, and how far it is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.calibration.costs import Costs
from loadgen.calibration.run_folder import RunError, Served
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import Design
from loadgen.sim.fleet.figures import Slo, mean
from loadgen.sim.fleet.fleet import Fleet
from loadgen.workloads.prefixes import BLOCK_TOKENS, Ids
from loadgen.workloads.request import Request, Workload, build


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure, live and simulated."""

    name: str
    live: float
    simulated: float

    @property
    def error_percent(self) -> float:
        """Of the live figure; 0 where both are nothing."""
        if self.live == 0.0:
            return 0.0 if self.simulated == 0.0 else 100.0
        return (self.simulated / self.live - 1) * 100


def template_tokens(runs: Sequence[Sequence[Served]]) -> int:
    """Tokens that are cached of every prompt, whatever it says: those of the chat template."""
    cached = sorted(row.cached_tokens for rows in runs for row in rows)
    return cached[len(cached) // 2] // BLOCK_TOKENS * BLOCK_TOKENS if cached else 0


def workload(name: str, rows: Sequence[Served], share: float, template: int = 0) -> Workload:
    """The same arrivals and lengths; a prompt begins with `template` tokens that all have, and
    `share` of it is its group's. Raises WorkloadError."""
    ids, prefixes = Ids(), dict[int, tuple[int, ...]]()
    begin = ids.take(template // BLOCK_TOKENS)
    requests = []
    for row in sorted(rows, key=lambda row: row.intended_s):
        whole = -(-row.prompt_tokens // BLOCK_TOKENS)
        shared = max(len(begin), round(row.prompt_tokens * share) // BLOCK_TOKENS)
        known = prefixes.get(row.group, begin)
        prefixes[row.group] = known + ids.take(max(0, shared - len(known)))
        blocks = prefixes[row.group][: min(shared, whole)]
        blocks += ids.take(whole - len(blocks))
        requests.append(
            Request(
                at_s=row.intended_s,
                prompt_tokens=row.prompt_tokens,
                output_tokens=row.output_tokens,
                blocks=blocks,
            )
        )
    return build(name, BLOCK_TOKENS, requests)


def design(costs: Costs, prefills: int, decodes: int) -> Design:
    """The local cluster, with the rules that are its defaults."""
    price, pool_link = costs.price(), costs.pool_link()
    return Design(
        prefills=prefills,
        decodes=decodes,
        prefill=price,
        decode=price,
        link=costs.link(),
        kvpools=0 if pool_link is None else 1,
        kvpool_tokens=costs.kv_tokens,
        kvpool_link=pool_link,
        front_s=costs.front_s,
        block_tokens=BLOCK_TOKENS,
        chunk_tokens=max(BLOCK_TOKENS, costs.chunk_tokens // BLOCK_TOKENS * BLOCK_TOKENS),
        step_tokens=0,
        beside=costs.beside,
        copy_beside=costs.copy_beside,
        split="uncached_threshold",
        heartbeat_s=1.0,
    )


def compare(
    fleet: Design, rows: Sequence[Served], share: float, slo: Slo, template: int = 0
) -> list[Compared]:
    """TTFT, TPOT and goodput of the same requests. Raises DesignError, WorkloadError."""
    simulated: list[Row] = []
    Fleet(fleet, workload("live", rows, share, template)).run(simulated.append)
    failed = [row.outcome for row in simulated if not row.ok]
    if failed:
        raise RunError(f"{len(failed)} of {len(simulated)} simulated requests: {failed[0]}")
    good = sum(row.ttft_s <= slo.ttft_s and row.tpot_s <= slo.tpot_s for row in rows)
    span_s = max(row.last_s for row in rows) - min(row.intended_s for row in rows)
    good_sim = sum(slo.met(row) for row in simulated)
    span_sim_s = max(row.last_s for row in simulated) - min(row.sent_s for row in simulated)
    return [
        Compared(
            "TTFT mean s", mean([r.ttft_s for r in rows]), mean([r.ttft_s for r in simulated])
        ),
        Compared(
            "TPOT mean s", mean([r.tpot_s for r in rows]), mean([r.tpot_s for r in simulated])
        ),
        Compared("good requests/s", good / span_s, good_sim / span_sim_s),
    ]
