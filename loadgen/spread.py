"""Independent runs over all cores: the calls are inherited by forked processes, so that they may
be closures; only their results travel.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_Result = TypeVar("_Result")
_calls: Sequence[Callable[[], object]] = ()


def spread(calls: Sequence[Callable[[], _Result]], jobs: int) -> Iterator[_Result]:
    """Results in order of the calls, each as soon as it and those before it are there. What a call
    raises is raised here."""
    if jobs <= 1 or len(calls) <= 1:
        for call in calls:
            yield call()
        return
    global _calls
    _calls = calls
    with multiprocessing.get_context("fork").Pool(min(jobs, len(calls))) as pool:
        yield from pool.imap(_at, range(len(calls)))


def _at(place: int) -> object:
    return _calls[place]()
