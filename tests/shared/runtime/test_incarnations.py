"""Older incarnations are refused; epochs that begin anew are not, after a while."""

from __future__ import annotations

from shared.ids import Epoch, WorkerId
from shared.runtime.incarnations import Incarnations
from shared.runtime.leader import MEMORY_S

A, B = WorkerId("a"), WorkerId("b")


def test_the_newest_that_spoke_counts() -> None:
    heard = Incarnations()
    assert not heard.outdated(A, None, 0.0)
    assert not heard.outdated(A, 3, 0.0)
    assert heard.outdated(A, 2, 1.0)
    assert heard.outdated(A, None, 1.0)
    assert not heard.outdated(A, 3, 1.0)
    assert not heard.outdated(B, 1, 1.0)


def test_a_successor_counts_before_it_speaks() -> None:
    heard = Incarnations()
    heard.replaced(A, Epoch(3), 0.0)
    assert heard.outdated(A, 3, 0.0)
    assert not heard.outdated(A, 4, 0.0)


def test_epochs_may_begin_anew_after_a_while() -> None:
    """The store that counts them was lost."""
    heard = Incarnations()
    assert not heard.outdated(A, 9, 0.0)
    assert heard.outdated(A, 1, MEMORY_S)
    assert not heard.outdated(A, 1, MEMORY_S + 0.1)


def test_the_table_is_bounded() -> None:
    heard = Incarnations()
    heard.outdated(A, 9, 0.0)
    for number in range(2000):
        heard.outdated(WorkerId(f"w{number}"), 1, 0.0)
    assert not heard.outdated(A, 1, 0.0)
