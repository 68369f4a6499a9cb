"""Blocks of one burst are read once: siblings take over what a read brings, if it does."""

from __future__ import annotations

import pytest

from services.decode.core import actions as do
from services.decode.core import events as on
from shared.errors import Code
from shared.wire.requests import DecodeJob

from .rig import BLOCK, Rig, flip, job

HEAD = tuple(100 + at for at in range(4 * BLOCK))


def siblings(count: int) -> list[DecodeJob]:
    """Four blocks in common, one of their own, and a token."""
    return [
        job(f"r{n}", [*HEAD, *(200 + 5 * n + at for at in range(BLOCK + 1))]) for n in range(count)
    ]


def burst(rig: Rig, jobs: list[DecodeJob]) -> None:
    """All are announced before any page has come."""
    for one in jobs:
        rig.submit(one)
    for one in jobs:
        ready = rig.prefill.compute(one, 100)
        rig.first_token(one, ready)
        rig.announce(*ready)


def test_a_block_that_is_on_its_way_is_not_read_again() -> None:
    rig, jobs = Rig(pages=128), siblings(3)
    burst(rig, jobs)
    rig.run()
    for one in jobs:
        rig.finished(one)
    assert rig.pulled_pages == 6 + 2 * 2, "the head once, and two pages of each"
    assert rig.machine.counts["pulls_shared"] == 2 * 4
    rig.at_rest()


@pytest.mark.parametrize("how", ["cancelled", "damaged", "refused", "unsettled"])
def test_siblings_read_for_themselves_what_another_read_did_not_bring(how: str) -> None:
    rig, jobs = Rig(pages=128), siblings(3)
    burst(rig, jobs)
    pull = rig.take(do.Pull)
    assert isinstance(pull, do.Pull) and len(pull.reads) == 6
    if how == "cancelled":
        rig.cancel("r0")
        rig.end_pull(pull)
    elif how == "damaged":
        rig.end_pull(pull, flip)
    else:
        settled = how == "refused"
        rig.send(on.PullEnded(pull.pull, Code.TRANSFER_FAILED, settled=settled))
    rig.run()
    for one in jobs[how == "cancelled" :]:
        rig.finished(one)
    assert rig.machine.counts["recomputed_blocks"] == 0
    rig.at_rest(unsettled=6 if how == "unsettled" else 0)


def test_a_sibling_that_ends_meanwhile_takes_nothing_over() -> None:
    rig, jobs = Rig(pages=128), siblings(3)
    burst(rig, jobs)
    rig.cancel("r1")
    rig.run()
    for one in (jobs[0], jobs[2]):
        rig.finished(one)
    rig.at_rest()
