"""Rarer collections of cyclic garbage while a run makes millions of short-lived objects.

Almost all of them are freed as their last reference goes; looking through the living ones for
cycles took a tenth of a run's time. What there was before the run is not looked at meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG, _MIDDLE, _OLD = 100_000, 20, 100
"""Objects made, and collections of the younger kind, until the next collection."""
_NONE: Final = 0


@contextmanager
def rare() -> Iterator[None]:
    """For the length of a run; nested runs change nothing."""
    before = gc.get_threshold()
    nested = gc.get_freeze_count() > _NONE
    if not nested:
        gc.freeze()
        gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    try:
        yield
    finally:
        if not nested:
            gc.set_threshold(*before)
            gc.unfreeze()
