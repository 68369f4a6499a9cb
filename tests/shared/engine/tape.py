"""A stand-in for CUDA graphs: what ran on tensors is kept and run again, the Python between is not.
One a thread.

Whatever a graph would freeze is frozen here: addresses, shapes, numbers that the host computed.
What a graph cannot record is refused: a value that is read back, numbers that the host brings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
)
from triton.runtime.interpreter import InterpretedFunction

from shared.engine.graphs import Replay

_REFUSED = (
    *("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select"),
    *("lift_fresh", "tolist"),
)


class Tape(TorchDispatchMode):
    """Implements Recorder, of torch's operations and of the interpreter's launches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._steps: list[Callable[[], object]] = []
        self.launches: list[str] = []
        """Names of the kernels of the last recording."""
        self.replays = 0
        plain = InterpretedFunction.run

        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            return self.launched(kernel.fn.__name__, lambda: plain(kernel, *args, **kwargs))

        monkeypatch.setattr(InterpretedFunction, "run", run)

    def launched(self, name: str, launch: Callable[[], Any]) -> Any:
        """Do what is no operation of torch, and keep it while recording."""
        if _get_current_dispatch_mode() is not self:
            return launch()
        self.launches.append(name)
        self._steps.append(launch)
        with _disable_current_modes():
            return launch()

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        work()
        steps = self._steps = []
        self.launches = []
        with self:
            result = work()

        def replay() -> torch.Tensor:
            self.replays += 1
            for step in steps:
                step()
            return result

        return replay

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        assert name not in _REFUSED, f"a graph cannot record {name}"
        made = func(*args, **kwargs)
        if name.startswith("empty"):
            return made
        if func._schema.is_mutable:
            self._steps.append(lambda: func(*args, **kwargs))
            return made
        given = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
        outs = made if isinstance(made, tuple | list) else (made,)
        if all(one.untyped_storage().data_ptr() in given for one in outs):
            return made

        def again() -> None:
            new = func(*args, **kwargs)
            news = new if isinstance(new, tuple | list) else (new,)
            for old, value in zip(outs, news, strict=True):
                old.copy_(value)

        self._steps.append(again)
        return made
