"""The default policy: the least delay added to this request and all others, in seconds.

Affinity is a discount, never a veto: it enters through less to compute, to copy and to evict. One
formula spreads requests while waiting dominates, and gathers them when computing does
(algorithms, sections 3.1 to 3.6).
"""

from __future__ import annotations

from typing import Final

from services.scheduler.core.cluster import Worker
from services.scheduler.core.heat import Prefix
from services.scheduler.core.placement.copies import Copies, Plan
from services.scheduler.core.placement.estimates import (
    Reader,
    Site,
    Source,
    burden,
    pair,
    reader,
    site,
    source,
    together,
)
from services.scheduler.core.placement.option import MAX_REPORTED, Chance, Decision, Offer, Option
from services.scheduler.core.placement.view import View
from services.scheduler.core.sessions import stable
from shared.ids import BlockHash

MOST_HOLDERS: Final = 6
MOST_IDLE: Final = 4
MOST_DECODES: Final = 4
MOST_PEERS: Final = 2
_LEAST_PAIRS: Final = 4
_MOST_PAIRS: Final = 8


class Baton:
    """Shortlists, scores, takes the least; between equals whoever had less to do lately."""

    name = "baton"

    def __init__(
        self, chance: Chance, copies: Copies, *, fetch: str = "cheapest", peers: bool = True
    ) -> None:
        """`fetch` 'none' never copies blocks; `peers` lets workers copy from each other."""
        self._chance = chance
        self._copies = copies
        self._fetch = fetch
        self._peers = peers

    def decide(self, view: View, offer: Offer) -> Decision | None:
        """The least score of the shortlisted pairs and colocated workers."""
        options = self._options(view, offer)
        if not options:
            return None
        plan = self._copies.plan(view, options)
        self._discount(view, options, plan)
        options.sort(key=lambda option: option.score)
        chosen, reason = self._choose(view, options, plan)
        reported = options[:MAX_REPORTED]
        if chosen not in reported:
            reported[-1] = chosen
        _explain(reported, chosen)
        return Decision(chosen, reported, reason, self.name)

    def placed(self, view: View, option: Option) -> None:
        self._copies.placed(view, option)

    def hottest(self, now: float, most: int) -> list[tuple[BlockHash, Prefix]]:
        """Prefixes that many requests begin with, hottest first."""
        return self._copies.heat.ranked(now, most)

    # -- who is considered -----------------------------------------------------------------

    def _options(self, view: View, offer: Offer) -> list[Option]:
        decodes = self._decodes(view, offer)
        if not offer.prefill:
            decodes = [decode for decode in decodes if view.may_stay(decode, offer)]
        if not decodes:
            return []
        burdens = [(decode, burden(view, decode)) for decode in decodes]
        options = []
        sources = self._sources(view)
        if offer.colocated:
            options += [
                together(view, site(view, decode, sources), cost)
                for decode, cost in burdens
                if view.may_stay(decode, offer)
            ]
        if offer.prefill and view.prefills.workers:
            options += self._pairs(view, burdens, sources)
        return options

    def _decodes(self, view: View, offer: Offer) -> list[Worker]:
        """Decode workers with room: the lightest, and those that hold the prefix."""
        if offer.only is not None:
            named = view.decodes.by_name.get(offer.only.worker)
            return [named] if named is not None and view.has_room(named) else []
        return view.fresh(view.lightest(MOST_DECODES))

    def _prefills(self, view: View) -> list[Worker]:
        """The deepest holders, the idlest, and where the session was last."""
        group = view.prefills
        chosen = {w.report.worker: w for w in view.holders(group, MOST_HOLDERS)}
        for worker in view.idlest(group, MOST_IDLE):
            chosen.setdefault(worker.report.worker, worker)
        preferred = self._preferred(view)
        if preferred is not None:
            chosen.setdefault(preferred.report.worker, preferred)
        return view.fresh(list(chosen.values()))

    def _sources(self, view: View) -> list[Source]:
        """Who could lend blocks, with how many: the pool node with most, and the deepest peers.
        Only what they have counts: what they will have soon they cannot lend yet."""
        if self._fetch == "none":
            return []
        found = [source(view, pool, view.in_pool(pool)) for pool in view.holders_in_pool(1)]
        deepest = view.holders(view.prefills, MOST_HOLDERS) if self._peers else []
        peers = [source(view, peer, view.held(peer)) for peer in deepest[:MOST_PEERS]]
        if len(peers) > 1 and not peers[1].better(peers[0]):
            peers.pop()
        return found + peers

    def _pairs(
        self,
        view: View,
        burdens: list[tuple[Worker, dict[str, float]]],
        sources: list[Source],
    ) -> list[Option]:
        """Best first by what each side costs alone: a pair costs at least both, so the search
        ends where that bound passes the best pair, or after enough of them. Of equal bounds those
        first that are near the best of both sides: not one worker with every partner."""
        sites: list[tuple[float, Site]] = []
        preferred = self._preferred(view)
        for worker in self._prefills(view):
            at = site(view, worker, sources)
            least_s = at.ttft_s + at.later_s + at.evict_s + at.link_s
            least_s -= (worker is preferred) * self._affinity_s(view)
            sites.append((least_s, at))
        sites.sort(key=_first)
        readers = [reader(view, decode, terms) for decode, terms in burdens]
        readers.sort(key=_least)
        bounds = _bounds(view, sites, readers)
        bounds.sort()
        options: list[Option] = []
        best = float("inf")
        for bound, _, place, turn in bounds:
            if len(options) >= (_LEAST_PAIRS if bound > best else _MOST_PAIRS):
                break
            at, to = sites[place][1], readers[turn]
            if view.compatible(at.worker, to.worker):
                options.append(pair(view, at, to))
                best = min(best, options[-1].score)
        return options

    # -- which one it is -------------------------------------------------------------------

    def _discount(self, view: View, options: list[Option], plan: Plan) -> None:
        """What speaks for the session's worker, and against a copy that is being given up."""
        preferred = self._preferred(view)
        for option in options:
            site_ = option.site
            if site_ is preferred and option.ttft_s <= view.ttft_slo_s:
                option.terms["affinity_s"] = -self._affinity_s(view)
            if plan.retired and plan.gives_up(view, site_):
                saved_s = view.prefill_s(site_, 0) - view.prefill_s(site_, option.cached_blocks)
                option.terms["retired_s"] = max(0.0, saved_s)
            option.score = sum(option.terms.values())

    def _choose(self, view: View, options: list[Option], plan: Plan) -> tuple[Option, str]:
        best = options[0]
        if plan.copy:
            fresh = [option for option in options if not plan.holds(view, option.site)]
            if fresh:
                return fresh[0], f"one more copy of a hot prefix: {plan.why}"
        limit = best.score + max(view.weights.tie_s, view.weights.tie_share * best.ttft_s)
        equal = [option for option in options if option.score <= limit]
        if len(equal) == 1:
            return best, f"least score of {len(options)}: {best.note}"
        chosen = self._among(view, equal)
        return chosen, f"least score of {len(options)}, one of {len(equal)} equals: {chosen.note}"

    def _among(self, view: View, equal: list[Option]) -> Option:
        """Whose worker had least to compute lately: a prefix draws its followers to where it is,
        so new ones belong where fewest are asked for. By lot where that is equal too."""
        lately, now = view.world.paces, view.now
        work = [lately.busy(option.site.report.worker, now) for option in equal]
        least = min(work)
        return self._chance.choice(
            [option for option, done in zip(equal, work, strict=True) if done <= least]
        )

    @staticmethod
    def _affinity_s(view: View) -> float:
        return view.weights.affinity_share * view.ttft_slo_s

    @staticmethod
    def _preferred(view: View) -> Worker | None:
        """Where this session's last prompt was computed; else the same worker every time."""
        ask, sessions = view.ask, view.world.sessions
        if not ask.affinity_key:
            return None
        group = view.prefills if view.prefills.workers else view.decodes
        last = sessions.last((ask.tenant, ask.affinity_key), view.now)
        if last is not None and last in group.by_name:
            return group.by_name[last]
        if not group.workers:
            return None
        return group.workers[stable(ask.tenant, ask.affinity_key) % len(group.workers)]


def _bounds(
    view: View, sites: list[tuple[float, Site]], readers: list[Reader]
) -> list[tuple[float, int, int, int]]:
    """What each pair costs at least, what both cards carry included, then the places of both in
    order."""
    found = []
    delays = [to.receiving.delay_s(to.size_bytes) for to in readers]
    for place, (cost, at) in enumerate(sites):
        for turn, to in enumerate(readers):
            delay_s = max(delays[turn], at.sending.delay_s(to.size_bytes))
            bound = cost + to.least_s
            if delay_s > at.ttft_s:
                bound += view.after_first_s(delay_s - at.ttft_s, to.slack_s)
            found.append((bound, place + turn, place, turn))
    return found


def _first(entry: tuple[float, Site]) -> float:
    return entry[0]


def _least(entry: Reader) -> float:
    return entry.least_s


def _explain(options: list[Option], chosen: Option) -> None:
    """Why each of the others lost: the term in which it was worst against the chosen one."""
    for option in options:
        if option is chosen:
            continue
        loss_s = option.score - chosen.score
        if loss_s <= 0.0:
            option.lost = "better by itself; the reason of the placement outweighs it"
            continue
        term, worst_s = _worst(option.terms, chosen.terms)
        if worst_s <= 0.0:
            option.lost = "equal"
        else:
            option.lost = f"{term} {worst_s * 1e3:+.1f} ms, {loss_s * 1e3:.1f} ms worse in all"


def _worst(terms: dict[str, float], against: dict[str, float]) -> tuple[str, float]:
    """The term that is furthest behind; of equals the first."""
    found, worst_s = "", float("-inf")
    for name, value in terms.items():
        behind_s = value - against.get(name, 0.0)
        if behind_s > worst_s:
            found, worst_s = name, behind_s
    for name, value in against.items():
        if -value > worst_s and name not in terms:
            found, worst_s = name, -value
    return found, worst_s
