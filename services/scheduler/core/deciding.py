"""From a question to an answer: the same placement again, a refusal, or a new decision with its
charges and reasons.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace
from typing import Final

from services.scheduler.core.cluster import Charge, Worker
from services.scheduler.core.flights import Flight
from services.scheduler.core.placement.option import MAX_REPORTED, Chance, Decision
from services.scheduler.core.placement.placer import Placer
from services.scheduler.core.placement.settings import PlacementSettings
from services.scheduler.core.placement.view import View
from services.scheduler.core.world import World
from shared.errors import Code
from shared.ids import Epoch, RequestId
from shared.wire.requests import Placement, PlaceRequest, Refused, WorkerRef

_REMEMBERED: Final = 1_000
_ON_THE_WAY_S: Final = 1.0
"""A job that its worker has not reported after a beat or three is not coming: its gateway died,
or will ask again."""
_MOST_DEADLINE_S: Final = 86_400.0


class Deciding:
    """Remembers the last thousand decisions. `leader_epoch` is told by whoever leads."""

    def __init__(
        self, settings: PlacementSettings, chance: Chance, world: World, counts: Counter[str]
    ) -> None:
        self.placer = Placer(settings, chance, world)
        self.leader_epoch = Epoch(0)
        self.sequence = 0
        self.lost_after_s = 0.0
        self.settled_at = 0.0
        """Before this instant nobody there yet means 'loading'."""
        self._world = world
        self._counts = counts
        self._decisions: OrderedDict[RequestId, tuple[Placement, tuple[str, str]]] = OrderedDict()

    def earlier(self, ask: PlaceRequest) -> Placement | None:
        """The latest placement of this request."""
        return self.decision(ask.request)

    def decision(self, request: RequestId) -> Placement | None:
        """The same by its id; of the last thousand requests."""
        known = self._decisions.get(request)
        return None if known is None else known[0]

    def asked(self, request: RequestId) -> tuple[str, str]:
        """Tenant and model of a request that was placed."""
        return self._decisions[request][1]

    def recent(self) -> list[Placement]:
        """Oldest first."""
        return [placement for placement, _ in self._decisions.values()]

    def place(self, ask: PlaceRequest, route: str, now: float) -> Placement | Refused:
        """A new decision. `route` is applied where the request leaves it open."""
        if ask.route == "auto" and route != "auto":
            ask = replace(ask, route=route)
        if ask.near is not None:
            ask = self._near(ask, ask.near)
        view = self.placer.view(ask, now)
        self._count_mismatches(view)
        decision = self.placer.decide(view)
        if decision is None:
            return self._nowhere(view)
        held_back = self.placer.held_back(view, decision)
        if held_back is not None:
            return self.refuse(Code(held_back.code), held_back.message, held_back.retry_after_s)
        return self._place(view, decision)

    def stands(self, placement: Placement) -> bool:
        """Whether all incarnations of an earlier decision are still there, and we still lead in
        the epoch in which it was made (gateways refuse an older one)."""
        if placement.leader_epoch != self.leader_epoch:
            return False
        refs = [placement.decode, *([placement.prefill] if placement.prefill else [])]
        return all(self._alive(ref) for ref in refs)

    def refuse(self, code: Code, message: str, retry_after_s: float | None = None) -> Refused:
        """No, counted by its code."""
        self._counts[f"refused_{code.value}"] += 1
        return Refused(code.value, message, retry_after_s)

    def _near(self, ask: PlaceRequest, home: WorkerRef) -> PlaceRequest:
        """A further choice of a request runs where its prompt's pages are (ADR 13): for the policy
        it is as if the other decode workers had failed it, so they serve when there is no room."""
        decodes = [worker.ref for worker in self._world.cluster.of_role("decode")]
        if not any((ref.worker, ref.epoch) == (home.worker, home.epoch) for ref in decodes):
            return ask
        others = tuple(ref for ref in decodes if ref.worker != home.worker)
        return replace(ask, route="colocated", excluded=ask.excluded + others)

    # -- inside ------------------------------------------------------------------------------

    def _place(self, view: View, decision: Decision) -> Placement:
        ask, chosen = view.ask, decision.chosen
        self.sequence += 1
        route = "disaggregated" if chosen.prefill else "colocated"
        options = decision.options
        if chosen not in options[:MAX_REPORTED]:
            options = [chosen, *options]
        placement = Placement(
            request=ask.request,
            attempt=ask.attempt,
            sequence=self.sequence,
            leader_epoch=self.leader_epoch,
            route=route,
            prefill=chosen.prefill.ref if chosen.prefill else None,
            decode=chosen.decode.ref,
            kvpool=self._pool(view),
            cached_blocks=chosen.cached_blocks,
            estimated_ttft_s=chosen.ttft_s,
            reason=decision.reason,
            candidates=tuple(option.candidate() for option in options[:MAX_REPORTED]),
            policy=decision.policy,
            fetch_from=chosen.fetch.owner.ref if chosen.fetch else None,
            fetch_blocks=chosen.fetch.blocks if chosen.fetch else 0,
        )
        self.placer.placed(view, decision, self.sequence)
        self._charge(view, decision)
        self._decisions[ask.request] = placement, (ask.tenant, ask.model_digest)
        self._decisions.move_to_end(ask.request)
        while len(self._decisions) > _REMEMBERED:
            self._decisions.popitem(last=False)
        self._counts[f"placements_{route}"] += 1
        return placement

    def _charge(self, view: View, decision: Decision) -> None:
        """Both sides, until their reports have seen it."""
        ask, chosen, now = view.ask, decision.chosen, view.now
        deadline_s = min(max(0.0, ask.deadline_s), _MOST_DEADLINE_S)
        expires = now + min(deadline_s, self.lost_after_s + _ON_THE_WAY_S)
        decode_work_s = 0.0 if chosen.prefill else chosen.work_s
        shares = [(chosen.decode, decode_work_s, view.pages(chosen.decode))]
        if chosen.prefill:
            shares.append((chosen.prefill, chosen.work_s, 0))
        for worker, work_s, pages in shares:
            computed = ask.prompt_tokens - chosen.cached_blocks * worker.report.block_tokens
            charge = Charge(
                self.sequence,
                ask.request,
                ask.attempt,
                work_s,
                pages,
                expires,
                max(0, computed) if worker is chosen.site else 0,
                min(work_s, self._world.learned.costs(worker.report).step_s),
                now,
            )
            self._world.cluster.charge(worker.report.worker, charge)
        self._world.flights.add(
            Flight(
                request=ask.request,
                attempt=ask.attempt,
                decode=chosen.decode.report.worker,
                starts_s=now + chosen.ttft_s,
                token_s=self._token_s(view, chosen.decode),
                prompt_tokens=ask.prompt_tokens,
                expected_tokens=view.expected_tokens,
                max_tokens=max(1, ask.max_tokens),
                expires=now + deadline_s,
            )
        )

    @staticmethod
    def _token_s(view: View, decode: Worker) -> float:
        sequences = decode.report.load.running_sequences + 1
        context = decode.pages_used() * decode.report.block_tokens
        return max(1e-6, view.step_s(decode, sequences, context))

    def _pool(self, view: View) -> WorkerRef | None:
        """The pool node with the deepest prefix; any ready one when none holds a block."""
        best = view.holders_in_pool(1)
        pools = best or view.pools.workers or self._world.cluster.of_role("kvpool")
        return pools[0].ref if pools else None

    def _count_mismatches(self, view: View) -> None:
        """Workers whose blocks have another size than the request's can hold none of them."""
        ask = view.ask
        for group in (view.prefills, view.decodes):
            if group.workers:
                size = group.workers[0].report.block_tokens
                self._counts["block_size_mismatch"] += ask.prompt_tokens // size != len(
                    ask.block_hashes
                )

    def _nowhere(self, view: View) -> Refused:
        ask, cluster = view.ask, self._world.cluster
        if view.now < self.settled_at:
            return self.refuse(Code.LOADING, "workers are still being heard", 1.0)
        decodes = cluster.of_role("decode")
        able = view.decodes.workers
        needed, group = ("prefill", view.prefills) if able else ("decode", view.decodes)
        if not group.workers and cluster.doubted(needed, ask.model_digest):
            return self.refuse(Code.LOADING, f"every {needed} worker is in doubt", 0.5)
        if decodes and not able:
            return self.refuse(Code.INCOMPATIBLE_WORKERS, "no worker serves this model", 5.0)
        if able and all(d.report.load.pages_total < view.pages(d) for d in able):
            return self.refuse(Code.KV_PAGES_EXHAUSTED, "no decode worker is large enough")
        if able and not view.roomy():
            return self.refuse(Code.KV_PAGES_EXHAUSTED, "all decode workers are full", 1.0)
        layouts = {worker.report.layout_digest for worker in able}
        prefills = {worker.report.layout_digest for worker in cluster.of_role("prefill")}
        if able and prefills and prefills.isdisjoint(layouts) and ask.route == "disaggregated":
            return self.refuse(Code.INCOMPATIBLE_WORKERS, "no prefill and decode match", 5.0)
        return self.refuse(Code.NO_WORKER, "no worker is ready for this route", 1.0)

    def _alive(self, ref: WorkerRef) -> bool:
        worker = self._world.cluster.get(ref.worker)
        return worker is not None and worker.report.epoch == ref.epoch
