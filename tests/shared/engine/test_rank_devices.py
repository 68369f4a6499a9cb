"""Ranks on GPUs, as far as a host without any can tell: which device each has, what they add up
with, how their memory is told of, and pages on a device cut as pages in host memory are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shared.checkpoint import open_checkpoint
from shared.engine import rank_group
from shared.engine.building import EngineOptions, build_engine
from shared.engine.device_handles import pack, unpack
from shared.engine.device_pages import DevicePages
from shared.engine.head_runs import HeadRun
from shared.engine.host_pages import HostPages
from shared.engine.rank_devices import rank_devices
from shared.engine.rank_group import RankGroup, collectives
from shared.engine.sharded_pages import ShardedPages
from shared.errors import EngineError, StartupError
from shared.kv.layout import PageLayout

from ..checkpoint.files import tiny_spec, write_folder
from .sequences import BLOCK, table

LAYOUT = PageLayout(layers=2, kv_heads=4, head_dim=8, block_tokens=16, dtype="bfloat16")
PAGES = 6


def test_neighbouring_gpus_one_a_rank_or_the_processors_for_all() -> None:
    assert rank_devices("cpu", 3, 0) == ("cpu", "cpu", "cpu")
    assert rank_devices("cuda", 2, 2) == ("cuda:0", "cuda:1")
    assert rank_devices("cuda:2", 2, 8) == ("cuda:2", "cuda:3")


@pytest.mark.parametrize(
    ("device", "gpus", "words"),
    [
        ("cuda", 1, "tensor_parallel 2 on 'cuda' needs GPUs 0 to 1: torch sees 1"),
        ("cuda:7", 8, "tensor_parallel 2 on 'cuda:7' needs GPUs 7 to 8: torch sees 8"),
        ("cuda:x", 8, "device 'cuda:x' is not 'cpu', 'cuda' or 'cuda:N'"),
        ("tpu", 8, "device 'tpu' is not 'cpu', 'cuda' or 'cuda:N'"),
    ],
)
def test_too_few_gpus_are_one_clear_line(device: str, gpus: int, words: str) -> None:
    with pytest.raises(StartupError) as told:
        rank_devices(device, 2, gpus)
    assert told.value.message == words


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="this host has two GPUs")
def test_a_host_without_them_refuses_before_any_rank_starts(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_folder(tmp_path / "m", tiny_spec())))
    options = EngineOptions(ranks=2)
    with pytest.raises(StartupError, match="needs GPUs 0 to 1: torch sees"):
        build_engine(checkpoint, "cuda", "float32", PAGES, BLOCK, "torch", options)


def test_gpus_add_up_with_nccl_and_processors_with_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []
    options = SimpleNamespace(_timeout=None)

    class Nccl:
        Options = staticmethod(lambda: options)

        def __init__(self, *given: Any) -> None:
            made.append(given)

    store = rank_group.c10d.FileStore(str(tmp_path / "meeting"), 1)
    monkeypatch.setattr(rank_group.c10d, "ProcessGroupNCCL", Nccl, raising=False)
    assert isinstance(collectives("cuda")(store, 1, 2), Nccl)
    assert made == [(store, 1, 2, options)] and options._timeout.total_seconds() == 60
    assert "Gloo" in type(collectives("cpu")(store, 0, 1)).__name__
    monkeypatch.setattr(rank_group.c10d, "ProcessGroupNCCL", None, raising=False)
    with pytest.raises(RuntimeError, match="no NCCL"):
        collectives("cuda")(store, 0, 1)


@pytest.mark.parametrize("columns", [7, 8])
def test_one_rank_alone_adds_and_joins(tmp_path: Path, columns: int) -> None:
    group, part = RankGroup(0, 1, str(tmp_path / "meeting")), torch.rand(2, columns)
    assert torch.equal(group.join(part, columns), part)
    assert torch.equal(group.sum_(part.clone()), part)


def test_handles_cross_the_wire_as_they_are() -> None:
    told = (1, b"\x00\xff", 4096, 512, b"/name", 3, b"", True)
    assert unpack(pack(told)) == told
    for wrong in (None, {}, pack(told) | {"handle": "no digits"}, pack(told) | {"more": 1}):
        with pytest.raises(EngineError, match="where its pages are"):
            unpack(wrong)


def pieces(parts: int, on_device: bool) -> ShardedPages:
    """The same bytes for any number of ranks, here or there."""
    shape = (PAGES, 2 * LAYOUT.layers, LAYOUT.kv_heads, 16 * 8 * 2)
    whole = np.random.default_rng(5).integers(0, 256, shape, np.uint8)
    shard, found = LAYOUT.shard(parts), []
    for piece in np.split(whole, parts, axis=2):
        flat = np.ascontiguousarray(piece).reshape(PAGES, shard.page_bytes)
        host = HostPages(PAGES, shard.page_bytes)
        host.bytes[:] = flat
        found.append(DevicePages(torch.from_numpy(flat)) if on_device else host)
    return ShardedPages(LAYOUT, found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off where there is a GPU")
@pytest.mark.parametrize("wanted", [1, 2, 4])
@pytest.mark.parametrize("own", [1, 2, 4])
def test_pages_on_a_device_have_the_checksums_of_pages_in_host_memory(
    own: int, wanted: int
) -> None:
    pages = table(4, 0, 5)
    expected = pieces(1, on_device=False).checksums(pages, wanted)
    assert pieces(own, on_device=True).checksums(pages, wanted) == expected
    assert pieces(own, on_device=False).checksums(pages, wanted) == expected
    with pytest.raises(EngineError, match="page id"):
        pieces(own, on_device=True).checksums(table(PAGES), wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off where there is a GPU")
@pytest.mark.parametrize(("own", "owner"), [(2, 1), (1, 2), (2, 4)])
def test_pages_of_other_ranks_are_adopted_on_a_device(own: int, owner: int) -> None:
    source, target = pieces(owner, on_device=False), pieces(own, on_device=True)
    for part, memory in enumerate(source.parts):
        staged = target.staging(owner, 2)
        for slot, page in enumerate(table(3, 1)):
            staged.run(table(slot)[0], 1)[:] = memory.run(page, 1)
        staged.adopt(part, list(zip(table(0, 1), table(5, 2), strict=True)))
    assert target.checksums(table(5, 2), owner) == source.checksums(table(3, 1), owner)
    assert target.checksums(table(0, 4), 1) == pieces(1, on_device=False).checksums(table(0, 4), 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off where there is a GPU")
def test_heads_of_odd_sizes_are_moved_by_the_byte() -> None:
    layout = PageLayout(layers=1, kv_heads=2, head_dim=3, block_tokens=1, dtype="bfloat16")
    memory = DevicePages(torch.arange(48, dtype=torch.uint8).view(2, 24))
    taken = memory.take(table(1), HeadRun(layout, 1, 1))
    assert taken.tolist() == [[[[*range(30, 36)]], [[*range(42, 48)]]]]
    memory.put(table(0), HeadRun(layout, 0, 1), taken)
    assert memory.bytes[0].tolist() == [
        *(*range(30, 36), *range(6, 12)),
        *(*range(42, 48), *range(18, 24)),
    ]
