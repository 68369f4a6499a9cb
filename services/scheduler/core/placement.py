"""Where a request runs: every candidate scored in seconds, the reasons kept.

    score(w, d) = max(wait_w, 0) + PT(uncached) + exposed transfer + slowdown of d's streams

Affinity enters only through a smaller PT and fewer bytes: a discount, never a veto. Deliberately
thin; further policies plug in behind `choose`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from services.scheduler.core.cluster import Cluster, Worker
from shared import costs
from shared.ids import WorkerId
from shared.wire.requests import Candidate, PlaceRequest

MAX_PREFILL: Final = 16
MAX_DECODE: Final = 8
MAX_REPORTED: Final = 16
_LINK: Final = costs.LinkCosts(setup_s=0.001, bytes_per_s=1.0e9)
_TIE_SHARE: Final = 0.01
_TIE_S: Final = 0.001
_EXPECTED_OUTPUT_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Knobs of this policy."""

    colocate_below_tokens: int
    """Under route 'auto': colocate when decode's cache leaves fewer prompt tokens than this."""


class Chance(Protocol):
    """A seeded generator (random.Random is one)."""

    def choice(self, options: Sequence[Option], /) -> Option: ...


@dataclass(frozen=True, slots=True)
class Option:
    """A feasible pair (or a decode worker alone) with its estimate."""

    prefill: Worker | None
    decode: Worker
    cached_blocks: int
    ttft_s: float
    work_s: float
    candidate: Candidate


class Placer:
    """Scores options over a cluster and an index lookup. Holds no request state."""

    def __init__(self, settings: PlacementSettings, chance: Chance) -> None:
        self._settings = settings
        self._chance = chance

    def options(
        self, ask: PlaceRequest, cluster: Cluster, depths: Mapping[WorkerId, int], now: float
    ) -> list[Option]:
        """Every feasible option under the request's route, unsorted."""
        decodes = self._decodes(ask, cluster)
        prefills = self._prefills(ask, cluster, depths, now)
        colocated = [self._colocated(ask, d, depths, now) for d in decodes]
        pairs = [
            self._pair(ask, w, d, depths, now)
            for w in prefills
            for d in decodes
            if w.report.layout_digest == d.report.layout_digest
            and cluster.reachable(d.report.worker, w.report.worker, now)
        ]
        match ask.route:
            case "colocated":
                return colocated
            case "disaggregated":
                return pairs
            case _:
                reused = [o for o in colocated if self._left(ask, o) < self._threshold]
                return reused or pairs or colocated

    def choose(self, options: list[Option]) -> Option:
        """The least score; among near-equals a seeded draw, so that nobody starves."""
        best = min(option.candidate.score_s for option in options)
        limit = best + max(_TIE_S, _TIE_SHARE * best)
        return self._chance.choice([o for o in options if o.candidate.score_s <= limit])

    @property
    def _threshold(self) -> int:
        return self._settings.colocate_below_tokens

    @staticmethod
    def _left(ask: PlaceRequest, option: Option) -> int:
        return ask.prompt_tokens - option.cached_blocks * option.decode.report.block_tokens

    # -- candidates ----------------------------------------------------------------------

    def _decodes(self, ask: PlaceRequest, cluster: Cluster) -> list[Worker]:
        fitting = [
            worker
            for worker in usable(cluster.of_role("decode"), ask)
            if worker.pages_free() >= pages_needed(ask, worker)
        ]
        fitting.sort(key=lambda worker: (len(worker.charges), worker.report.load.running_sequences))
        return fitting[:MAX_DECODE]

    def _prefills(
        self, ask: PlaceRequest, cluster: Cluster, depths: Mapping[WorkerId, int], now: float
    ) -> list[Worker]:
        ready = usable(cluster.of_role("prefill"), ask)
        by_depth = sorted(ready, key=lambda w: -depths.get(w.report.worker, 0))
        by_wait = sorted(ready, key=lambda w: w.wait_s(now))
        chosen = {w.report.worker: w for w in by_depth[: MAX_PREFILL // 2]}
        for worker in by_wait[: MAX_PREFILL // 2]:
            chosen.setdefault(worker.report.worker, worker)
        return list(chosen.values())

    # -- scores --------------------------------------------------------------------------

    def _pair(
        self,
        ask: PlaceRequest,
        w: Worker,
        d: Worker,
        depths: Mapping[WorkerId, int],
        now: float,
    ) -> Option:
        cached = cached_blocks(ask, w, depths)
        held = min(depths.get(d.report.worker, 0), len(ask.block_hashes))
        pages = -(-ask.prompt_tokens // d.report.block_tokens) - held
        exposed_s = costs.transfer_s(_LINK, pages * d.report.page_bytes)
        prefill_s = work_s(ask, w, cached)
        terms = {
            "wait_s": w.wait_s(now),
            "prefill_s": prefill_s,
            "exposed_s": exposed_s,
            "slowdown_s": slowdown_s(ask, d),
        }
        return option(w, d, cached, prefill_s, terms, f"{cached} blocks cached on {w.ref.worker}")

    def _colocated(
        self, ask: PlaceRequest, d: Worker, depths: Mapping[WorkerId, int], now: float
    ) -> Option:
        cached = cached_blocks(ask, d, depths)
        prefill_s = work_s(ask, d, cached)
        terms = {
            "wait_s": d.wait_s(now),
            "prefill_s": prefill_s,
            "stall_s": prefill_s * d.report.load.running_sequences,
            "slowdown_s": slowdown_s(ask, d),
        }
        return option(None, d, cached, prefill_s, terms, f"{cached} blocks cached on decode")


def option(
    prefill: Worker | None,
    decode: Worker,
    cached: int,
    prefill_s: float,
    terms: dict[str, float],
    note: str,
) -> Option:
    """Sum the terms into one candidate."""
    candidate = Candidate(
        prefill=prefill.report.worker if prefill else None,
        decode=decode.report.worker,
        score_s=sum(terms.values()),
        terms={name: round(seconds, 6) for name, seconds in terms.items()},
        note=note,
    )
    return Option(prefill, decode, cached, terms["wait_s"] + prefill_s, prefill_s, candidate)


def usable(workers: list[Worker], ask: PlaceRequest) -> list[Worker]:
    """Workers of the right model, without those that failed this request; unless that leaves
    nobody: then a worker that failed once and still lives is better than none."""
    serving = [w for w in workers if w.report.model_digest == ask.model_digest]
    failed = {(ref.worker, ref.epoch) for ref in ask.excluded}
    fresh = [w for w in serving if (w.report.worker, w.report.epoch) not in failed]
    return fresh or serving


def pages_needed(ask: PlaceRequest, worker: Worker) -> int:
    """Pages to take the prompt and one more token."""
    return -(-(ask.prompt_tokens + 1) // worker.report.block_tokens)


def cached_blocks(ask: PlaceRequest, worker: Worker, depths: Mapping[WorkerId, int]) -> int:
    """Leading blocks that need not be computed; the last token always is."""
    most = (ask.prompt_tokens - 1) // worker.report.block_tokens
    return min(depths.get(worker.report.worker, 0), most)


def work_s(ask: PlaceRequest, worker: Worker, cached: int) -> float:
    """Seconds of prefill left after the cached blocks."""
    cached_tokens = cached * worker.report.block_tokens
    return costs.prefill_s(worker.report.cost, ask.prompt_tokens - cached_tokens, cached_tokens)


def slowdown_s(ask: PlaceRequest, worker: Worker) -> float:
    """What one more stream costs the streams already on a decode worker."""
    expected = min(ask.max_tokens, _EXPECTED_OUTPUT_TOKENS)
    streams = worker.report.load.running_sequences + len(worker.charges)
    return worker.report.cost.decode_sequence_s * expected * streams
