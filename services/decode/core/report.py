"""What the outside is told of a decode core: load for the scheduler, accounting for everyone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from services.decode.core.machine import DecodeMachine
from services.decode.core.sequences import Sequence, Stage
from shared.costs import filled_s
from shared.wire.workers import MOST_READING, CostModel, Reading, WorkerLoad


def load(machine: DecodeMachine, cost: CostModel) -> WorkerLoad:
    """At this moment. What waits for prefill's pages occupies memory, not the engine."""
    sequences = machine.desk.sequences.values()
    waiting = machine.admission.waiting
    fills = [s for s in sequences if s.batchable and not s.decoding]
    parked = [s for s in sequences if s.stage is Stage.PARKED]
    decoding = sum(1 for s in sequences if s.decoding)
    budget = machine.stepping.budget
    fill_tokens = budget.left(decoding)
    ahead = [*fills, *parked, *(s for s in waiting if s.handoff is None)]
    cache = machine.desk.cache
    return WorkerLoad(
        queued_requests=len(waiting) + len(parked),
        queued_tokens=sum(sequence.open_tokens() for sequence in ahead),
        running_sequences=len(sequences) - len(parked),
        work_left_s=sum(_seconds(s, cost, fill_tokens, decoding) for s in ahead),
        pages_total=machine.desk.pages,
        pages_free=cache.available,
        placement_sequence=machine.admission.placement_sequence,
        step_tokens=budget.step_tokens,
        reading=tuple(islice(_reading(machine), MOST_READING)),
    )


def accounting(machine: DecodeMachine) -> dict[str, object]:
    """The outside view that proves that nothing leaks: all but `pages` is zero at rest."""
    counts = machine.desk.cache.counts()
    awaiting = sum(1 for s in machine.desk.sequences.values() if s.awaits_prefill)
    return {
        "held_pages": counts.total - counts.free - counts.cached,
        "leases": awaiting + machine.leases.releasing,
        "requests": len(machine.desk.sequences) + len(machine.admission.waiting),
        "open_reads": machine.pulls.reading,
        "quarantined": counts.quarantined,
        "pages": {
            "free": counts.free,
            "referenced": counts.referenced,
            "cached": counts.cached,
            "leased": counts.leased,
            "quarantined": counts.quarantined,
        },
    }


def _reading(machine: DecodeMachine) -> Iterator[Reading]:
    """What is not here and proven, of prefill and of the pool."""
    for sequence in machine.desk.sequences.values():
        handoff, fetch = sequence.handoff, sequence.fetch
        if handoff is not None and not handoff.committed:
            yield Reading(handoff.owner.worker, len(handoff.wanted))
        elif fetch is not None:
            yield Reading(fetch.pool.worker, fetch.last - fetch.first)
    for sequence in machine.admission.waiting:
        if sequence.handoff is not None:
            pages = -(-sequence.prompt_tokens // sequence.block_tokens)
            yield Reading(sequence.handoff.owner.worker, pages)


def _seconds(sequence: Sequence, cost: CostModel, fill_tokens: int, decoding: int) -> float:
    """Engine seconds to compute what this sequence lacks, in chunks beside what runs."""
    left = sequence.open_tokens()
    return filled_s(cost, left, len(sequence.tokens) - left, fill_tokens, decoding)
