"""The pump waits for a peer that answers soon, not for one that does not, and never when idle."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from shared.dataplane import ucx_pump
from shared.dataplane.ucx_pump import Pump
from tests.shared.dataplane.pages import until


class Channel:
    """Implements Movable: moves when told to, remembers when it went to sleep."""

    def __init__(self, expects: bool) -> None:
        self.expects = expects
        self.moves = 0
        self.turns = 0
        self.slept = 0
        self.woken = 0

    def turn(self, patience_ns: int) -> bool:
        self.turns += 1
        moved = self.moves > 0
        self.moves -= moved
        return moved

    def sleep(self) -> bool:
        self.slept += 1
        return True

    def awoken(self) -> None:
        self.woken += 1


def slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes 5 us, whatever else the machine does."""
    looks = itertools.count()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: next(looks) * 0.000005)


async def test_it_waits_a_while_for_a_peer_that_may_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pump, patient, idle = Pump(), Channel(expects=True), Channel(expects=False)
    slow_down(monkeypatch)
    for channel in (patient, idle):
        pump.wake(channel)
        await until(lambda seen=channel: seen.slept > 0)  # type: ignore[misc]
    assert patient.turns > 2 * idle.turns > 0


async def test_it_does_not_wait_where_nothing_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    pump, idle, busy = Pump(), Channel(expects=False), Channel(expects=True)
    slow_down(monkeypatch)
    busy.moves = 50
    pump.wake(busy)
    pump.wake(idle)
    await until(lambda: idle.slept > 0)
    assert busy.slept == 0
    pump.drop(busy)


async def test_other_callbacks_run_while_bytes_flow() -> None:
    pump, channel = Pump(), Channel(expects=True)
    channel.moves = 10**9
    pump.wake(channel)
    started_s, rounds = time.monotonic(), 20
    for _ in range(rounds):
        await asyncio.sleep(0)
    assert channel.turns > 0
    assert time.monotonic() - started_s < rounds * 100 * ucx_pump.SLICE_S
    pump.drop(channel)


async def test_a_dropped_channel_is_left_alone() -> None:
    pump, channel = Pump(), Channel(expects=True)
    pump.wake(channel)
    pump.drop(channel)
    for _ in range(5):
        await asyncio.sleep(0)
    assert channel.turns == 0
