"""The engine's turn: plan a step, take its results, seal the pages, draw the first token.

One step at a time; its pages are summed before the next one starts, so that decode can fetch
them while the next chunk is computed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from services.prefill.core import handoff
from services.prefill.core.actions import EmitTokens, RunStep, SumPages, Traced
from services.prefill.core.batching import Chunk, plan
from services.prefill.core.closing import close, depart
from services.prefill.core.events import PagesSummed, StepEnded, StepFailed
from services.prefill.core.jobs import Job, JobKey, Phase
from services.prefill.core.reuse import refresh
from services.prefill.core.state import State, page_ids
from services.prefill.core.work import prefill_seconds
from shared.engine.batch import StepItem
from shared.engine.drawing import draw_of
from shared.errors import Code
from shared.ids import PageId, WorkerId
from shared.wire.requests import TokenChunk, TokenEntry
from shared.wire.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Running:
    """The step that the engine works on; `summing` once only checksums are left."""

    number: int
    chunks: tuple[Chunk, ...]
    since_s: float
    summing: bool


class Compute:
    """Owns the running step. All else is in the shared state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._steps = 0
        self.running: Running | None = None

    def begin(self, now: float) -> None:
        """Start the next step if the engine is idle and there is work."""
        if self.running is not None:
            return
        state = self._state
        ready = state.jobs.in_phase(Phase.READY)
        limits = state.limits
        chunks = plan(ready, limits.chunk_tokens, lambda job: refresh(state, job, now), limits.cost)
        if not chunks:
            return
        self._steps += 1
        for chunk in chunks:
            chunk.job.busy = True
        state.counts["prompt_tokens"] += sum(chunk.tokens for chunk in chunks)
        self.running = Running(self._steps, chunks, now, summing=False)
        state.out.append(RunStep(self._steps, tuple(_item(chunk) for chunk in chunks)))

    def left_s(self, now: float) -> tuple[float, dict[JobKey, int]]:
        """Seconds that the running step has still to go, and whose tokens it computes."""
        running = self.running
        if running is None or running.summing:
            return 0.0, {}
        limits = self._state.limits
        parts = [(chunk.tokens, chunk.start) for chunk in running.chunks]
        ends_s = running.since_s + prefill_seconds(limits.cost, parts, limits.chunk_tokens)
        return max(0.0, ends_s - now), {c.job.key: c.tokens for c in running.chunks}

    def step_ended(self, event: StepEnded, now: float) -> None:
        """Tokens go out first, then the new pages are summed."""
        running = self.running
        if running is None or running.number != event.step or running.summing:
            self._state.counts["late_events"] += 1
            return
        entries: dict[WorkerId, list[TokenEntry]] = {}
        told = event.logprobs or (None,) * len(running.chunks)
        for chunk, token, logprobs in zip(running.chunks, event.tokens, told, strict=True):
            if not chunk.job.ended:
                self._advance(chunk, running.since_s, now)
            if chunk.last and not chunk.job.ended:
                self._first_token(chunk.job, token, logprobs, now, entries)
            if chunk.job.ended:
                depart(self._state, chunk.job)
        me = self._state.me
        for gateway, found in entries.items():
            self._state.out.append(
                EmitTokens(gateway, TokenChunk(me.worker, me.epoch, tuple(found)))
            )
        left = tuple(chunk for chunk in running.chunks if chunk.job.busy)
        self._sum(running.number, left, now)

    def pages_summed(self, event: PagesSummed, now: float) -> None:
        """Seal and announce what was computed."""
        running = self.running
        if running is None or running.number != event.step or not running.summing:
            self._state.counts["late_events"] += 1
            return
        self.running = None
        checksums = iter(event.checksums)
        for chunk in running.chunks:
            sums = [next(checksums) for _ in chunk.positions]
            depart(self._state, chunk.job)
            if not chunk.job.ended:
                self._seal(chunk, sums, running.since_s, now)

    def failed(self, event: StepFailed, now: float) -> None:
        """Nothing of the step counts. Its jobs run again one by one, so that the one that
        breaks the engine fails alone."""
        running = self.running
        if running is None or running.number != event.step:
            self._state.counts["late_events"] += 1
            return
        self.running = None
        self._state.counts["step_failures"] += 1
        guilty = running.summing or len(running.chunks) == 1
        for chunk in running.chunks:
            job = chunk.job
            depart(self._state, job)
            if job.ended:
                continue
            job.alone = True
            if guilty:
                close(self._state, job, now, "failed", Code.INTERNAL)

    def _advance(self, chunk: Chunk, since_s: float, now: float) -> None:
        chunk.job.computed_tokens = chunk.end
        self._state.out.append(_chunk_span(self._state, chunk, since_s, now))

    def _first_token(
        self,
        job: Job,
        token: int | None,
        logprobs: TokenLogprobs | None,
        now: float,
        entries: dict[WorkerId, list[TokenEntry]],
    ) -> None:
        asked = job.order.sampling.logprobs is not None
        if token is None or (asked and logprobs is None):
            close(self._state, job, now, "failed", Code.INTERNAL)
            return
        job.first = _first_entry(job, token, (logprobs,) if logprobs is not None else ())
        entries.setdefault(job.order.gateway, []).append(job.first)
        key, finish = job.key, job.first.finish or ""
        self._state.out.append(
            Traced(
                key.request, key.attempt, "prefill.first_token", now, now, {"baton.finish": finish}
            )
        )
        self._state.diary.note(key, now, "drew its first token")

    def _sum(self, number: int, chunks: tuple[Chunk, ...], now: float) -> None:
        """Ask for the checksums of the pages that these chunks completed."""
        if not chunks:
            self.running = None
            return
        self.running = Running(number, chunks, now, summing=True)
        pages: list[PageId] = []
        for chunk in chunks:
            pages.extend(chunk.job.pages[position].page for position in chunk.positions)
        self._state.out.append(SumPages(number, tuple(pages)))

    def _seal(self, chunk: Chunk, sums: list[int], since_s: float, now: float) -> None:
        state, job = self._state, chunk.job
        for position, checksum in zip(chunk.positions, sums, strict=True):
            handoff.seal(state, job, position, checksum)
        state.out.append(handoff.seal_span(job, since_s, now, len(sums), state.limits.lease_s))
        handoff.share(state, job, now)
        if chunk.last:
            state.jobs.move(job, Phase.HANDED, now)
            handoff.offer(state, job, now)


def _item(chunk: Chunk) -> StepItem:
    job, order = chunk.job, chunk.job.order
    draw = None
    if chunk.last:
        prompt_tokens = len(order.tokens) - order.first_index
        draw = draw_of(
            order.sampling,
            order.first_index,
            prompt_tokens,
            lambda: array("i", order.tokens).tobytes(),
        )
    return StepItem(
        tokens=order.tokens[chunk.start : chunk.end],
        start=chunk.start,
        page_table=page_ids(job.pages[: chunk.positions.stop]),
        draw=draw,
    )


def _first_entry(job: Job, token: int, logprobs: tuple[TokenLogprobs, ...]) -> TokenEntry:
    sampling = job.order.sampling
    finish = None
    if token in sampling.stop_token_ids:
        finish = "stop"
    elif sampling.max_tokens == 1:
        finish = "length"
    return TokenEntry(
        request=job.order.request,
        attempt=job.order.attempt,
        index=job.order.first_index,
        token_ids=(token,),
        finish=finish,
        cached_tokens=job.cached_tokens,
        logprobs=logprobs,
    )


def _chunk_span(state: State, chunk: Chunk, since_s: float, now: float) -> Traced:
    job = chunk.job
    attributes: dict[str, str | int | float | bool] = {
        "baton.chunk.index": chunk.start // state.limits.chunk_tokens,
        "baton.chunk.start": chunk.start,
        "baton.chunk.tokens": chunk.tokens,
        "baton.chunk.reused_tokens": job.cached_tokens,
        "baton.chunk.budget": state.limits.chunk_tokens,
    }
    return Traced(job.order.request, job.order.attempt, "prefill.chunk", since_s, now, attributes)
