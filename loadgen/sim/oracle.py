"""What a request's tokens must be: an undisturbed run of the hashchain engine, without a cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from loadgen.sim.case import Order
from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.hashchain import open_hashchain
from shared.engine.batch import Draw, StepItem
from shared.engine.hashchain import HashchainEngine
from shared.ids import PageId
from shared.kv.layout import PageLayout

BLOCK_TOKENS: Final = 4
LAYOUT: Final = PageLayout(
    layers=1, kv_heads=1, head_dim=16, block_tokens=BLOCK_TOKENS, dtype="float32"
)
_PAGES: Final = 64


@cache
def checkpoint() -> Checkpoint:
    return open_hashchain()


def build_engine(pages: int) -> HashchainEngine:
    """Real page memory and the real engine, on small pages."""
    return HashchainEngine(checkpoint(), LAYOUT, pages)


@dataclass(frozen=True, slots=True)
class Expected:
    """The whole stream and how it ends."""

    tokens: tuple[int, ...]
    finish: str


class Oracle:
    """Remembers nothing from one request to the next but its answers."""

    def __init__(self) -> None:
        self._engine = build_engine(_PAGES)
        self._known: dict[tuple[object, ...], Expected] = {}

    def expected(self, order: Order) -> Expected:
        key = (order.prompt, order.max_tokens, order.temperature, order.seed, order.stop)
        if key not in self._known:
            self._known[key] = self._run(order)
        return self._known[key]

    def _run(self, order: Order) -> Expected:
        tokens = list(order.prompt)
        table = tuple(PageId(page) for page in range(_PAGES))
        start, drawn = 0, 0
        while True:
            draw = Draw(order.temperature, 1.0, order.seed, drawn)
            item = StepItem(tuple(tokens[start:]), start, table, draw)
            token = self._engine.step([item]).tokens[0]
            if token is None:
                raise AssertionError("the engine drew nothing")
            start = len(tokens)
            tokens.append(token)
            drawn += 1
            if token in order.stop:
                return Expected(tuple(tokens[len(order.prompt) :]), "stop")
            if drawn == order.max_tokens:
                return Expected(tuple(tokens[len(order.prompt) :]), "length")
