"""What a check of the kernels finds: errors against limits, seconds against ceilings and rivals."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch

REPEATS: Final = 7
ERROR_LIMITS: Final = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class Check:
    """Largest error of one kernel in one case, relative to max(1, |expected|)."""

    kernel: str
    case: str
    error: float
    limit: float

    @property
    def ok(self) -> bool:
        """False for a NaN as well."""
        return self.error <= self.limit


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one kernel, what it moves and multiplies, and another way to the same."""

    kernel: str
    case: str
    seconds: float
    moved_bytes: int
    flops: int = 0
    rival: str = ""
    rival_seconds: float = 0.0


@dataclass(slots=True)
class Bench:
    """Collects results on one device. Knows whether there is time left."""

    device: torch.device
    dry: bool
    limit_s: float
    seed: int
    checks: list[Check] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.chance = random.Random(self.seed)

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Fresh standard normal numbers on the device."""
        return torch.randn(shape, device=self.device).to(dtype)

    def ints(self, values: Sequence[int]) -> torch.Tensor:
        """int32 on the device."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def has_time(self, what: str) -> bool:
        """Says no, and notes what was left out, once the time is spent."""
        if time.monotonic() - self.started_s < self.limit_s:
            return True
        self.skipped.append(what)
        return False

    def compare(
        self, kernel: str, case: str, got: torch.Tensor, want: torch.Tensor, limit: float
    ) -> None:
        """Note the largest relative error; a NaN or another shape counts as infinite."""
        if got.shape != want.shape or bool(got.isnan().any()):
            error = float("inf")
        else:
            wide = want.double()
            error = float(((got.double() - wide).abs() / wide.abs().clamp(min=1)).max())
        self.checks.append(Check(kernel, case, error, limit))

    def seconds(self, run: Callable[[], Any]) -> float:
        """Median of a few runs after a warm one, by CUDA events; one run in the interpreter."""
        if self.device.type != "cuda":
            begin_s = time.perf_counter()
            run()
            return time.perf_counter() - begin_s
        run()
        taken: list[float] = []
        for _ in range(REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end) / 1000)
        return statistics.median(taken)

    def ceilings(self) -> dict[str, float]:
        """Bytes a second of a copy (read + written) and flops a second of a bf16 product, here."""
        side = 64 if self.dry else 8192
        source = torch.zeros(side * side * 4, dtype=torch.bfloat16, device=self.device)
        target = torch.empty_like(source)
        copied = self.seconds(lambda: target.copy_(source))
        a = self.random(side, side, dtype=torch.bfloat16)
        product = self.seconds(lambda: a @ a)
        return {
            "copy_bytes_per_s": 2 * source.numel() * 2 / copied,
            "matrix_flops_per_s": 2 * side**3 / product,
        }

    def summary(self, ceilings: dict[str, float]) -> dict[str, Any]:
        """Everything as one JSON object."""
        return {
            "bench": "gpu-check",
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "interpreter",
            "dry": self.dry,
            "seed": self.seed,
            "ok": all(check.ok for check in self.checks),
            "seconds": round(time.monotonic() - self.started_s, 1),
            "ceilings": ceilings,
            "checks": [{**asdict(check), "ok": check.ok} for check in self.checks],
            "timings": [_with_shares(timing, ceilings) for timing in self.timings],
            "skipped": self.skipped,
        }


def _with_shares(timing: Timing, ceilings: dict[str, float]) -> dict[str, Any]:
    shares: dict[str, Any] = asdict(timing)
    shares["copy_share"] = timing.moved_bytes / timing.seconds / ceilings["copy_bytes_per_s"]
    shares["matrix_share"] = timing.flops / timing.seconds / ceilings["matrix_flops_per_s"]
    if timing.rival:
        shares["times_faster_than_rival"] = timing.rival_seconds / timing.seconds
    return shares
