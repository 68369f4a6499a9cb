"""A prefill worker as decode sees it: real pages with real content, announced chunk by chunk."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shared.checkpoint import open_checkpoint
from shared.engine.batch import Draw, Engine, StepItem
from shared.engine.building import build_engine
from shared.engine.drawing import draw_of
from shared.ids import BlockHash, Epoch, Generation, PageId, WorkerId
from shared.kv.hashing import CacheIdentity, block_hashes
from shared.wire.requests import DecodeJob, LeaseKey, PageRef, PagesReady, WorkerRef

BLOCK = 4
ME = WorkerRef(WorkerId("prefill-0"), Epoch(3), "plane-prefill")
IDENTITY = CacheIdentity("tenant", "model", "tokenizer", "float32", BLOCK)


def build(pages: int) -> Engine:
    return build_engine(open_checkpoint("hashchain"), "cpu", "float32", pages, BLOCK, "hashchain")


def draw(job: DecodeJob, position: int, tokens: Sequence[int]) -> Draw:
    """At `position` of the stream, after these tokens of prompt and output."""
    prompt_tokens = len(job.tokens) - job.first_index
    packed = struct.pack(f"<{len(tokens)}i", *tokens)
    return draw_of(job.sampling, position, prompt_tokens, lambda: packed)


def finish_of(job: DecodeJob, token: int, generated: int) -> str | None:
    sampling = job.sampling
    if token in sampling.stop_token_ids:
        return "stop"
    return "length" if generated >= sampling.max_tokens else None


@dataclass
class PrefillSide:
    """Computes prompts at once; what it announces and when is up to the test."""

    engine: Engine = field(default_factory=lambda: build(512))
    me: WorkerRef = ME
    identity: CacheIdentity = IDENTITY
    leases: dict[LeaseKey, str] = field(default_factory=dict)
    released: list[tuple[LeaseKey, str]] = field(default_factory=list)
    generations: dict[PageId, Generation] = field(default_factory=dict)
    _next: int = 0

    def compute(
        self, job: DecodeJob, chunk_tokens: int, cached_tokens: int = 0
    ) -> list[PagesReady]:
        """Prefill `job`; its announcements, the last with the first token."""
        key = LeaseKey(job.request, job.attempt)
        pages = tuple(self._page() for _ in range(-(-len(job.tokens) // BLOCK)))
        item = StepItem(job.tokens, 0, pages, draw(job, job.first_index, job.tokens))
        result = self.engine.step([item])
        (first,) = result.tokens
        assert first is not None
        self.leases[key] = f"ticket-{job.request}-{job.attempt}"
        refs = self._refs(job, pages, block_hashes(self.identity, job.tokens))
        size = max(1, chunk_tokens // BLOCK)
        groups = [refs[at : at + size] for at in range(0, len(refs), size)]
        ready = [
            PagesReady(
                request=job.request,
                attempt=job.attempt,
                owner=self.me,
                ticket=self.leases[key],
                chunk=chunk,
                pages=tuple(group),
                prompt_pages=len(pages),
                lease_s=30.0,
                first_token=None,
                first_finish=None,
                cached_tokens=cached_tokens,
            )
            for chunk, group in enumerate(groups)
        ]
        finish = finish_of(job, first, 1)
        told = result.logprobs[0] if result.logprobs else None
        ready[-1] = replace(ready[-1], first_token=first, first_finish=finish, first_logprobs=told)
        return ready

    def page_bytes(self, page: PageId) -> memoryview:
        return memoryview(self.engine.memory.run(page, 1)).cast("B")

    def _page(self) -> PageId:
        page = PageId(self._next % 512)
        self._next += 1
        self.generations[page] = Generation(self.generations.get(page, 0) + 1)
        return page

    def _refs(
        self, job: DecodeJob, pages: tuple[PageId, ...], names: tuple[BlockHash, ...]
    ) -> list[PageRef]:
        sums = self.engine.checksums(pages)
        return [
            PageRef(
                position=at,
                page=page,
                generation=self.generations[page],
                tokens=min(BLOCK, len(job.tokens) - at * BLOCK),
                checksum=sums[at],
                block=names[at] if at < len(names) else None,
            )
            for at, page in enumerate(pages)
        ]


def undisturbed(job: DecodeJob) -> tuple[list[int], str]:
    """What must come out, computed in one piece by an engine of its own."""
    engine = build(-(-(len(job.tokens) + job.sampling.max_tokens) // BLOCK))
    table = tuple(PageId(page) for page in range(engine.memory.pages))
    tokens, start, out = list(job.tokens), 0, list[int]()
    while True:
        position = job.first_index + len(out)
        item = StepItem(tuple(tokens[start:]), start, table, draw(job, position, tokens))
        (token,) = engine.step([item]).tokens
        assert token is not None
        start = len(tokens)
        tokens.append(token)
        out.append(token)
        finish = finish_of(job, token, len(out))
        if finish is not None:
            return out, finish
