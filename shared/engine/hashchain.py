"""An engine without weights whose every page byte matters: the token oracle of the tests.

    c[p]        = H(row[p-1], p, token[p])            64 bytes, keyed by model and layout
    row[p]      = c[p] xor mask(layer, k|v, head)     what the page holds at position p
    next token  = G(every full page, the valid part of the last, their order)

So a stale, torn, foreign or misplaced page changes what is drawn next.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.checkpoint.checkpoint import Checkpoint
from shared.engine.batch import Draw, StepItem, StepResult
from shared.engine.chance import draw_word
from shared.engine.checking import Limits, check_items
from shared.engine.drawing import result_of
from shared.engine.hashchain_draw import choose
from shared.engine.host_pages import HostPages
from shared.errors import EngineError
from shared.ids import PageId
from shared.kv.layout import PageLayout
from shared.wire.sampling import TokenLogprobs

POISONED: Final = 70
"""Exit code of a process that computed the poison token."""
_LINK_BYTES: Final = 64


class HashchainEngine:
    """Implements Engine on host memory. Draws printable ASCII only, never a stop token."""

    poison_token = -1
    """A fault for tests: computing this token ends the process, as a crash of an engine would."""

    def __init__(self, checkpoint: Checkpoint, layout: PageLayout, pages: int) -> None:
        self._digest = checkpoint.digest
        self._layout = layout
        self._pages = HostPages(pages, layout.page_bytes)
        if layout.head_dim * 4 != _LINK_BYTES or layout.dtype != "float32":
            raise EngineError("hashchain pages hold 16 float32 per head")
        self._cells = self._pages.bytes.reshape(
            pages, layout.layers * 2 * layout.kv_heads, layout.block_tokens, _LINK_BYTES
        )
        self._key = hashlib.sha256(f"{self._digest} {layout.digest}".encode()).digest()
        self._row_links = layout.layers * 2 * layout.kv_heads
        self._mask = int.from_bytes(b"".join(map(self._link_mask, range(self._row_links))))
        self._limits = Limits(
            checkpoint.spec.vocab, checkpoint.spec.context, pages, layout.block_tokens
        )

    @property
    def memory(self) -> HostPages:
        return self._pages

    @property
    def vocab_size(self) -> int:
        return self._limits.vocab

    @property
    def context_tokens(self) -> int:
        return self._limits.context_tokens

    @property
    def model_digest(self) -> str:
        return self._digest

    @property
    def layout_digest(self) -> str:
        return self._layout.digest

    def step(self, items: Sequence[StepItem]) -> StepResult:
        started = time.perf_counter()
        check_items(items, self._limits)
        if any(self.poison_token in item.tokens for item in items):
            os._exit(POISONED)
        for item in items:
            self._write(item)
        drawn = [self._draw(item, item.draw) for item in items if item.draw is not None]
        tokens, told = [token for token, _ in drawn], [logprobs for _, logprobs in drawn]
        return result_of(items, tokens, told, time.perf_counter() - started)

    def checksums(self, pages: Sequence[PageId], parts: int | None = None) -> tuple[int, ...]:
        if parts not in (None, 1):
            raise EngineError("hashchain pages are never split over ranks")
        return self._pages.checksums(pages)

    def _link_mask(self, index: int) -> bytes:
        place = struct.pack("<I", index)
        return hashlib.blake2b(place, digest_size=_LINK_BYTES, key=self._key).digest()

    def _write(self, item: StepItem) -> None:
        rows = self._rows(item)
        block, at = self._layout.block_tokens, 0
        while at < len(item.tokens):
            place, slot = divmod(item.start + at, block)
            count = min(block - slot, len(item.tokens) - at)
            cells = rows[at : at + count].swapaxes(0, 1)
            self._cells[item.page_table[place], :, slot : slot + count] = cells
            at += count

    def _rows(self, item: StepItem) -> NDArray[np.uint8]:
        """[token, link, byte] for the item's tokens, chained to the row before them."""
        row = self._row_before(item)
        rows = []
        for position, token in enumerate(item.tokens, item.start):
            place = struct.pack("<QI", position, token)
            link = hashlib.blake2b(row + place, digest_size=_LINK_BYTES, key=self._key).digest()
            spread = int.from_bytes(link * self._row_links) ^ self._mask
            row = spread.to_bytes(self._row_links * _LINK_BYTES)
            rows.append(row)
        return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, self._row_links, _LINK_BYTES)

    def _row_before(self, item: StepItem) -> bytes:
        if item.start == 0:
            return bytes(self._row_links * _LINK_BYTES)
        place, slot = divmod(item.start - 1, self._layout.block_tokens)
        return self._cells[item.page_table[place], :, slot].tobytes()

    def _draw(self, item: StepItem, draw: Draw) -> tuple[int, TokenLogprobs | None]:
        end = item.start + len(item.tokens)
        full, rest = divmod(end, self._layout.block_tokens)
        content = xxhash.xxh3_128(self._pages.bytes[list(item.page_table[:full])].data)
        if rest:
            content.update(self._cells[item.page_table[full], :, :rest].tobytes())
        content.update(struct.pack("<Q", end))
        if draw.temperature > 0:
            content.update(draw_word(draw.seed, draw.position))
        return choose(content, draw)
