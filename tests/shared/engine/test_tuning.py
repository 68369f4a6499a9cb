"""What is chosen at start: only what was asked for, or what gives the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.checkpoint import open_checkpoint
from shared.engine.building import EngineOptions, build_engine, engine_facts
from shared.engine.native.library import native
from shared.engine.tuning import HostSetup, fair_threads, tune
from shared.errors import StartupError

from ..checkpoint.files import TinyGguf
from .sequences import BLOCK, decode, pages_for, prefill, scattered

LIBRARY = native().functions
PROMPT = [(31 * index + 7) % 512 for index in range(40)]


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_without_a_library_torch_computes(tmp_path: Path) -> None:
    source = open_checkpoint(str(TinyGguf().write(tmp_path / "m.gguf"))).tensors
    tuned = tune(source, torch.float32, None, HostSetup())
    assert (tuned.threads, tuned.weights, tuned.figures) == (fair_threads(), "torch", {})


@pytest.mark.skipif(LIBRARY is None, reason="no library")
@pytest.mark.usefixtures("threads")
def test_measures_what_was_not_asked_for(tmp_path: Path) -> None:
    source = open_checkpoint(str(TinyGguf().write(tmp_path / "m.gguf"))).tensors
    tuned = tune(source, torch.float32, LIBRARY, HostSetup())
    assert tuned.weights in ("stored", "dense")
    assert {"stored_row_us", "dense_row_us", "threads_1_us"} <= set(tuned.figures)
    asked = tune(source, torch.float32, LIBRARY, HostSetup(1, "int8"))
    assert (asked.threads, asked.weights) == (1, "int8")
    assert tune(source, torch.bfloat16, LIBRARY, HostSetup(1)).weights == "stored"


def test_refuses_unknown_weights() -> None:
    with pytest.raises(StartupError, match="int3"):
        HostSetup(1, "int3")


@pytest.mark.skipif(LIBRARY is None, reason="no library")
@pytest.mark.usefixtures("threads")
def test_stored_and_dense_weights_draw_the_same(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(TinyGguf().write(tmp_path / "m.gguf")))
    found = []
    for weights in ("stored", "dense"):
        options = EngineOptions(threads=1, weights=weights)
        one = build_engine(checkpoint, "cpu", "float32", 16, BLOCK, "torch", options)
        assert engine_facts(one)["weights"] == weights
        pages = scattered(16, pages_for(60))
        found.append(decode(one, 40, prefill(one, PROMPT, pages), pages, 12))
    assert found[0] == found[1]
