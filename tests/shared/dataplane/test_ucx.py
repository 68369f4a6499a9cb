"""What only the UCX adapter can get wrong: hostile sockets, deaths in mid-transfer, leaks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from shared.dataplane import link_wire as wire
from shared.dataplane.link_address import PlaneAddress, parse_address
from shared.dataplane.observer import Cause
from shared.dataplane.ucx import UcxPlane, UcxSettings
from shared.dataplane.ucx_channel import Channel
from shared.dataplane.ucx_exchange import Exchange
from shared.dataplane.ucx_library import label, network_device
from shared.errors import Code, StartupError, TransferError
from shared.ids import Generation, PageId
from tests.shared.dataplane.pages import PAGES, TICKET, ArrayPages, TicketGuard, reads, until
from tests.shared.dataplane.worlds import UcxWorld, owner_and_reader

BIG = 1 << 20
LONG_S = 20.0


# -- transport -------------------------------------------------------------------------------


async def test_the_transport_in_use_is_told(world: UcxWorld) -> None:
    owner, reader = await owner_and_reader(world)
    expected = "shm" if world.settings.transport == "auto" else "tcp"
    assert reader.plane.transport == f"ucx:{world.settings.transport}"
    report = await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    assert report.transport == reader.plane.transport == f"ucx:{expected}"
    assert reader.observer.links == {expected: 1}
    assert reader.observer.bytes == {f"pulled:{expected}": 4096}
    await reader.plane.close()
    assert reader.observer.links == {expected: 0}
    assert owner.observer.bytes == {f"served:{expected}": 4096}


async def test_shared_memory_only_refuses_a_peer_elsewhere() -> None:
    world = UcxWorld("shm")
    owner, reader = await owner_and_reader(world)
    report = await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    assert report.transport == "ucx:shm"
    address = parse_address(owner.plane.address)
    elsewhere = str(PlaneAddress(address.host, address.port, "another-host", address.key))
    with pytest.raises(TransferError) as refusal:
        await reader.plane.read(elsewhere, TICKET, reads([(2, 2)]), LONG_S)
    assert refusal.value.code is Code.INCOMPATIBLE_WORKERS
    assert reader.observer.failures == {Cause.INCOMPATIBLE: 1}
    await world.close()


async def test_auto_takes_tcp_to_a_peer_on_another_host() -> None:
    world = UcxWorld("auto")
    owner, reader = await owner_and_reader(world)
    address = parse_address(owner.plane.address)
    elsewhere = str(PlaneAddress(address.host, address.port, "another-host", address.key))
    report = await reader.plane.read(elsewhere, TICKET, reads([(1, 1)]), LONG_S)
    assert report.transport == "ucx:tcp"
    await world.close()


def test_lane_labels() -> None:
    assert label(("sysv", "posix")) == "shm"
    assert label(("cuda_copy", "tcp")) == "tcp"
    assert label(("cuda_ipc", "sysv", "tcp")) == "cuda_ipc"
    assert label(("rc_mlx5", "tcp")) == "rdma"
    assert label(()) == "unknown"


def test_ucx_listens_only_where_we_do() -> None:
    assert network_device("127.0.0.1") == "lo"
    assert network_device("::1") == "lo"
    assert network_device("203.0.113.9") == ""


async def test_warming_opens_the_link_and_a_quiet_link_costs_nothing(world: UcxWorld) -> None:
    greeted: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def listen(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.set_result(await stream.readexactly(1))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    owner, reader = await owner_and_reader(world)
    port = server.sockets[0].getsockname()[1]
    reader.plane.warm(f"ucx://127.0.0.1:{port}/x/key")
    async with asyncio.timeout(10):
        assert await greeted == bytes((wire.Kind.HELLO,))
    server.close()
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    await asyncio.sleep(0.05)
    used_s = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - used_s < 0.1


async def test_large_reads_travel_in_portions_under_one_window() -> None:
    """What a slow reader has under way is bounded, whatever it wants."""
    world = UcxWorld("tcp")
    world.settings = replace(
        world.settings, portion_bytes=2 * BIG, window_bytes=4 * BIG, total_bytes=8 * BIG
    )
    owner, reader = await owner_and_reader(world, BIG)
    most = 0

    def granted(ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        nonlocal most
        assert len(pages) <= 2
        read = TicketGuard.open_read(owner.guard, ticket, pages)
        most = max(most, len(owner.guard.open))
        return read

    owner.guard.open_read = granted  # type: ignore[method-assign]
    pages = reads([(page, page) for page in range(PAGES)])
    await reader.plane.read(owner.plane.address, TICKET, pages, LONG_S)
    assert np.array_equal(owner.pages.array, reader.pages.array)
    assert owner.guard.opened == 32
    assert most <= 2
    await world.close()


# -- death and delay in the middle ------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("blow", ["kill", "stall"])
async def test_the_owner_goes_in_mid_transfer(world: UcxWorld, blow: str) -> None:
    """BR-073: 64 MiB under way, the owner is killed or stopped; the reader's process lives, the
    read ends, and the pages are still from then on."""
    owner, reader = await world.far_owner(BIG), await world.end(BIG)
    pages = reads([(page, page) for page in range(PAGES)])
    await reader.plane.read(owner.address, TICKET, pages[:1], LONG_S)
    reader.pages.array[:] = 0xEE
    read = asyncio.create_task(reader.plane.read(owner.address, TICKET, pages, 1.5))
    await until(lambda: read.done() or not reader.pages.untouched([0]))
    await (owner.kill() if blow == "kill" else owner.stall())
    failure: BaseException | None = None
    try:
        await read
    except TransferError as error:
        failure = error
        assert error.settled
    before = reader.pages.array.copy()
    if blow == "stall":
        await owner.resume()
    else:
        await owner.restart()
    await reader.plane.read(owner.address, TICKET, pages[-1:], LONG_S)
    assert np.array_equal(before[:-1], reader.pages.array[:-1])
    assert failure is not None or not reader.pages.untouched(range(PAGES))


async def test_the_reader_goes_in_mid_transfer(world: UcxWorld) -> None:
    """BR-071: the owner counts nothing as served that was cut off, and closes each read once."""
    owner, reader = await owner_and_reader(world, BIG)
    pages = reads([(page, page) for page in range(PAGES)])
    await reader.plane.read(owner.plane.address, TICKET, pages[:1], LONG_S)
    read = asyncio.create_task(reader.plane.read(owner.plane.address, TICKET, pages, LONG_S))
    await until(lambda: owner.guard.opened >= 2)
    await reader.plane.close()
    with pytest.raises(TransferError):
        await read
    await until(lambda: not owner.guard.open)
    assert sum(owner.observer.bytes.values()) < 65 * BIG
    assert owner.observer.turned[Cause.LOST] >= 1


async def test_a_read_that_drains_in_time_keeps_the_link() -> None:
    """A cancelled read of a healthy peer costs the other reads of that link nothing."""
    world = UcxWorld("auto", settle_s=10.0)
    owner, reader = await owner_and_reader(world, BIG)
    pages = reads([(page, page) for page in range(PAGES)])
    await reader.plane.read(owner.plane.address, TICKET, pages[:1], LONG_S)
    other = asyncio.create_task(reader.plane.read(owner.plane.address, TICKET, pages[32:], LONG_S))
    doomed = asyncio.create_task(reader.plane.read(owner.plane.address, TICKET, pages[:32], LONG_S))
    await until(lambda: owner.guard.opened >= 3)
    doomed.cancel()
    await asyncio.wait({doomed, other})
    assert doomed.cancelled()
    assert (await other).pages == 32
    assert reader.observer.links == {"shm": 1}
    await world.close()


# -- starting, closing, leaking ---------------------------------------------------------------


async def test_a_hundred_open_and_close_cycles_leave_nothing(world: UcxWorld) -> None:
    """BR-072: no pending task, no open read, no growing number of descriptors."""
    descriptors: list[int] = []
    for _ in range(4):
        for _ in range(25):
            owner, reader = await owner_and_reader(world, 64)
            await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
            await owner.plane.close()
            await reader.plane.close()
        await asyncio.sleep(0)
        tasks = {task.get_name() for task in asyncio.all_tasks()}
        assert not {name for name in tasks if name.startswith("plane-")}
        descriptors.append(len(os.listdir("/proc/self/fd")))
    assert all(after <= before + 2 for before, after in pairwise(descriptors)), descriptors


@pytest.mark.parametrize("side", ["owner", "reader"])
async def test_a_broken_memory_of_ours_fails_the_read_only(
    world: UcxWorld, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    owner, reader = await owner_and_reader(world)
    await reader.plane.read(owner.plane.address, TICKET, reads([(0, 0)]), LONG_S)
    posting = Channel.posting

    def broken(channel: Channel) -> Exchange:
        if channel.region.address == ours:
            raise RuntimeError("no such pages")
        return posting(channel)

    ours = {"owner": owner.pages, "reader": reader.pages}[side].array.ctypes.data
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "posting", broken)
        with pytest.raises(TransferError) as failure:
            two_runs = reads([(1, 1), (3, 2)])
            await reader.plane.read(owner.plane.address, TICKET, two_runs, LONG_S)
    assert failure.value.settled
    await reader.plane.read(owner.plane.address, TICKET, reads([(2, 2)]), LONG_S)
    assert sum(end.observer.failures[Cause.INTERNAL] for end in (owner, reader)) >= 1


async def test_it_does_not_start_without_what_it_needs() -> None:
    with pytest.raises(StartupError):
        UcxPlane(UcxSettings(transport="carrier pigeon"))
    with pytest.raises(StartupError):
        await UcxPlane(UcxSettings()).start()
    world = UcxWorld("tcp")
    taken = parse_address((await world.end()).plane.address).port
    for settings in (
        UcxSettings(port=taken),
        UcxSettings(host="203.0.113.9"),
        UcxSettings(host="0.0.0.0"),
    ):
        plane = UcxPlane(settings)
        plane.register(ArrayPages(1, 64), TicketGuard())
        with pytest.raises(StartupError):
            await plane.start()
        await plane.close()
    await world.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ucx://",
        "ucx://localhost:1/x/y",
        "http://127.0.0.1:1/x/y",
        "ucx://127.0.0.1/x/y",
        "ucx://127.0.0.1:1",
        "ucx://127.0.0.1:1/x",
        "ucx://127.0.0.1:1/x/",
        "ucx://127.0.0.1:1//y",
        "ucx://127.0.0.1:1/x/y/z",
        "ucx://127.0.0.1:99999/x/y",
        "ucx://[::1/x/y",
        "u" * 300,
    ],
)
async def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(TransferError):
        parse_address(text)
    world = UcxWorld("tcp")
    reader = await world.end()
    with pytest.raises(TransferError):
        await reader.plane.read(text, TICKET, reads([(1, 1)]), LONG_S)
    await world.close()


def test_addresses_round_trip() -> None:
    for address in (PlaneAddress("127.0.0.1", 4, "-", "k"), PlaneAddress("::1", 65535, "abc", "d")):
        assert parse_address(str(address)) == address
    assert "secret" not in repr(PlaneAddress("::1", 1, "-", "secret"))
