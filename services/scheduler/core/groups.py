"""Ready workers by role and model, remembered until anybody's state changes.

Which is rare next to decisions: a decision over a thousand workers sorts and filters nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from services.scheduler.core.columns import Rows

_MOST_GROUPS: Final = 256
"""Requests may name models that nobody serves."""

if TYPE_CHECKING:
    from services.scheduler.core.cluster import Worker


class Group:
    """Ready workers of one role and model, in the order of their names."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self.rows: Rows = np.array([worker.row for worker in workers], dtype=np.int64)
        self.by_name = {worker.report.worker: worker for worker in workers}
        self._masks: dict[str, tuple[int, int]] = {}

    def mask(self, version: int, tier: str, slots: Iterable[int]) -> int:
        """Slots of its workers as one integer; `slots` is read again only in a new version."""
        known = self._masks.get(tier, (-1, 0))
        if known[0] != version:
            mask = 0
            for slot in slots:
                mask |= 1 << slot
            known = self._masks[tier] = (version, mask)
        return known[1]


class Groups:
    """All groups. `change` forgets them."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str | None], Group] = {}

    def change(self) -> None:
        """A worker came, went, or is another one now."""
        self._groups.clear()

    def of_role(self, role: str, workers: Iterable[Worker]) -> list[Worker]:
        """All ready ones."""
        return self._group((role, None), workers).workers

    def of_model(self, role: str, model: str, workers: Iterable[Worker]) -> Group:
        """The ready ones that serve this model."""
        return self._group((role, model), workers)

    def _group(self, key: tuple[str, str | None], workers: Iterable[Worker]) -> Group:
        found = self._groups.get(key)
        if found is None:
            if len(self._groups) >= _MOST_GROUPS:
                self._groups.clear()
            role, model = key
            members = [
                worker
                for worker in workers
                if worker.report.role == role
                and worker.ready
                and model in (None, worker.report.model_digest)
            ]
            members.sort(key=lambda worker: worker.report.worker)
            found = self._groups[key] = Group(members)
        return found
