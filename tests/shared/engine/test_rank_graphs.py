"""Ranks that record decode steps: the same steps and sums on all of them, the same tokens as
without. The ranks are threads here, each with a tape for its graphs; their sums go over gloo."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from shared.checkpoint import open_checkpoint
from shared.checkpoint.geometry import page_layout
from shared.engine import parallel, rank_group, rank_process
from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import Draw, StepItem
from shared.engine.device_attention import DeviceStaticAttention
from shared.engine.device_kernels import DeviceKernels
from shared.engine.graph_plan import GraphPlan
from shared.engine.graphs import CudaRecorder, DecodeGraphs
from shared.engine.model import DecoderModel
from shared.engine.paged_kv import PagedKv
from shared.engine.parallel import ParallelEngine
from shared.engine.rank_wire import RankLink, RankOrder, pack_recording, unpack_recording
from shared.engine.runner import TorchEngine
from shared.engine.sampler import sample
from shared.engine.tuning import HostSetup
from shared.errors import EngineError

from ..checkpoint.tiny_families import TinyFamily, write_safetensors
from .sequences import BLOCK, prefill, scattered
from .tape import Tape
from .test_families import FAMILIES

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the interpreter is off where there is a GPU"
)
PAGES = 32
LENGTHS = (12, 3)
SETUP = HostSetup(threads=1, weights="stored", kernels=True)
Sums = list[tuple[str, tuple[int, ...]]]


class TapedGroup:
    """A process group whose collectives a tape keeps, as a capture keeps NCCL's."""

    def __init__(self, group: Any, tape: Tape, sums: Sums) -> None:
        self._group = group
        self._tape = tape
        self._sums = sums

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        return self._run("sum", tensors[0], lambda: self._group.allreduce(tensors))

    def allgather(self, parts: list[list[torch.Tensor]], given: list[torch.Tensor]) -> Any:
        return self._run("join", given[0], lambda: self._group.allgather(parts, given))

    def _run(self, name: str, tensor: torch.Tensor, start: Callable[[], Any]) -> Any:
        def launch() -> Any:
            self._sums.append((name, tuple(tensor.shape)))
            work = start()
            work.wait()
            return work

        return self._tape.launched(name, launch)


class Thread:
    """Stands for the process of a rank."""

    pid = 0

    def __init__(self, run: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("rank", timeout or 0)
        return 0

    def kill(self) -> None:
        """Its socket is closed next."""


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are threads on our kernels; the interpreter takes them one at a time. Drawing, which
    is slow there and rank 0's alone, is torch's."""
    plain, lock = InterpretedFunction.run, threading.Lock()

    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return plain(kernel, *args, **kwargs)

    def start(order: RankOrder, pages_file: int) -> parallel._Follower:
        ours, theirs = socket.socketpair()
        link, file = RankLink(ours), os.dup(pages_file)
        link.send(asdict(order))

        def serve() -> None:
            with theirs:
                rank_process.serve(RankLink(theirs), file)
            os.close(file)

        process: Any = Thread(serve)
        return parallel._Follower(order.rank, process, link, ours)

    monkeypatch.setattr(DeviceKernels, "sample", lambda _, logits, draws: sample(logits, draws))
    monkeypatch.setattr(InterpretedFunction, "run", run)
    monkeypatch.setattr(rank_process, "HostSetup", lambda threads, weights: SETUP)
    monkeypatch.setattr(parallel, "_start", start)


@pytest.fixture
def taped(
    in_threads: None, monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[Tape, Tape], tuple[Sums, Sums]]:
    """Each rank's tape, and its sums in the order in which they ran."""
    tapes, sums = (Tape(monkeypatch), Tape(monkeypatch)), ([], [])
    gloo = rank_group._gloo

    def on_device(
        cls: type[DecodeGraphs],
        model: DecoderModel,
        kv: PagedKv,
        rules: AttentionRules,
        plan: GraphPlan,
    ) -> DecodeGraphs:
        tape = tapes[model._team.rank]
        return cls(model, kv, plan, tape, lambda at: DeviceStaticAttention(kv, rules, at))

    monkeypatch.setattr(
        rank_group,
        "_gloo",
        lambda store, rank, size: TapedGroup(gloo(store, rank, size), tapes[rank], sums[rank]),
    )
    monkeypatch.setattr(DecodeGraphs, "on_device", classmethod(on_device))
    return tapes, sums


@contextlib.contextmanager
def two_ranks(folder: Path, name: str) -> Iterator[tuple[ParallelEngine, TorchEngine]]:
    """Of a vocabulary that does not divide; and the same model on one processor."""
    small = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 513}
    small |= {"num_hidden_layers": 2}
    if "sliding_window" in FAMILIES[name].config:
        small["sliding_window"] = 7
    family = TinyFamily(config=FAMILIES[name].config | small, gguf_name=None)
    checkpoint = open_checkpoint(str(write_safetensors(folder / "tiny", family)))
    layout = page_layout(checkpoint, "float32", BLOCK)
    two = ParallelEngine.load(checkpoint, layout, PAGES, SETUP, 2)
    plain = HostSetup(threads=1, weights="stored")
    try:
        yield two, TorchEngine.load(checkpoint, "cpu", layout, PAGES, plain)
    finally:
        two.close()


def drawn(engine: ParallelEngine | TorchEngine) -> list[int]:
    """The first sequence alone for two steps, then both."""
    places, tokens, found = scattered(PAGES, 8, 5), [], []
    tables = places[:4], places[4:]
    for number, length in enumerate(LENGTHS):
        prompt = [(31 * index + 7 * number) % 512 for index in range(length)]
        tokens.append(prefill(engine, prompt, tables[number]))
    ends = list(LENGTHS)
    for step in range(4):
        count = 1 if step < 2 else 2
        items = [
            StepItem((tokens[one],), ends[one], tables[one], Draw(0.0, 1.0, 0, step))
            for one in range(count)
        ]
        tokens[:count] = [token for token in engine.step(items).tokens if token is not None]
        ends = [end + (one < count) for one, end in enumerate(ends)]
        found += tokens[:count]
    return found


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_recorded_ranks_give_the_tokens_and_the_sums_of_unrecorded_ones(
    name: str, tmp_path: Path, taped: tuple[tuple[Tape, Tape], tuple[Sums, Sums]]
) -> None:
    tapes, sums = taped
    with two_ranks(tmp_path, name) as (two, one):
        before = len(sums[0])
        tokens = drawn(two)
        assert tokens == drawn(one)
        unrecorded = sums[0][before:]
        assert two.record_graphs(2) == 2
        assert tapes[0].launches == tapes[1].launches and "sum" in tapes[0].launches
        assert [tape.replays for tape in tapes] == [0, 0]
        before = len(sums[0])
        assert drawn(two) == tokens
        assert sums[0][before:] == unrecorded
        assert [tape.replays for tape in tapes] == [4, 4], "each step of both ranks was a replay"
        assert sums[0] == sums[1], "each rank's sums met the other's in one order"


def test_ranks_that_recorded_unlike_steps_do_not_serve(
    in_threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchEngine, "record_graphs", lambda self, _: self._model._team.rank)
    with two_ranks(tmp_path, "llama") as (two, _):
        with pytest.raises(EngineError, match="rank 1 recorded 1 steps, rank 0 0"):
            two.record_graphs(2)
        assert two.followers[0].process.wait(10) == 0


def test_a_rank_ends_with_rank_0_while_it_waits_for_a_sum(tmp_path: Path) -> None:
    """A real process: nobody comes to the meeting that it waits for."""
    meeting, pages = str(tmp_path / "meeting"), os.memfd_create("pages")
    order = RankOrder("no-model", "float32", 1, BLOCK, 1, "stored", 1, 2, meeting, "cpu")
    follower = parallel._start(order, pages)
    parallel._await_start(follower, rank_process.UP)
    assert follower.process.poll() is None
    follower.link.close()
    assert follower.process.wait(20) == 0
    os.close(pages)


def test_recordings_cross_the_wire() -> None:
    assert unpack_recording(pack_recording(7)) == 7
    assert unpack_recording([[1], 0, [0], True]) is None
    for wrong in ({}, {"record": "7"}, pack_recording(7) | {"more": 1}):
        with pytest.raises(EngineError, match="no recording"):
            unpack_recording(wrong)


def test_a_capture_lets_other_threads_be_and_follows_warm_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL's watchdog asks for events while a rank captures; the first sums open connections."""
    ran: list[str] = []

    class Stream:
        def __init__(self, *_: object) -> None: ...

        def wait_stream(self, other: object) -> None: ...

    class Graph:
        def replay(self) -> None:
            ran.append("replay")

    @contextlib.contextmanager
    def graph(_: Graph, **given: object) -> Iterator[None]:
        ran.append(f"capture {given['capture_error_mode']}")
        yield
        ran.append("captured")

    def work() -> torch.Tensor:
        ran.append("work")
        return torch.zeros(1)

    stubs = {"Stream": Stream, "CUDAGraph": Graph, "graph": graph}
    stubs |= {"stream": lambda _: contextlib.nullcontext(), "current_stream": lambda _: Stream()}
    stubs |= {"graph_pool_handle": lambda: (0, 0)}
    for name, stub in stubs.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    replay = CudaRecorder(torch.device("cuda", 0)).record(work)
    assert replay() is replay()
    assert ran == ["work"] * 2 + ["capture thread_local", "work", "captured"] + ["replay"] * 2
