"""One attempt on this worker: its tokens, its pages, and which positions still lack KV.

Knows neither the cache nor the engine; others grant pages and compute.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Run
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from services.decode.core.handoff import Handoff
from services.decode.core.pacing import Pace
from services.decode.core.rules import pages_for
from shared.ids import Attempt, BlockHash, Epoch, PageId, RequestId
from shared.kv.cache import HeldPage
from shared.kv.hashing import BlockChain
from shared.wire.requests import DecodeJob, LeaseKey, TokenEntry, WorkerRef
from shared.wire.sampling import TokenLogprobs

_LIFE_LINES: Final = 48
_MOST_MOMENTS: Final = 64


class Stage(StrEnum):
    """reserved -> pulling -> verified -> joined -> ended; parked = preempted, back to verified,
    perhaps by way of fetching from the pool.
    A colocated sequence starts as verified: it waits for nobody."""

    RESERVED = "reserved"
    PULLING = "pulling"
    VERIFIED = "verified"
    JOINED = "joined"
    PARKED = "parked"
    FETCHING = "fetching"
    ENDED = "ended"


@dataclass(slots=True)
class Fetch:
    """Blocks [first, last) are asked of the pool; `pull` is the read, once it answered."""

    number: int
    pool: WorkerRef
    first: int
    last: int
    pull: int | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` is prompt + generated; KV exists for positions below `kv_tokens` except `holes`.

    A sequence that only lacks KV of its last token decodes; any other range is a fill.
    """

    job: DecodeJob
    order: int
    arrived_s: float
    deadline_s: float
    block_tokens: int
    chain: BlockChain
    tokens: list[int]
    handoff: Handoff | None
    gateway_epoch: Epoch | None = None
    virtual_s: float = 0.0
    """Arrival, moved forward by priority: whoever comes much later never goes first."""
    stage: Stage = Stage.RESERVED
    pages: list[HeldPage | None] = field(default_factory=list)
    kv_tokens: int = 0
    holes: list[int] = field(default_factory=list)
    """Block positions below kv_tokens without KV, ascending, never touching kv_tokens."""
    names: list[BlockHash] = field(default_factory=list)
    checksums: dict[int, int] = field(default_factory=dict)
    """Verified checksums of pulled pages that are not sealed yet."""
    sealed: int = 0
    """Leading blocks that are sealed, or on their way to it."""
    cached_tokens: int = 0
    """Prompt tokens found in a cache when the attempt began."""
    ticket: str = ""
    """Opens its sealed pages to the pool."""
    kept_blocks: int = 0
    """Leading blocks that the pool said it keeps."""
    offers: int = 0
    """Offers since the pool last took anything."""
    fetch: Fetch | None = None
    in_step: bool = False
    preemptions: int = 0
    moments: list[tuple[float, str]] = field(default_factory=list)
    """When it joined a step, stood without pages (stalled), gave way: for its span."""
    stalled_since_s: float | None = None
    stalled_s: float = 0.0
    most_beside: int = 0
    """Sequences in the largest step it was in."""
    ready_s: float = 0.0
    first_step_s: float | None = None
    pace: Pace | None = None
    """Of the tokens drawn here since it last had to wait."""
    waited_at: int = -1
    """Leading blocks when it last stood back for a mate that computes the next one."""
    chunks: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the generated tokens, where the job asks for them."""
    life: list[str] = field(default_factory=list)
    _table: tuple[PageId, ...] | None = None
    _history: array[int] = field(default_factory=lambda: array("i"))
    _named_tokens: int = 0

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.job.request, self.job.attempt)

    @property
    def key_pair(self) -> tuple[RequestId, Attempt]:
        return (self.job.request, self.job.attempt)

    @property
    def rank(self) -> tuple[float, int]:
        """Lowest goes first. Fixed for life, so every sequence becomes the first one day."""
        return (self.virtual_s, self.order)

    @property
    def prompt_tokens(self) -> int:
        return len(self.job.tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.job.tokens)

    @property
    def worst_pages(self) -> int:
        """Pages at the end of the longest generation (the last token needs no KV)."""
        longest = self.prompt_tokens + self.job.sampling.max_tokens - 1
        return pages_for(longest, self.block_tokens)

    @property
    def batchable(self) -> bool:
        return self.stage is Stage.VERIFIED or self.stage is Stage.JOINED

    @property
    def decoding(self) -> bool:
        """Whether it only lacks KV of its last token."""
        return not self.holes and self.kv_tokens == len(self.tokens) - 1

    @property
    def awaits_prefill(self) -> bool:
        return self.handoff is not None and not self.handoff.committed

    @property
    def lead_blocks(self) -> int:
        """Leading full blocks whose KV is complete."""
        if self.handoff is not None and not self.handoff.committed:
            return min(self.handoff.wanted, default=self.prompt_tokens // self.block_tokens)
        return self.holes[0] if self.holes else self.kv_tokens // self.block_tokens

    def next_range(self) -> tuple[int, int]:
        """The lowest run of token positions without KV, [start, stop)."""
        if not self.holes:
            return self.kv_tokens, len(self.tokens)
        last = self.holes[0]
        for hole in self.holes[1:]:
            if hole != last + 1:
                break
            last = hole
        return self.holes[0] * self.block_tokens, (last + 1) * self.block_tokens

    def advance(self, start: int, stop: int) -> None:
        """KV of [start, stop) was computed."""
        if self.holes:
            self.holes = [hole for hole in self.holes if (hole + 1) * self.block_tokens > stop]
        else:
            self.kv_tokens = stop

    def place(self, missing: set[int]) -> None:
        """The whole prompt has KV except these block positions; a missing tail is just not
        computed yet."""
        blocks = pages_for(self.prompt_tokens, self.block_tokens)
        while blocks and blocks - 1 in missing:
            blocks -= 1
        self.kv_tokens = min(blocks * self.block_tokens, self.prompt_tokens)
        self.holes = sorted(hole for hole in missing if hole < blocks)

    def redraw_last(self) -> None:
        """KV of the last prompt position counts as missing, so that it runs again."""
        self.kv_tokens = self.prompt_tokens - 1
        while self.holes and (self.holes[-1] + 1) * self.block_tokens >= self.kv_tokens:
            self.kv_tokens = self.holes.pop() * self.block_tokens

    def lacking_tokens(self) -> int:
        """Positions of the prompt without KV."""
        return self.prompt_tokens - self.kv_tokens + len(self.holes) * self.block_tokens

    def open_tokens(self) -> int:
        """Positions of prompt and generated tokens without KV."""
        return len(self.tokens) - self.kv_tokens + len(self.holes) * self.block_tokens

    def name_blocks(self) -> None:
        """Bring `names` up to all full blocks of `tokens`."""
        if len(self.tokens) // self.block_tokens > len(self.names):
            self.names.extend(self.chain.extend(self.tokens[self._named_tokens :]))
            self._named_tokens = len(self.tokens)

    def set_page(self, position: int, page: HeldPage | None) -> None:
        while len(self.pages) <= position:
            self.pages.append(None)
        self.pages[position] = page
        self._table = None

    def set_pages(self, pages: Run[HeldPage]) -> None:
        """From the first position on."""
        self.pages[: len(pages)] = pages
        self._table = None

    def take_pages(self) -> list[HeldPage]:
        """All pages, which this sequence then no longer has."""
        taken = [page for page in self.pages if page is not None]
        self.pages = []
        self._table = None
        return taken

    def table(self, stop: int) -> tuple[PageId, ...]:
        """Page ids for positions [0, stop), all of which must be there."""
        if self._table is None or len(self._table) * self.block_tokens < stop:
            there = [page.page for page in self.pages if page is not None]
            if len(there) < len(self.pages):
                needed = self.pages[: pages_for(stop, self.block_tokens)]
                there = [page.page for page in needed if page is not None]
            self._table = tuple(there)
        return self._table

    def take_token(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """The next token, drawn here or by prefill."""
        self.tokens.append(token)
        if self.job.sampling.logprobs is not None:
            if logprobs is None:
                raise AssertionError(f"a token of {self.key} came without its logprobs")
            self.logprobs.append(logprobs)

    def history(self) -> bytes:
        """All tokens, as penalties count them: 4 bytes each."""
        self._history.extend(self.tokens[len(self._history) :])
        return self._history.tobytes()

    def entry(self, index: int, finish: str | None) -> TokenEntry:
        """The generated tokens from stream position `index` on."""
        job, first = self.job, self.job.first_index
        index = min(max(index, first), first + self.generated)
        tokens = tuple(self.tokens[self.prompt_tokens + index - first :])
        logprobs = tuple(self.logprobs[index - first :])
        return TokenEntry(
            request=job.request,
            attempt=job.attempt,
            index=index,
            token_ids=tokens,
            finish=finish,
            cached_tokens=self.cached_tokens if tokens and index == first else None,
            logprobs=logprobs,
        )

    def stalled(self, now: float, why: str) -> None:
        """It has to wait for pages; again: it still waits."""
        self.pace = None
        if self.stalled_since_s is None and self.first_step_s is not None:
            self.stalled_since_s = now
            self._moment(now, why)

    def joined(self, now: float, beside: int) -> None:
        """It is in a step of so many."""
        self.most_beside = max(self.most_beside, beside)
        if self.stalled_since_s is not None:
            self.stalled_s += now - self.stalled_since_s
            self.stalled_since_s = None
            self._moment(now, "joined")

    def _moment(self, now: float, what: str) -> None:
        if len(self.moments) < _MOST_MOMENTS:
            self.moments.append((now, what))

    def note(self, now: float, text: str) -> None:
        if len(self.life) < _LIFE_LINES:
            self.life.append(f"{now:.3f} {text}")
