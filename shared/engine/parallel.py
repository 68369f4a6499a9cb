"""The engine of a tensor-parallel worker, seen from rank 0: it owns the service, draws the tokens
and tells the other ranks what to compute.

    rank 0 (this process) ──step──► rank 1 … n-1 (child processes); sums over torch.distributed
Pages are shards in memory that rank 0 maps, too (host: a shared file; GPU: a handle of it), so it
serves the data plane alone.
A rank that ends or fails ends the worker: half a model answers nothing.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import torch

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.spec import ModelSpec
from shared.engine.batch import StepItem, StepResult
from shared.engine.checking import Limits, check_items
from shared.engine.device_handles import borrow
from shared.engine.device_pages import DevicePages
from shared.engine.host_pages import HostPages
from shared.engine.rank_devices import rank_devices
from shared.engine.rank_group import RankGroup
from shared.engine.rank_process import DONE, READY, RECORDED, UP
from shared.engine.rank_wire import RankLink, RankOrder, pack_recording, pack_step
from shared.engine.runner import TorchEngine
from shared.engine.sharded_pages import ShardedPages
from shared.engine.tuning import HostSetup
from shared.errors import CheckpointError, EngineError, EngineLost, StartupError
from shared.ids import PageId
from shared.kv.layout import PageLayout

_READY_S: Final = 300.0
_STEP_S: Final = 60.0
_END_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Follower:
    rank: int
    process: subprocess.Popen[bytes]
    link: RankLink
    end: socket.socket


class ParallelEngine:
    """Implements Engine and `Spread` over one process per rank."""

    def __init__(
        self,
        leader: TorchEngine,
        followers: Sequence[_Follower],
        memory: ShardedPages,
        limits: Limits,
        layout: PageLayout,
    ) -> None:
        self._leader = leader
        self.tuned = leader.tuned
        self.followers = followers
        self._limits = limits
        self._layout = layout
        self.memory = memory
        self._lost = ""
        self._closing = False
        self._tell: Callable[[EngineLost], None] | None = None
        self._lock = threading.Lock()
        for follower in followers:
            name = f"rank-{follower.rank}"
            threading.Thread(target=self._watch, args=(follower,), name=name, daemon=True).start()

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        layout: PageLayout,
        pages: int,
        setup: HostSetup,
        size: int,
        device: str = "cpu",
    ) -> ParallelEngine:
        """Start the other ranks and load all shards; blocks for seconds. `device`: the host's
        processors, or the first of `size` neighbouring GPUs. Raises StartupError, CheckpointError,
        EngineError."""
        check_split(checkpoint.spec, size)
        devices = rank_devices(device, size, torch.cuda.device_count())
        shard = layout.shard(size)
        # The pages of a rank on a GPU are its own: their files stay empty.
        on_host = devices[0] == "cpu"
        files = [_page_file(pages * shard.page_bytes if on_host else 0) for _ in range(size)]
        followers: list[_Follower] = []
        try:
            with tempfile.TemporaryDirectory(prefix="baton-ranks-") as folder:
                meeting = str(Path(folder) / "meeting")
                order = RankOrder(
                    str(checkpoint.path),
                    layout.dtype,
                    pages,
                    layout.block_tokens,
                    setup.threads,
                    setup.weights,
                    0,
                    size,
                    meeting,
                    devices[0],
                )
                orders = [
                    replace(order, rank=rank, device=devices[rank]) for rank in range(1, size)
                ]
                followers = [_start(one, files[one.rank]) for one in orders]
                for follower in followers:
                    _await_start(follower, UP)
                team = RankGroup(0, size, meeting, devices[0])
                leader = TorchEngine.load(
                    checkpoint, devices[0], layout, pages, setup, team, files[0]
                )
                told = [_await_start(follower, READY) for follower in followers]
            others = [
                _mapped(pages, shard.page_bytes, file, lent)
                for file, lent in zip(files[1:], told, strict=True)
            ]
        except BaseException:
            _kill(followers)
            raise
        finally:
            for file in files:
                os.close(file)
        limits = Limits(checkpoint.spec.vocab, checkpoint.spec.context, pages, layout.block_tokens)
        memory = ShardedPages(layout, [leader.pages, *others])
        return cls(leader, followers, memory, limits, layout)

    def record_graphs(self, most_sequences: int) -> int:
        """As `TorchEngine.record_graphs`, on all ranks at once: the sums are recorded with the
        rest, so each records the same steps in the same order. Raises EngineError; then the other
        ranks have ended."""
        try:
            for follower in self.followers:
                follower.link.send(pack_recording(most_sequences))
            count = self._leader.record_graphs(most_sequences)
            for follower in self.followers:
                _await_recorded(follower, count)
        except EngineError:
            self.close()
            raise
        return count

    @property
    def vocab_size(self) -> int:
        return self._limits.vocab

    @property
    def context_tokens(self) -> int:
        return self._limits.context_tokens

    @property
    def model_digest(self) -> str:
        return self._leader.model_digest

    @property
    def layout_digest(self) -> str:
        """Of whole pages: workers of any number of ranks can exchange them."""
        return self._layout.digest

    def step(self, items: Sequence[StepItem]) -> StepResult:
        """See Engine. What fails once the ranks began is `EngineLost`: they may have parted."""
        check_items(items, self._limits)
        if not items:
            return self._leader.step(items)
        if self._lost:
            raise EngineLost(self._lost)
        try:
            message = pack_step(items)
            for follower in self.followers:
                follower.link.send(message)
            result = self._leader.step(items)
            for follower in self.followers:
                _await_done(follower)
        except EngineError as error:
            raise self._fail(error.message) from error
        return result

    def checksums(self, pages: Sequence[PageId], parts: int | None = None) -> tuple[int, ...]:
        return self.memory.checksums(pages, parts or len(self.memory.parts))

    def on_lost(self, tell: Callable[[EngineLost], None]) -> None:
        """`tell` is called once, from another thread, when a rank has ended or failed."""
        with self._lock:
            self._tell = tell
            lost = self._lost
        if lost:
            tell(EngineLost(lost))

    def close(self) -> None:
        """End the other ranks, once. Blocks for seconds at most."""
        if self._closing:
            return
        self._closing = True
        self._leader.forget_graphs()
        for follower in self.followers:
            follower.end.shutdown(socket.SHUT_RDWR)
            try:
                follower.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                follower.process.kill()
                follower.process.wait()
            follower.link.close()

    def _watch(self, follower: _Follower) -> None:
        code = follower.process.wait()
        if not self._closing:
            self._fail(f"tensor parallel rank {follower.rank} ended with code {code}")

    def _fail(self, reason: str) -> EngineLost:
        """The first reason is the one that is told."""
        with self._lock:
            first, self._lost = not self._lost, self._lost or reason
            tell = self._tell
        error = EngineLost(self._lost)
        if first and tell is not None:
            tell(error)
        return error


def check_split(spec: ModelSpec, size: int) -> None:
    """Raise StartupError when the model cannot be split over so many ranks."""
    try:
        spec.shard(size)
    except CheckpointError as error:
        raise StartupError(f"{error.message}; set tensor_parallel to a divisor") from error


def _page_file(size_bytes: int) -> int:
    try:
        file = os.memfd_create("baton-pages", os.MFD_CLOEXEC)
        os.ftruncate(file, size_bytes)
    except OSError as error:
        raise EngineError(f"cannot map {size_bytes} bytes of pages: {error.strerror}") from error
    return file


def _kill(followers: Sequence[_Follower]) -> None:
    for follower in followers:
        follower.process.kill()
        follower.link.close()
        follower.process.wait()


def _mapped(pages: int, page_bytes: int, file: int, lent: object) -> HostPages | DevicePages:
    """Another rank's pages: of the shared file, or lent by the rank."""
    if lent is None:
        return HostPages(pages, page_bytes, file)
    return borrow(lent, pages, page_bytes)


def _start(order: RankOrder, pages_file: int) -> _Follower:
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-m", "shared.engine.rank_process"]
    files = (theirs.fileno(), pages_file)
    root = Path(__file__).resolve().parents[2]
    with theirs:
        process = subprocess.Popen(
            [*words, *map(str, files)], pass_fds=files, cwd=root, stdin=subprocess.DEVNULL
        )
    link = RankLink(ours)
    link.send(asdict(order))
    return _Follower(order.rank, process, link, ours)


def _await_start(follower: _Follower, stage: str) -> object:
    """What the rank adds to the stage that it has reached: None but for pages on a GPU."""
    follower.end.settimeout(_READY_S)
    answer = follower.link.receive()
    told = answer.get(stage) if isinstance(answer, dict) else None
    if answer != stage and told is None:
        raise StartupError(f"tensor parallel rank {follower.rank} cannot start: {_reason(answer)}")
    follower.end.settimeout(_STEP_S)
    return told


def _await_done(follower: _Follower) -> None:
    answer = follower.link.receive()
    if answer != DONE:
        raise EngineError(f"tensor parallel rank {follower.rank} failed: {_reason(answer)}")


def _await_recorded(follower: _Follower, count: int) -> None:
    answer, name = follower.link.receive(), f"tensor parallel rank {follower.rank}"
    told = answer.get(RECORDED) if isinstance(answer, dict) else None
    if told is None:
        raise EngineError(f"{name} cannot record: {_reason(answer)}")
    if told != count:
        raise EngineError(f"{name} recorded {told} steps, rank 0 {count}: they would wait for ever")


def _reason(answer: object) -> object:
    return answer.get("error", "no reason") if isinstance(answer, dict) else answer
