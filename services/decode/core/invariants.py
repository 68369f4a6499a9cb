"""All invariants of the decode core, re-derived from scratch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

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
    _require(counts.quarantined == quarantined, f"{quarantined} pages in quarantine: {counts}")
    if machine.memory.after_step:
        _require(machine.stepping.running, "pages wait for a step that does not run")


def _check_sequence(machine: DecodeMachine, sequence: Sequence) -> None:
    job = sequence.job
    _require(sequence.stage is not Stage.ENDED, "an ended sequence is still listed")
    _require(not machine.ledger.has_ended(job.request, job.attempt), "a listed attempt is over")
    _require(sequence.generated < job.sampling.max_tokens, "generated more than allowed")
    waits = sequence.stage in (Stage.RESERVED, Stage.PULLING)
    _require(waits == sequence.awaits_prefill, f"{sequence.stage} disagrees with its handoff")
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
        handoff = pull.sequence.handoff
        held = {page.page for page in pull.sequence.pages if page is not None}
        _require(handoff is not None, f"{story} has no handoff")
        _require(all(page.page in held for page in pull.targets), f"{story} lost its targets")
        if handoff is not None:
            known = all(handoff.pulling.get(at) == pull.number for at in pull.positions)
            _require(known, f"{story} is not known to its handoff")


def _require(condition: bool, story: str) -> None:
    if not condition:
        raise InvariantError(story)
