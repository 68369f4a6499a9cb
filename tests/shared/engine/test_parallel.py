"""Tensor parallelism with two real processes: the same tokens, whole checksums, and a clean end."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.checkpoint import Checkpoint, open_checkpoint
from shared.checkpoint.geometry import page_layout
from shared.dataplane.memory import MemoryFabric
from shared.dataplane.sharded import ShardedPlane
from shared.engine.batch import StepItem
from shared.engine.parallel import ParallelEngine
from shared.engine.runner import TorchEngine
from shared.engine.tuning import HostSetup
from shared.errors import EngineError, EngineLost, StartupError
from shared.ids import PageId

from ..checkpoint.files import tiny_spec, write_folder
from ..checkpoint.tiny_families import TinyFamily, write_safetensors
from ..dataplane.pages import TICKET, TicketGuard, reads
from .sequences import BLOCK, decode, pages_for, prefill, scattered, table
from .test_families import FAMILIES

PAGES = 32
PROMPT = [(31 * index + 7) % 512 for index in range(150)]


SETUP = HostSetup(threads=1, weights="stored")


def parallel(checkpoint: Checkpoint, size: int = 2) -> ParallelEngine:
    layout = page_layout(checkpoint, "float32", BLOCK)
    return ParallelEngine.load(checkpoint, layout, PAGES, SETUP, size)


def alone(checkpoint: Checkpoint) -> TorchEngine:
    return TorchEngine.load(
        checkpoint, "cpu", page_layout(checkpoint, "float32", BLOCK), PAGES, SETUP
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Four KV heads, biases, a window, and a vocabulary that does not divide."""
    config = FAMILIES["qwen2, window in upper layers"].config
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 513}
    family = TinyFamily(config=config | heads, gguf_name=None)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return open_checkpoint(str(write_safetensors(folder, family)))


@pytest.fixture(scope="module")
def pair(checkpoint: Checkpoint) -> Iterator[tuple[ParallelEngine, TorchEngine]]:
    two = parallel(checkpoint)
    assert two.record_graphs(4) == 0, "processors have no graphs"
    yield two, alone(checkpoint)
    two.close()


def tokens_of(engine: ParallelEngine | TorchEngine) -> list[int]:
    pages = scattered(PAGES, pages_for(len(PROMPT) + 20))
    first = prefill(engine, PROMPT, pages, seed=3)
    return decode(engine, len(PROMPT), first, pages, 20)


def test_two_ranks_draw_the_tokens_of_one(pair: tuple[ParallelEngine, TorchEngine]) -> None:
    two, one = pair
    assert tokens_of(two) == tokens_of(one)


def test_whole_pages_have_one_checksum_whoever_holds_them(
    pair: tuple[ParallelEngine, TorchEngine],
) -> None:
    two, one = pair
    tokens_of(one)
    used = scattered(PAGES, pages_for(len(PROMPT)))
    for page in used:
        staged = two.memory.staging(1, 1)
        staged.run(table(0)[0], 1)[:] = one.memory.run(page, 1)
        staged.adopt(0, [(table(0)[0], page)])
    for parts in (1, 2, 4):
        assert two.checksums(used, parts) == one.checksums(used, parts)
    assert len({one.checksums(used, parts) for parts in (1, 2, 4)}) == 3
    assert two.checksums(used) == one.checksums(used, 2)
    with pytest.raises(EngineError, match="page id"):
        two.checksums(table(PAGES))


def test_a_bad_step_is_refused_before_any_rank_hears_of_it(
    pair: tuple[ParallelEngine, TorchEngine],
) -> None:
    two, one = pair
    with pytest.raises(EngineError, match="token id"):
        two.step([StepItem((9_999,), 0, table(0), None)])
    assert tokens_of(two) == tokens_of(one)


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    spec = tiny_spec(heads=9, kv_heads=3)
    checkpoint = open_checkpoint(str(write_folder(tmp_path / "m", spec)))
    with pytest.raises(StartupError, match="kv_heads 3 cannot be split over 2"):
        parallel(checkpoint)


def test_the_end_of_a_rank_is_the_end_of_the_engine(checkpoint: Checkpoint) -> None:
    two, told, heard = parallel(checkpoint), [], threading.Event()

    def lost(error: EngineLost) -> None:
        told.append(error.message)
        heard.set()

    two.on_lost(lost)
    os.kill(two.followers[0].process.pid, signal.SIGKILL)
    assert heard.wait(30)
    assert told == ["tensor parallel rank 1 ended with code -9"]
    with pytest.raises(EngineLost, match="rank 1"):
        two.step([StepItem((1,), 0, table(0), None)])
    two.close()


@pytest.mark.parametrize("towards", ["one rank", "two ranks"])
async def test_a_handoff_between_other_numbers_of_ranks_gives_the_same_tokens(
    checkpoint: Checkpoint, pair: tuple[ParallelEngine, TorchEngine], towards: str
) -> None:
    two, one = pair
    expected = tokens_of(alone(checkpoint))
    source, target = (two, one) if towards == "one rank" else (one, two)
    taken = scattered(PAGES, pages_for(len(PROMPT) + 20))
    first = prefill(source, PROMPT, taken, seed=4)
    sent = taken[: pages_for(len(PROMPT))]
    kept = scattered(PAGES, pages_for(len(PROMPT) + 20), seed=9)
    await pulled(source, target, list(zip(sent, kept, strict=False)))
    ranks = len(source.memory.parts)
    assert target.checksums(kept[: len(sent)], ranks) == source.checksums(sent)
    assert decode(target, len(PROMPT), first, kept, 20) == expected


async def pulled(
    source: ParallelEngine | TorchEngine,
    target: ParallelEngine | TorchEngine,
    pairs: list[tuple[PageId, PageId]],
) -> None:
    """As a decode worker takes a prompt's pages in."""
    fabric, lanes = MemoryFabric(), itertools.count()
    planes = []
    for engine in (source, target):
        plane = ShardedPlane(lambda: fabric.plane(f"lane-{next(lanes)}"))
        plane.register(engine.memory, TicketGuard(), engine.layout_digest)
        await plane.start()
        planes.append(plane)
    owner, reader = planes
    await reader.read(owner.address, TICKET, reads(pairs), 20.0)
    for plane in planes:
        await plane.close()
