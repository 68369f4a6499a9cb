"""Who waits for a read is told of its end, of its limit, and of nothing twice."""

from __future__ import annotations

import asyncio

import pytest

from shared.dataplane.deadlines import Deadlines
from shared.dataplane.flow import Portion
from shared.dataplane.transfer import Transfer
from shared.errors import TransferError

LONG_S = 60.0


def transfer(deadlines: Deadlines, portions: int = 1) -> Transfer:
    waiting = (Portion((), 1),) * portions
    return Transfer("ticket", waiting, deadlines.now() + LONG_S, deadlines)


async def test_a_wait_ends_with_the_last_portion() -> None:
    read = transfer(Deadlines(), portions=2)
    waiter = read.wait(read.limit_s)
    read.portion_ended()
    assert not read.over and not waiter.done()
    read.portion_ended()
    await waiter
    assert read.over


async def test_a_wait_for_what_is_over_ends_at_once() -> None:
    read = transfer(Deadlines())
    read.cut_off(TransferError("gone"))
    assert read.wait(read.limit_s).done()


async def test_a_limit_ends_the_wait_and_not_the_read() -> None:
    deadlines = Deadlines()
    read, other = transfer(deadlines), transfer(deadlines)
    still = other.wait(other.limit_s)
    await read.wait(deadlines.now())
    assert not read.over and not still.done()
    again = read.wait(read.limit_s)
    read.portion_ended()
    await again
    assert read.over and not still.done()
    deadlines.close()


async def test_a_cancelled_wait_may_be_taken_up_again() -> None:
    read = transfer(Deadlines())

    async def wait() -> None:
        await read.wait(read.limit_s)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not read.over
    again = read.wait(read.limit_s)
    read.give_up(1, TransferError("nobody waits"))
    await again
    assert read.over and read.failure is not None
