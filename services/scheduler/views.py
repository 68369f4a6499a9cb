"""What the scheduler shows to people: its models, its last decisions, its index."""

from __future__ import annotations

from services.scheduler.core.balance.planner import Look
from services.scheduler.core.machine import SchedulerMachine
from shared.wire.requests import Placement


def view(core: SchedulerMachine, name: str) -> object | None:
    """One view by its name; None for a name that is none."""
    match name:
        case "models":
            return models(core)
        case "placements":
            return {"placements": [placement(p) for p in reversed(core.deciding.recent())]}
        case "index":
            return index(core)
        case "balance":
            return balance(core)
        case _:
            return None


def models(core: SchedulerMachine) -> dict[str, object]:
    """What was learnt of speeds, links and lengths, and who takes longer than expected."""
    learned = core.world.learned
    workers = [
        {
            "worker": worker.report.worker,
            "role": worker.report.role,
            "prefill_step_s": learned.costs(worker.report).step_s,
            "prefill_token_s": learned.costs(worker.report).token_s,
            "prefill_pair_s": learned.costs(worker.report).pair_s,
            "decode_step_s": learned.costs(worker.report).decode_step_s,
            "decode_sequence_s": learned.costs(worker.report).decode_sequence_s,
            "decode_context_token_s": learned.context_token_s(worker.report),
            "trust_factor": round(core.world.trust.factor(worker.report.worker), 3),
        }
        for worker in core.cluster
        if worker.report.role in ("prefill", "decode")
    ]
    return {**learned.shown(), "workers": workers, "asked_again": core.index.ghosts.share}


def index(core: SchedulerMachine) -> dict[str, object]:
    """Size, repairs, and what was contained."""
    found = core.index
    return {
        "blocks": found.blocks,
        "bytes": found.size_bytes,
        "dropped": found.dropped,
        "resyncs": dict(found.resyncs),
        "contained": dict(found.odd),
        "refused": found.refused,
        "counts": dict(core.counts),
    }


def balance(core: SchedulerMachine) -> dict[str, object]:
    """What the planner sees and would do, with its reasons, and the changes so far."""
    found, flips = core.balance, core.balance.flips
    flip = flips.current
    return {
        "mode": found.settings.mode,
        "target": found.settings.target,
        "proposals": found.proposed,
        "flip": flip
        and {
            "worker": flip.worker,
            "from": flip.source,
            "to": flip.to,
            "stage": flip.stage,
            "reason": flip.reason,
        },
        "flips": [
            {"worker": f.worker, "to": f.to, "outcome": f.outcome, "seconds": round(f.seconds, 3)}
            for f in reversed(flips.past)
        ],
        "models": {model: _look(look) for model, look in found.looks.items()},
    }


def _look(look: Look) -> dict[str, object]:
    found, kept, now = look.proposal, look.seen.kept, look.now
    return {
        "workers": {"prefill": look.split.prefill, "decode": look.split.decode},
        "wanted": look.wanted,
        "requests_per_s": round(look.load.rate, 3),
        "ended": kept.ended,
        "attainment": round(kept.share(kept.good), 4),
        "ttft_attainment": round(kept.share(kept.ttft_met), 4),
        "tpot_attainment": round(kept.share(kept.tpot_met), 4),
        "strain": str(look.seen.strain),
        "forecast_attainment": round(now.attainment, 4),
        "proposal": found
        and {
            "from": found.source,
            "to": found.to,
            "workers": {"prefill": found.better.prefill, "decode": found.better.decode},
            "colocated": found.better.colocated,
            "reason": found.reason,
        },
    }


def placement(found: Placement) -> dict[str, object]:
    """One decision with every candidate."""
    return {
        "request": found.request,
        "attempt": found.attempt,
        "policy": found.policy,
        "route": found.route,
        "prefill": found.prefill.worker if found.prefill else None,
        "decode": found.decode.worker,
        "reason": found.reason,
        "cached_blocks": found.cached_blocks,
        "fetch_blocks": found.fetch_blocks,
        "estimated_ttft_s": found.estimated_ttft_s,
        "candidates": [
            {
                "prefill": candidate.prefill,
                "decode": candidate.decode,
                "score": candidate.score_s,
                "terms": candidate.terms,
                "note": candidate.note,
                "lost": candidate.lost,
            }
            for candidate in found.candidates
        ],
    }
