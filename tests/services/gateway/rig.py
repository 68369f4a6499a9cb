"""A real gateway on the in-memory bus, with a scripted scheduler and scripted workers."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.gateway.app import GatewayApp
from services.gateway.config import GatewayConfig
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.checkpoint import open_checkpoint
from shared.errors import BusError, BusUnavailable
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.telemetry.trace import Tracer
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import (
    Accepted,
    CancelRequest,
    DecodeJob,
    Ended,
    JobFailed,
    Placement,
    PlacementEnded,
    PlaceRequest,
    PrefillJob,
    Refused,
    ResendTokens,
    TokenChunk,
    TokenEntry,
    WorkerRef,
)
from shared.wire.workers import ClusterStatus, Registered, RegisterWorker
from tests.builders import running, scope_on, start, until
from tests.services.gateway.told import logprobs

END = 257
"""The byte model's end of turn."""
MODEL = "hashchain"


def ids(text: str) -> list[int]:
    """The byte model's tokens of a text, and the end of the turn."""
    return [*text.encode(), END]


@dataclass
class Script:
    """What the cluster does. Changed by a test before or during a request."""

    tokens: Sequence[int] = field(default_factory=lambda: ids("Hello"))
    choices: dict[int, Sequence[int]] = field(default_factory=dict)
    """Tokens of the choices that do not say `tokens`."""
    chunk: int = 1
    route: str = "colocated"
    pause_after: int | None = None
    """Emit no token from this index on until `resume` is set."""
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    lose: set[int] = field(default_factory=set)
    """Indices whose chunk is never sent (only a resend brings them)."""
    fail_at: dict[int, int] = field(default_factory=dict)
    """Attempt -> index at which its decode worker reports failure."""
    vanish_at: dict[int, int] = field(default_factory=dict)
    """Attempt -> index at which its decode worker is gone without a word."""
    refuse: list[Refused] = field(default_factory=list)
    """Answers to the next placements."""
    refuse_jobs: list[Refused] = field(default_factory=list)
    cached_tokens: int = 3
    delay_s: float = 0.0


class Worker:
    """A decode or prefill worker that emits the script."""

    def __init__(self, cluster: Cluster, role: str, name: str, epoch: int) -> None:
        self.ref = WorkerRef(WorkerId(name), Epoch(epoch), f"plane-{name}")
        self.role = role
        self.jobs: list[DecodeJob | PrefillJob] = []
        self.cancelled: list[CancelRequest] = []
        self.headers: list[Headers] = []
        self.running: dict[tuple[RequestId, Attempt], asyncio.Task[None]] = {}
        self._cluster = cluster
        self._bus = MemoryBus(cluster.broker, name, role)

    async def start(self) -> None:
        await self._bus.subscribe(subjects.job(self.role, self.ref.worker), self._answer)

    def vanish(self) -> None:
        for task in self.running.values():
            task.cancel()
        self._bus.vanish()

    async def _answer(self, delivery: Delivery) -> Message | None:
        script = self._cluster.script
        match delivery.message:
            case DecodeJob() | PrefillJob() as job:
                if script.refuse_jobs:
                    return script.refuse_jobs.pop(0)
                self.jobs.append(job)
                self.headers.append(delivery.headers)
                if self.role == "prefill" or job.prefill is None:  # type: ignore[union-attr]
                    self._begin(job, job.first_index)
                return Accepted(self.ref.worker, self.ref.epoch)
            case CancelRequest() as cancel:
                self.cancelled.append(cancel)
                task = self.running.pop((cancel.request, cancel.attempt), None)
                if task is not None:
                    task.cancel()
                return Ended(cancel.request, cancel.attempt)
            case ResendTokens() as ask:
                return self._resend(ask)
            case _:
                return None

    def _begin(self, job: DecodeJob | PrefillJob, first: int) -> None:
        work = self._emit(job, first)
        task = self._cluster.tasks.create_task(work, name=f"emit-{self.ref.worker}")
        self.running[job.request, job.attempt] = task

    def _resend(self, ask: ResendTokens) -> Message:
        job = next((j for j in self.jobs if j.request == ask.request), None)
        if job is None or job.attempt != ask.attempt:
            return Refused("unknown_request", "nothing of it here")
        script = self._cluster.script
        whole = self._all(job)
        until_index = len(whole) if script.pause_after is None else script.pause_after
        part = tuple(whole[ask.index : max(ask.index, until_index)])
        done = ask.index + len(part) == len(whole)
        return TokenEntry(
            ask.request,
            ask.attempt,
            ask.index,
            part,
            _finish(part) if done else None,
            logprobs=logprobs(part, job.sampling.logprobs),
        )

    def _all(self, job: DecodeJob | PrefillJob) -> list[int]:
        script = self._cluster.script
        _, _, choice = job.request.partition("-")
        tokens = script.choices.get(int(choice or 0), script.tokens)
        return list(tokens)[: job.first_index + job.sampling.max_tokens]

    async def _emit(self, job: DecodeJob | PrefillJob, index: int) -> None:
        script, whole = self._cluster.script, self._all(job)
        cached: int | None = script.cached_tokens
        while index < len(whole):
            if index == script.vanish_at.get(job.attempt):
                self._cluster.tasks.create_task(self._vanish_soon(), name="vanish")
                return
            if index == script.fail_at.get(job.attempt):
                failure = JobFailed(
                    job.request, job.attempt, self.ref.worker, self.ref.epoch, "internal", ""
                )
                await self._bus.publish(subjects.tokens(job.gateway), failure, Headers())
                return
            if script.pause_after is not None and index >= script.pause_after:
                await script.resume.wait()
            size = 1 if self.role == "prefill" else script.chunk
            part = tuple(whole[index : index + size])
            finish = _finish(part) if index + len(part) == len(whole) else None
            told = logprobs(part, job.sampling.logprobs)
            entry = TokenEntry(job.request, job.attempt, index, part, finish, cached, told)
            chunk = TokenChunk(self.ref.worker, self.ref.epoch, (entry,))
            if index not in script.lose:
                with suppress(BusUnavailable):
                    await self._bus.publish(subjects.tokens(job.gateway), chunk, Headers())
            index, cached = index + len(part), None
            if isinstance(job, PrefillJob):
                if finish is None:
                    self._cluster.decode_of(job)._begin(job_of(self._cluster, job), index)
                return
            await asyncio.sleep(script.delay_s)

    async def _vanish_soon(self) -> None:
        self.vanish()


def job_of(cluster: Cluster, job: PrefillJob) -> DecodeJob:
    found = cluster.decode_of(job).jobs[-1]
    assert isinstance(found, DecodeJob)
    return found


def _finish(part: Sequence[int]) -> str:
    return "stop" if part and part[-1] == END else "length"


class Cluster:
    """Scheduler and workers. Decode workers are used in turn; excluded ones are skipped."""

    def __init__(self, broker: MemoryBroker, tasks: asyncio.TaskGroup) -> None:
        self.broker = broker
        self.tasks = tasks
        self.script = Script()
        self.placed: list[PlaceRequest] = []
        self.ended: list[PlacementEnded] = []
        self.place_headers: list[Headers] = []
        self.prefill = Worker(self, "prefill", "prefill-0", 1)
        self.decodes = [Worker(self, "decode", f"decode-{n}", n + 1) for n in range(2)]
        self.bus = MemoryBus(broker, "scheduler-0", "scheduler")
        self.models = (open_checkpoint(MODEL).digest,)
        """What the gateways are told could be placed."""

    async def start(self) -> None:
        await self.bus.subscribe(subjects.REGISTRATIONS, self._register)
        await self.bus.subscribe(subjects.PLACE, self._place)
        await self.bus.subscribe(subjects.PLACEMENT_ENDED, self._note_end)
        for worker in (self.prefill, *self.decodes):
            await worker.start()
        self.tasks.create_task(self._announce(), name="announce")

    def decode_of(self, job: PrefillJob) -> Worker:
        return next(w for w in self.decodes if w.ref == job.decode)

    @property
    def workers(self) -> list[Worker]:
        return [self.prefill, *self.decodes]

    @property
    def idle(self) -> bool:
        return all(task.done() for worker in self.workers for task in worker.running.values())

    async def _register(self, delivery: Delivery) -> Message | None:
        wish = delivery.message
        assert isinstance(wish, RegisterWorker)
        return Registered(wish.worker, Epoch(1), Epoch(1))

    async def _announce(self) -> None:
        while True:
            with suppress(BusError):
                status = ClusterStatus(Epoch(1), self.models)
                await self.bus.publish(subjects.SERVING, status, Headers())
            await asyncio.sleep(0.05)

    async def _note_end(self, delivery: Delivery) -> Message | None:
        assert isinstance(delivery.message, PlacementEnded)
        self.ended.append(delivery.message)
        return None

    async def _place(self, delivery: Delivery) -> Message | None:
        ask = delivery.message
        assert isinstance(ask, PlaceRequest)
        self.placed.append(ask)
        self.place_headers.append(delivery.headers)
        if self.script.refuse:
            return self.script.refuse.pop(0)
        decode = next((w for w in self.decodes if w.ref not in ask.excluded), None)
        if decode is None:
            return Refused("no_worker", "all are excluded", 1.0)
        route = self.script.route if ask.route == "auto" else ask.route
        return Placement(
            request=ask.request,
            attempt=ask.attempt,
            sequence=len(self.placed),
            leader_epoch=Epoch(1),
            route=route,
            prefill=self.prefill.ref if route == "disaggregated" else None,
            decode=decode.ref,
            kvpool=None,
            cached_blocks=0,
            estimated_ttft_s=0.012,
            reason="scripted",
            candidates=(),
        )


@dataclass
class Rig:
    """What a test holds."""

    app: GatewayApp
    cluster: Cluster
    broker: MemoryBroker
    http: aiohttp.ClientSession
    spans: InMemorySpanExporter

    @property
    def script(self) -> Script:
        return self.cluster.script

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.app.ports['port']}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.app.ports['admin_port']}"

    def protocols(self) -> list[Any]:
        """What reads the clients' connections."""
        found = self.app._doors["port"]._connections
        assert found is not None
        return list(found.connections)

    def connections(self) -> list[socket.socket]:
        """Our ends of the clients' connections."""
        transports = [protocol.transport for protocol in self.protocols()]
        return [t.get_extra_info("socket") for t in transports if t is not None]

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any], Any]:
        """Status, body and headers of one call. Bytes go as they are."""
        payload = body if isinstance(body, bytes) else orjson.dumps(body)
        fields = {"Content-Type": "application/json"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        piece = io.BytesIO(payload)
        async with self.http.post(self.url + path, data=piece, headers=fields) as answer:
            return answer.status, orjson.loads(await answer.read()), answer.headers

    async def chat(self, **more: Any) -> tuple[int, dict[str, Any], Any]:
        return await self.post("/v1/chat/completions", chat_body(**more))

    async def events(self, **more: Any) -> list[dict[str, Any] | str]:
        """All events of a streamed chat; comments are left out. Raises if the transfer broke."""
        return [event async for event in self.stream(**more)]

    async def stream(self, **more: Any) -> AsyncIterator[dict[str, Any] | str]:
        body = orjson.dumps(chat_body(stream=True, **more))
        fields = {"Content-Type": "application/json"}
        url = self.url + "/v1/chat/completions"
        async with self.http.post(url, data=body, headers=fields) as answer:
            assert answer.status == 200, await answer.read()
            async for line in answer.content:
                if line.startswith(b"data: "):
                    text = line[6:].strip()
                    yield "[DONE]" if text == b"[DONE]" else orjson.loads(text)

    async def settled(self) -> None:
        """Nothing is held anywhere any more."""

        def quiet() -> bool:
            return not any(self.app.accounting().values()) and self.cluster.idle

        await until(quiet)


def chat_body(**more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64}
    return {**body, **more}


def text_of(events: Sequence[dict[str, Any] | str]) -> str:
    """The joined deltas."""
    chunks = [event for event in events if isinstance(event, dict) and event.get("choices")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


@asynccontextmanager
async def rig(tmp_path: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A gateway that serves on free ports, and its cluster."""
    config = GatewayConfig(
        **{
            "worker_id": "gateway-0",
            "model_path": MODEL,
            "port": 0,
            "admin_port": 0,
            "traces_port": 0,
            "run_dir": str(tmp_path),
            "otlp_endpoint": None,
            "drain_s": 3.0,
            **settings,
        }
    )
    broker = MemoryBroker()
    async with running() as tasks:
        cluster = Cluster(broker, tasks)
        await cluster.start()
        scope = scope_on(broker, tasks, "gateway", config, tmp_path)
        spans = InMemorySpanExporter()
        tracer = Tracer("gateway", "gateway-0", scope.clock, None, exporter=spans)
        scope = replace(scope, tracer=tracer)
        app = GatewayApp(scope, config)
        await start(app, scope)
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            yield Rig(app, cluster, broker, http, spans)
