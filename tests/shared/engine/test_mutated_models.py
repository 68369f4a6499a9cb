"""Damaged model files: they load, or one CheckpointError of one line says what is wrong; never
another exception, never memory that the file does not account for."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shared.checkpoint import open_checkpoint
from shared.checkpoint.gguf_header import read_header
from shared.checkpoint.safetensors_file import read_table
from shared.engine.team import Alone
from shared.engine.weights import load_weights
from shared.errors import CheckpointError

from ..checkpoint.tiny_families import write_gguf, write_safetensors
from .test_families import FAMILIES

MOST_BYTES: Final = 64 << 20
SLOW: Final = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
EXTREMES = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1])
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.floats(0, 1, exclude_max=True), st.just("<B"), st.integers(0, 255)),
        st.tuples(st.floats(0, 1, exclude_max=True), st.just("<Q"), EXTREMES),
    ),
    min_size=1,
    max_size=3,
)
NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, 1, -1, 2**63 - 1, 1e300, 5e-324, True, None, "x", [], {}]),
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    for name in ("gemma3", "qwen2, yarn"):
        write_gguf(folder / f"{name}.gguf", FAMILIES[name])
        write_safetensors(folder / name, FAMILIES[name])
    return folder


def load_or_refuse(path: Path) -> None:
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(str(path))
        checkpoint.tokenizer()
        load_weights(checkpoint, torch.device("cpu"), torch.float32, Alone())
    except CheckpointError as error:
        assert error.message.startswith(str(path))
        assert "\n" not in error.message
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < MOST_BYTES


def mutated(content: bytes, start: int, end: int, changes: list[tuple[float, str, int]]) -> bytes:
    damaged = bytearray(content)
    for where, code, value in changes:
        at = min(start + int(where * (end - start)), len(content) - struct.calcsize(code))
        struct.pack_into(code, damaged, at, value)
    return bytes(damaged)


@pytest.mark.parametrize("name", ["gemma3", "qwen2, yarn"])
@SLOW
@given(changes=CHANGES)
@example(changes=[(0.08698302478312603, "<B", 33)])
def test_gguf_headers(
    originals: Path, tmp_path: Path, name: str, changes: list[tuple[float, str, int]]
) -> None:
    content = (originals / f"{name}.gguf").read_bytes()
    path = tmp_path / "mutated.gguf"
    path.write_bytes(mutated(content, 0, 14_000, changes))
    load_or_refuse(path)


@pytest.mark.parametrize("cut", [0.001, 0.01, 0.03, 0.5, 0.999])
def test_files_that_end_early(originals: Path, tmp_path: Path, cut: float) -> None:
    content = (originals / "gemma3.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(CheckpointError):
        open_checkpoint(str(path))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite(originals: Path, tmp_path: Path, value: float) -> None:
    gguf, folder = tmp_path / "m.gguf", copied(originals / "gemma3", tmp_path / "m")
    gguf.write_bytes((originals / "gemma3.gguf").read_bytes())
    tensors = folder / "model.safetensors"
    poison(gguf, read_header(gguf).tensors["output_norm.weight"].offset, value)
    poison(tensors, read_table(tensors)["model.norm.weight"].offset, value)
    for path, name in ((gguf, "output_norm.weight"), (folder, "model.norm.weight")):
        with pytest.raises(CheckpointError, match=f"{name}' holds values that are not finite"):
            load_weights(open_checkpoint(str(path)), torch.device("cpu"), torch.float32, Alone())


def poison(path: Path, offset: int, value: float) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack("<f", value))


@SLOW
@given(changes=CHANGES)
@example(changes=[(0.0, "<B", 139)])
def test_safetensors_tables(
    originals: Path, tmp_path: Path, changes: list[tuple[float, str, int]]
) -> None:
    path = copied(originals / "gemma3", tmp_path / "m")
    content = (path / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    (path / "model.safetensors").write_bytes(mutated(content, 0, end, changes))
    load_or_refuse(path)


@pytest.mark.parametrize("name", ["gemma3", "qwen2, yarn"])
@SLOW
@given(data=st.data())
def test_configurations(originals: Path, tmp_path: Path, name: str, data: st.DataObject) -> None:
    path = copied(originals / name, tmp_path / "m")
    config = FAMILIES[name].full_config
    part: dict[str, Any] = dict(config)
    key = data.draw(st.sampled_from(sorted(part)))
    if key == "rope_scaling" and data.draw(st.booleans()):
        scaling = dict(part[key])
        scaling[data.draw(st.sampled_from(sorted(scaling)))] = data.draw(NUMBERS)
        part[key] = scaling
    else:
        part[key] = data.draw(NUMBERS)
    (path / "config.json").write_text(json.dumps(part))
    load_or_refuse(path)


def copied(source: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target
