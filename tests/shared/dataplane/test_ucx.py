"""What only the UCX adapter can get wrong: hostile sockets, deaths in mid-transfer, leaks."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from itertools import pairwise

import numpy as np
import pytest

from shared.clock import SystemClock
from shared.dataplane import ucx_owner
from shared.dataplane import ucx_wire as wire
from shared.dataplane.observer import Cause
from shared.dataplane.ucx import UcxPlane, UcxSettings
from shared.dataplane.ucx_address import PlaneAddress, parse_address
from shared.dataplane.ucx_library import label, network_device
from shared.errors import Code, StartupError, TransferError
from tests.shared.dataplane.pages import PAGES, TICKET, ArrayPages, TicketGuard, reads, until
from tests.shared.dataplane.worlds import End, UcxWorld

BIG = 1 << 20
LONG_S = 20.0


@pytest.fixture(params=["auto", "tcp"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[UcxWorld]:
    built = UcxWorld(request.param)
    yield built
    await built.close()
    assert [end.guard.open for end in built.ends] == [set()] * len(built.ends)


async def owner_and_reader(world: UcxWorld, page_bytes: int = 4096) -> tuple[End, End]:
    owner, reader = await world.end(page_bytes), await world.end(page_bytes)
    owner.pages.stamp()
    return owner, reader


async def dial(end: End) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = parse_address(end.plane.address)
    return await asyncio.open_connection(address.host, address.port)


async def hung_up(stream: asyncio.StreamReader, within_s: float = 5.0) -> bytes:
    """What the peer still said before it closed."""
    async with asyncio.timeout(within_s):
        try:
            return await stream.read()
        except ConnectionError:
            return b""


def ask(ticket: str = TICKET, hello: bytes = b"", first: int = 1, page_bytes: int = 4096) -> bytes:
    body = wire.Ask(
        1, 0, page_bytes, 1000, ticket, wire.prove(ticket, hello), (wire.PageRun(first, (2,)),)
    ).encode()
    return wire.frame(wire.Kind.ASK, body)


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
    elsewhere = str(PlaneAddress(address.host, address.port, "another-host"))
    with pytest.raises(TransferError) as refusal:
        await reader.plane.read(elsewhere, TICKET, reads([(2, 2)]), LONG_S)
    assert refusal.value.code is Code.INCOMPATIBLE_WORKERS
    assert reader.observer.failures == {Cause.UNREACHABLE: 1}
    await world.close()


async def test_auto_takes_tcp_to_a_peer_on_another_host() -> None:
    world = UcxWorld("auto")
    owner, reader = await owner_and_reader(world)
    address = parse_address(owner.plane.address)
    elsewhere = str(PlaneAddress(address.host, address.port, "another-host"))
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


# -- hostile and silent peers ----------------------------------------------------------------


async def test_a_silent_listener_does_not_hang_a_read(world: UcxWorld) -> None:
    """BR-074: accepts, and says nothing."""
    opened: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: opened.append(writer), "127.0.0.1", 0)
    reader = await world.end()
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(f"ucx://127.0.0.1:{port}/x", TICKET, reads([(1, 1)]), 0.3)
    assert failure.value.settled
    assert loop.time() - started_s < 5
    for writer in opened:
        writer.close()
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        wire.frame(wire.Kind.WELCOME, b"p" * 16 + b"forged address"),
        wire.frame(wire.Kind.VERDICT, wire.Verdict(1, wire.Answer.ACCEPTED).encode()),
        wire.frame(wire.Kind.HELLO, b""),
    ],
)
async def test_a_listener_that_answers_nonsense(world: UcxWorld, answer: bytes) -> None:
    """Also an acceptance without a link behind it: refused, nothing is posted."""

    async def reply(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stream.read(1)
        writer.write(answer)
        await stream.read()
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    reader = await world.end()
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(f"ucx://127.0.0.1:{port}/x", TICKET, reads([(1, 1)]), 2.0)
    assert failure.value.settled
    assert reader.pages.untouched(range(PAGES))
    server.close()


async def test_without_a_valid_ticket_first_the_connection_ends(world: UcxWorld) -> None:
    owner = await world.end()
    hello = wire.Hello(wire.Lane.TCP, b"never looked at").encode()
    greeting = wire.frame(wire.Kind.HELLO, hello)
    for sent, answer, cause in (
        (greeting + ask("no such ticket", hello), wire.Answer.REFUSED, Cause.REFUSED),
        (greeting + ask(TICKET, b"other hello"), wire.Answer.MALFORMED, Cause.MALFORMED),
        (greeting + ask(TICKET, hello, first=PAGES), wire.Answer.OUT_OF_RANGE, Cause.OUT_OF_RANGE),
        (greeting + ask(TICKET, hello, page_bytes=1), wire.Answer.PAGE_SIZE, Cause.PAGE_SIZE),
    ):
        before = owner.observer.turned[cause]
        stream, writer = await dial(owner)
        writer.write(sent)
        verdict = wire.Verdict(1, answer).encode()
        assert await hung_up(stream) == wire.frame(wire.Kind.VERDICT, verdict)
        assert owner.observer.turned[cause] == before + 1
        writer.close()
    assert owner.guard.opened == 0


async def test_frames_out_of_order_end_the_connection(world: UcxWorld) -> None:
    owner = await world.end()
    hello = wire.frame(wire.Kind.HELLO, wire.Hello(wire.Lane.TCP, b"address").encode())
    for sent in (
        ask(),
        hello + hello,
        wire.frame(wire.Kind.WELCOME, b"x" * 40),
        b"\x01\xff\xff\xff\xff",
    ):
        stream, writer = await dial(owner)
        writer.write(sent)
        assert await hung_up(stream) == b""
        writer.close()
    assert owner.observer.turned == {Cause.MALFORMED: 4}


async def test_a_connection_that_says_nothing_is_dropped(
    world: UcxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ucx_owner, "FIRST_ASK_S", 0.1)
    owner = await world.end()
    stream, writer = await dial(owner)
    assert await hung_up(stream) == b""
    assert owner.observer.turned == {Cause.SILENT: 1}
    writer.close()


async def test_forged_requests_are_refused_and_the_owner_lives(world: UcxWorld) -> None:
    """BR-025: damaged and random frames, before and after a valid ticket."""
    owner, reader = await owner_and_reader(world)
    draw = random.Random(25)
    hello = wire.Hello(wire.Lane.TCP, draw.randbytes(180)).encode()
    good = wire.frame(wire.Kind.HELLO, hello) + ask("guess", hello)
    for attempt in range(200):
        sent = bytearray(good)
        match attempt % 3:
            case 0:
                for _ in range(draw.randint(1, 8)):
                    sent[draw.randrange(len(sent))] = draw.randrange(256)
            case 1:
                sent = bytearray(draw.randbytes(draw.randint(1, 400)))
            case _:
                del sent[draw.randrange(len(sent)) :]
        stream, writer = await dial(owner)
        writer.write(bytes(sent))
        writer.write_eof()
        await hung_up(stream)
        writer.close()
    assert owner.guard.opened == 0
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    assert np.array_equal(reader.pages.array[1], owner.pages.array[1])


async def test_random_descriptors_with_a_valid_ticket(world: UcxWorld) -> None:
    """BR-025: an insider names random pages and generations through the real reader's link."""
    owner, reader = await owner_and_reader(world)
    draw = random.Random(26)
    await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    reader.pages.array[:] = 0xEE
    for _ in range(100):
        pages = reads([(draw.choice([0, 63, 64, 2**31, 2**32 - 1]), 2)])
        ticket = draw.choice([TICKET, TICKET[:-1], "\x00", "ü" * 100])
        if ticket == TICKET and pages[0].source < PAGES:
            continue
        with pytest.raises(TransferError) as refusal:
            await reader.plane.read(owner.plane.address, ticket, pages, LONG_S)
        assert refusal.value.code is Code.STALE
    assert reader.pages.untouched(range(PAGES))
    assert owner.guard.opened == 1


async def test_connections_are_bounded() -> None:
    observer_world = UcxWorld("tcp")
    observer_world.settings = UcxSettings(transport="tcp", max_links=2)
    owner = await observer_world.end()
    kept = [await dial(owner) for _ in range(2)]
    await asyncio.sleep(0.05)
    stream, writer = await dial(owner)
    assert await hung_up(stream) == b""
    assert owner.observer.turned == {Cause.TOO_MANY: 1}
    for _, open_writer in [*kept, (stream, writer)]:
        open_writer.close()
    await observer_world.close()


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
    """BR-071: the owner counts nothing as served, and closes the read exactly once."""
    owner, reader = await owner_and_reader(world, BIG)
    pages = reads([(page, page) for page in range(PAGES)])
    await reader.plane.read(owner.plane.address, TICKET, pages[:1], LONG_S)
    served = dict(owner.observer.bytes)
    read = asyncio.create_task(reader.plane.read(owner.plane.address, TICKET, pages, LONG_S))
    await until(lambda: owner.guard.opened == 2)
    await reader.plane.close()
    with pytest.raises(TransferError):
        await read
    await until(lambda: not owner.guard.open)
    assert dict(owner.observer.bytes) == served
    assert owner.observer.turned[Cause.LOST] == 1


async def test_a_read_that_drains_in_time_keeps_the_link() -> None:
    """A cancelled read of a healthy peer costs the other reads of that link nothing."""
    world = UcxWorld("auto", settle_s=10.0)
    owner, reader = await owner_and_reader(world, BIG)
    pages = reads([(page, page) for page in range(PAGES)])
    await reader.plane.read(owner.plane.address, TICKET, pages[:1], LONG_S)
    other = asyncio.create_task(reader.plane.read(owner.plane.address, TICKET, pages[32:], LONG_S))
    doomed = asyncio.create_task(reader.plane.read(owner.plane.address, TICKET, pages[:32], LONG_S))
    await until(lambda: owner.guard.opened == 3)
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


async def test_a_broken_memory_of_ours_fails_the_read_only(world: UcxWorld) -> None:
    owner, reader = await owner_and_reader(world)
    await reader.plane.read(owner.plane.address, TICKET, reads([(0, 0)]), LONG_S)

    def broken(first: int, count: int) -> None:
        raise RuntimeError("no such pages")

    owner.pages.run = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(TransferError) as failure:
        await reader.plane.read(owner.plane.address, TICKET, reads([(1, 1)]), LONG_S)
    assert failure.value.settled
    del owner.pages.run
    await reader.plane.read(owner.plane.address, TICKET, reads([(2, 2)]), LONG_S)
    assert owner.observer.failures[Cause.INTERNAL] >= 1


async def test_it_does_not_start_without_what_it_needs() -> None:
    with pytest.raises(StartupError):
        UcxPlane(UcxSettings(transport="carrier pigeon"), SystemClock())
    with pytest.raises(StartupError):
        await UcxPlane(UcxSettings(), SystemClock()).start()
    world = UcxWorld("tcp")
    taken = parse_address((await world.end()).plane.address).port
    for settings in (UcxSettings(port=taken), UcxSettings(host="203.0.113.9")):
        plane = UcxPlane(settings, SystemClock())
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
        "ucx://localhost:1/x",
        "http://127.0.0.1:1/x",
        "ucx://127.0.0.1/x",
        "ucx://127.0.0.1:1",
        "ucx://127.0.0.1:99999/x",
        "ucx://[::1/x",
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
    for address in (PlaneAddress("127.0.0.1", 4, "-"), PlaneAddress("::1", 65535, "abc")):
        assert parse_address(str(address)) == address
