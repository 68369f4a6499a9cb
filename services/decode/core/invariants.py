"""All invariants of the decode core, re-derived from scratch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from services.decode.core.admission import BYPASS_LIMIT
from services.decode.core.rules import pages_for
from services.decode.core.sequences import Sequence, Stage
from shared.ids import PageId
from shared.kv.invariants import InvariantError

if TYPE_CHECKING:
    from services.decode.core.machine import DecodeMachine


def check(machine: DecodeMachine) -> None:
    """Raise InvariantError with the story of the first contradiction."""
    machine.desk.cache.check()
    _check_pages(machine)
    for request, sequence in machine.desk.sequences.items():
        try:
            _check_sequence(machine, sequence)
        except InvariantError as error:
            raise InvariantError(f"{error}\n{machine.story(request)}") from None
    _check_pulls(machine)
    _check_order(machine)


def _check_order(machine: DecodeMachine) -> None:
    """Every running page is readable by its owner alone, except what is offered to the pool; one
    order decides who goes first; nobody waits behind more than a few who came later."""
    offered, leases = len(machine.offering.open), machine.desk.cache.counts().leases
    _require(offered == leases, f"{leases} leases but {offered} offers")
    ranks = [sequence.rank for sequence in machine.desk.sequences.values()]
    _require(len(set(ranks)) == len(ranks), f"two sequences of one rank: {ranks}")
    passed = machine.admission.most_passed
    _require(passed <= BYPASS_LIMIT, f"a job was passed {passed} times")
    quantile = machine.forecast.quantile
    _require(0.0 < quantile < 1.0, f"a forecast by the quantile {quantile}")
    peak, total = machine.forecast.peak_pages(), machine.desk.pages
    held = {p.page for s in machine.desk.sequences.values() for p in s.pages if p is not None}
    _require(peak >= len(held), f"{len(held)} pages are held beyond the peak of {peak}")
    _require(len(held) <= total, f"{len(held)} of {total} pages are held")


def _check_pages(machine: DecodeMachine) -> None:
    """I1, I2, I8: every reference has an owner here, every quarantined page an open read."""
    expected: Counter[PageId] = machine.sealing.references()
    expected.update(page.page for page in machine.memory.after_step)
    for sequence in machine.desk.sequences.values():
        expected.update(page.page for page in sequence.pages if page is not None)
    actual = machine.desk.cache.references()
    _require(dict(expected) == actual, f"references {actual} but held {dict(expected)}")
    counts = machine.desk.cache.counts()
    quarantined = len(machine.memory.unfinished)
    # What the pool still reads of an offer that was withdrawn counts as quarantined, too.
    right = quarantined == counts.quarantined or counts.open_reads
    _require(
        bool(right) and quarantined <= counts.quarantined,
        f"{quarantined} pages in quarantine: {counts}",
    )
    if machine.memory.after_step:
        _require(machine.stepping.running, "pages wait for a step that does not run")


def _check_sequence(machine: DecodeMachine, sequence: Sequence) -> None:
    job = sequence.job
    _require(sequence.stage is not Stage.ENDED, "an ended sequence is still listed")
    _require(not machine.ledger.has_ended(job.request, job.attempt), "a listed attempt is over")
    _require(sequence.generated < job.sampling.max_tokens, "generated more than allowed")
    waits = sequence.stage in (Stage.RESERVED, Stage.PULLING)
    _require(waits == sequence.awaits_prefill, f"{sequence.stage} disagrees with its handoff")
    fetching = sequence.stage is Stage.FETCHING
    _require(fetching == (sequence.fetch is not None), f"{sequence.stage} disagrees with its fetch")
    _require(not (fetching and sequence.in_step), "computes what it fetches")
    full = len(sequence.tokens) // sequence.block_tokens
    _require(sequence.kept_blocks <= full, "the pool keeps more than there is")
    if sequence.stage is Stage.PARKED:
        _require(not sequence.pages and not sequence.in_step, "a parked sequence holds pages")
    if sequence.batchable:
        _check_positions(sequence)
    if sequence.preemptions > machine.desk.rules.preemptions:
        raise InvariantError("preempted too often")


def _check_positions(sequence: Sequence) -> None:
    """Positions that count as computed have pages; exactly the others are to be computed."""
    size = sequence.block_tokens
    _require(0 <= sequence.kv_tokens < len(sequence.tokens), "nothing is left to compute")
    holes = sequence.holes
    _require(holes == sorted(set(holes)), f"holes are out of order: {holes}")
    if holes:
        _require((holes[-1] + 1) * size < sequence.kv_tokens, f"{holes} touch the end")
    for position in range(pages_for(sequence.kv_tokens, size)):
        present = position < len(sequence.pages) and sequence.pages[position] is not None
        _require(present or position in holes, f"computed block {position} has no page")


def _check_pulls(machine: DecodeMachine) -> None:
    for pull in machine.pulls:
        story = f"pull {pull.number} of {pull.sequence.key}"
        _require(pull.orphan == (pull.sequence.stage is Stage.ENDED), f"{story}: orphan or not")
        if pull.orphan:
            continue
        handoff, fetch = pull.sequence.handoff, pull.sequence.fetch
        held = {page.page for page in pull.sequence.pages if page is not None}
        _require(all(page.page in held for page in pull.targets), f"{story} lost its targets")
        if pull.source is not None:
            _require(fetch is not None and fetch.pull == pull.number, f"{story} is nobody's")
            continue
        _require(handoff is not None, f"{story} has no handoff")
        if handoff is not None:
            known = all(handoff.pulling.get(at) == pull.number for at in pull.positions)
            _require(known, f"{story} is not known to its handoff")


def _require(condition: bool, story: str) -> None:
    if not condition:
        raise InvariantError(story)
