"""What a stolen credential, or anybody who reaches a port, can do to a running cluster: nothing.

Refused and counted, every process alive, and right afterwards a request gets its known tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.ids import WorkerId
from shared.wire import codec, subjects
from shared.wire.requests import Refused
from shared.wire.subjects import GRANTS
from shared.wire.workers import Heartbeat, RegisterWorker
from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.e2e.faults.wire import Wire
from tests.e2e.forgery import Forger, raw_bytes

pytestmark = pytest.mark.process

SERVICES: Final = ("gateway-0", "scheduler-0", "prefill-0", "decode-0", "kvpool-0")
WISH: Final = Wish(shared={"lease_s": 3.0}, settings={"scheduler": {"route": "disaggregated"}})
PROMPT: Final = [65 + number % 26 for number in range(200)]


@asynccontextmanager
async def attacked(folder: Path) -> AsyncIterator[tuple[TestCluster, Wire]]:
    """A cluster whose answer is known; afterwards it is still the same, at rest, and alive."""
    async with running_cluster(folder, WISH) as cluster, Wire(cluster.local.nats).opened() as wire:
        before = await cluster.complete(PROMPT, max_tokens=40)
        assert before.complete
        yield cluster, wire
        pids = [member.child.running for member in cluster.local.members.values()]
        assert all(pids), "a process has ended"
        await cluster.until_ready()
        async with asyncio.timeout(20):
            after = await cluster.complete(PROMPT, max_tokens=40)
        assert after.complete and after.text == before.text
        await cluster.until_nothing_is_held()
        for name in SERVICES:
            assert await count(cluster, name, "baton_bus_handler_failures_total") == 0, name


async def count(cluster: TestCluster, name: str, metric: str) -> float:
    lines = (await cluster.metrics(name)).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(metric))


async def undecodable(cluster: TestCluster) -> float:
    return sum([await count(cluster, n, "baton_bus_undecodable_total") for n in SERVICES])


def addressed(subject: str) -> list[str]:
    """The real subjects that a pattern covers in this cluster."""
    parts = subject.split(".")
    if "*" not in parts:
        return [subject]
    roles = [name.rpartition("-")[0] for name in SERVICES]
    role = next((part for part in parts if part in roles), "")
    if not role:
        return [text for each in roles for text in addressed(subject.replace("*", each, 1))]
    return [subject.replace("*", f"{role}-0")]


def spoken(role: str) -> list[str]:
    return [text for pattern in GRANTS[role]["publish"] for text in addressed(pattern)]


EVERY_SUBJECT: Final = sorted({text for role in GRANTS for text in spoken(role)})


def noting(texts: list[str]) -> Callable[[Exception], None]:
    return lambda error: texts.append(str(error))


async def settled(*clients: Client) -> None:
    """The server has taken all that was sent, and said what it thinks of it."""
    for client in clients:
        await client.flush(timeout=20)


async def test_a_role_stays_within_its_subjects(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (cluster, wire):
        for role in GRANTS:
            denied: list[str] = []
            client = await wire.client(role, noting(denied))
            foreign = [text for text in EVERY_SUBJECT if text not in spoken(role)]
            foreign += ["$JS.API.STREAM.LIST", "$SYS.REQ.SERVER.PING", "_INBOX_other.1.1"]
            for subject in foreign:
                await client.publish(subject, b"forged")
            await settled(client)
            async with asyncio.timeout(10):
                while len(denied) < len(foreign):  # noqa: ASYNC110 - told by the library
                    await asyncio.sleep(0.05)
            assert all("permissions violation" in text.lower() for text in denied), denied
        assert await undecodable(cluster) == 0, "something got through"


async def test_garbage_on_every_subject_that_a_role_may_use(tmp_path: Path) -> None:
    crater = tmp_path / "crater"
    async with attacked(tmp_path / "cluster") as (cluster, wire):
        sent = 0
        for role in GRANTS:
            client = await wire.client(role)
            for subject in spoken(role):
                for data in raw_bytes(crater):
                    sent += 1
                    await client.publish(subject, data)
                await settled(client)
        async with asyncio.timeout(60):
            while (counted := await undecodable(cluster)) < 0.9 * sent:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        print(f"{sent} messages, {counted:.0f} counted as undecodable")
        assert not crater.exists()


async def test_forged_messages_of_every_type(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (cluster, wire):
        workers: Any = (await cluster.accounting())["scheduler-0"]["workers"]
        epochs = {name: int(epoch) for name, epoch in workers.items()}
        answers: list[Msg] = []
        denials: list[str] = []
        for number, role in enumerate(GRANTS):
            client = await wire.client(role, noting(denials))

            async def take(message: Msg) -> None:
                answers.append(message)

            await client.subscribe(f"_INBOX_{role}.forged.*", cb=take)
            if role == "scheduler":
                continue  # who has this one is the scheduler
            for subject in spoken(role):
                forged = enumerate(Forger(number, epochs).messages(each=6))
                for place, (_, data) in forged:
                    # One answer to one address: more are denied.
                    reply = f"_INBOX_{role}.forged.{subject.replace('.', '-')}-{place}"
                    await client.publish(subject, data, reply=reply)
                await settled(client)
        async with asyncio.timeout(60):
            while len(answers) < 500:  # noqa: ASYNC110 - told by the library
                await asyncio.sleep(0.1)
        assert not denials
        replies = [codec.decode(each.data) for each in answers if each.data]
        refused = [reply for reply in replies if isinstance(reply, Refused)]
        print(f"{len(replies)} answers, {len(refused)} refusals")
        assert len(refused) > 0.5 * len(replies)
        assert not [each for each in refused if each.code == "internal"]


async def test_a_role_cannot_take_the_name_of_a_worker_of_another_role(tmp_path: Path) -> None:
    """With a new epoch for its name, the real worker believes itself replaced and ends."""
    async with attacked(tmp_path) as (cluster, wire):
        replaced = await wire.hear("decode", subjects.LOST)
        pool = await wire.client("kvpool")
        forged = RegisterWorker(WorkerId("decode-0"), "decode", "f" * 32)
        for subject in (
            subjects.register("decode", forged.worker),
            subjects.register("kvpool", forged.worker),
        ):
            await pool.publish(subject, codec.encode(forged))
            await settled(pool)
        with suppress(TimeoutError):
            async with asyncio.timeout(3):
                while not replaced.messages:  # noqa: ASYNC110 - told by the library
                    await asyncio.sleep(0.05)
        assert not replaced.messages
        assert cluster.local.members["decode-0"].child.running


async def test_everything_that_was_said_is_said_again(tmp_path: Path) -> None:
    """Replayed with the credential of whoever said it, the last first, three times over."""
    async with attacked(tmp_path) as (cluster, wire):
        listeners = {
            subject: role
            for role in GRANTS
            for pattern in GRANTS[role]["subscribe"]
            for subject in addressed(pattern)
        }
        heard = {text: await wire.hear(role, text) for text, role in listeners.items()}
        assert (await cluster.complete(PROMPT[3:], max_tokens=300)).complete
        said = 0
        for role in GRANTS:
            for subject in spoken(role):
                if subject in heard:
                    said += sum([await wire.repeat(role, heard[subject]) for _ in range(3)])
        assert said > 300, said


async def test_raw_bytes_on_every_port(tmp_path: Path) -> None:
    crater = tmp_path / "crater"
    async with attacked(tmp_path / "cluster") as (cluster, wire):
        ports = {urlsplit(m.probe_url).port for m in cluster.local.members.values()}
        ports |= {cluster.local.ports.public, cluster.local.ports.admin, cluster.local.ports.traces}
        ports |= {cluster.local.nats.port} | await plane_ports(wire)
        assert len(ports) == 5 + 3 + 1 + 3
        async with asyncio.TaskGroup() as tasks:
            for port in ports:
                tasks.create_task(shout(int(port or 0), crater), name=f"shout-{port}")
        assert not crater.exists()


async def plane_ports(wire: Wire) -> set[int | None]:
    """Where the data planes listen, as heartbeats tell those who may hear them."""
    found: dict[str, str] = {}
    heard = await wire.hear("scheduler", "baton.heartbeat.*.*")
    async with asyncio.timeout(10):
        while len(found) < 3:
            await asyncio.sleep(0.1)
            for message in heard.messages:
                beat = codec.decode(message.data)
                if isinstance(beat, Heartbeat) and beat.plane_address:
                    found[beat.worker] = beat.plane_address
    return {urlsplit(address).port for address in found.values()}


async def shout(port: int, crater: Path) -> None:
    """Each text on a connection of its own; the other end may answer, and closes or is left."""
    for data in raw_bytes(crater):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            with suppress(OSError, TimeoutError):
                writer.write(data)
                async with asyncio.timeout(2):
                    await writer.drain()
                    writer.write_eof()
                    await reader.read(1000)
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
