"""Who looks for reference cycles, and when."""

from __future__ import annotations

import gc

from services.scheduler.collecting import Collecting


def test_recent_objects_each_tick_and_all_after_a_quiet_while_or_at_the_latest() -> None:
    was_on = gc.isenabled()
    collecting = Collecting()
    try:
        assert not gc.isenabled()
        assert {collecting.tick(asked=True) for _ in range(50)} == {1}
        assert [collecting.tick(asked=False) for _ in range(20)].count(2) == 1
        assert [collecting.tick(asked=True) for _ in range(480)].count(2) == 1
    finally:
        collecting.stop()
    assert gc.isenabled() == was_on
