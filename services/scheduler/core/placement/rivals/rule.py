"""The shape of a rival: it ranks the workers that could compute a prompt, in its own unit.

A rival knows one worker per request, as its system does; who decodes is told by a second rule. What
its choice would take is estimated by our models all the same, so that promises can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from services.scheduler.core.cluster import Worker
from services.scheduler.core.placement.decode_rules import DecodeRule
from services.scheduler.core.placement.estimates import Site, burden, pair, reader, site, together
from services.scheduler.core.placement.option import MAX_REPORTED, Decision, Fetch, Offer, Option
from services.scheduler.core.placement.view import View


@dataclass(slots=True)
class Ranked:
    """One worker as a rule sees it; the least value is best."""

    worker: Worker
    value: float
    note: str = ""
    fetch_from: Worker | None = None
    """Whose blocks it would copy first."""


class Rule(Protocol):
    """Named like the policy. `rank` gives at least one entry for at least one worker, the chosen
    one first; `placed` tells it that the request went there."""

    name: str

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]: ...

    def placed(self, view: View, worker: Worker) -> None: ...


class Rival:
    """A rule for the prompt and a rule for decode, as a policy."""

    def __init__(self, rule: Rule, decode_rule: DecodeRule) -> None:
        self.name = rule.name
        self._rule = rule
        self._decode_rule = decode_rule

    def decide(self, view: View, offer: Offer) -> Decision | None:
        """Of a pair and a colocated worker, when both are allowed, the one that would have its
        first token sooner."""
        found = [self._pairs(view, offer), self._together(view, offer)]
        ranked = [options for options in found if options]
        if not ranked:
            return None
        best = min(ranked, key=lambda options: options[0].ttft_s)
        options = [*best, *(option for other in ranked if other is not best for option in other)]
        for option in options[1:]:
            option.lost = f"{option.score:.4g} against {options[0].score:.4g}"
        reason = f"{self.name}: {options[0].note}"
        return Decision(options[0], options[:MAX_REPORTED], reason, self.name)

    def placed(self, view: View, option: Option) -> None:
        self._rule.placed(view, option.site)

    # -- inside ----------------------------------------------------------------------------

    def _pairs(self, view: View, offer: Offer) -> list[Option]:
        if not offer.prefill:
            return []
        decodes = view.roomy()
        layouts = {decode.report.layout_digest for decode in decodes}
        workers = [
            w for w in view.fresh(view.prefills.workers) if w.report.layout_digest in layouts
        ]
        options: list[Option] = []
        for entry in self._rule.rank(view, workers) if workers else []:
            partners = [d for d in decodes if view.compatible(entry.worker, d)]
            if not partners or len(options) >= MAX_REPORTED:
                continue
            decode = self._decode_rule(view, partners) if not options else partners[0]
            option = pair(view, _site(view, entry), reader(view, decode, burden(view, decode)))
            options.append(_scored(option, entry))
        return options

    def _together(self, view: View, offer: Offer) -> list[Option]:
        workers = view.colocated(offer)
        ranked = self._rule.rank(view, workers)[:MAX_REPORTED] if workers else []
        return [
            _scored(together(view, _site(view, entry), burden(view, entry.worker)), entry)
            for entry in ranked
        ]


def _site(view: View, entry: Ranked) -> Site:
    """What the choice takes; nothing is copied that the rule did not ask for."""
    plain = site(view, entry.worker, [])
    owner = entry.fetch_from
    if owner is None:
        return plain
    depth = min(view.cached(owner), view.cached_limit(entry.worker))
    if depth <= plain.cached:
        return plain
    blocks = depth - plain.cached
    fetch = Fetch(owner, blocks, view.transfer_s(entry.worker, owner, blocks))
    prefill_s = view.prefill_s(entry.worker, depth)
    later_s = view.later_s(entry.worker, plain.wait_s, prefill_s)
    ttft_s = max(plain.wait_s, fetch.seconds) + prefill_s
    return replace(plain, fetch=fetch, prefill_s=prefill_s, later_s=later_s, ttft_s=ttft_s)


def _scored(option: Option, entry: Ranked) -> Option:
    option.score = entry.value
    if entry.note:
        option.note = f"{entry.note}; {option.note}"
    return option
