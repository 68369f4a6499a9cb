"""Libraries that an image brings: for each kind of processor, found without a compiler."""

from __future__ import annotations

import ctypes
import platform
import shutil
from pathlib import Path

import pytest

from shared.native import library
from shared.native.library import LEVELS, BuildError, Recipe, build, prebuild, prebuilt

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() not in LEVELS,
    reason="no compiler, or no kinds of processors are told apart here",
)
KINDS = LEVELS.get(platform.machine(), ())


def recipe(folder: Path, flags: tuple[str, ...] = ("-march=native",)) -> Recipe:
    folder.mkdir(exist_ok=True)
    (folder / "one.c").write_text("int three(void) { return 3; }\n")
    return Recipe("one", folder, ("one.c",), (*flags, "-fPIC", "-shared"))


def test_one_for_each_kind_the_best_first(tmp_path: Path) -> None:
    one, folder = recipe(tmp_path / "source"), tmp_path / "out"
    built = prebuild(one, folder)
    assert len(built) == len(KINDS)
    for level, path in zip(KINDS, built, strict=True):
        assert prebuilt(one, level.needs, folder) == path
    assert prebuilt(one, frozenset({"sse2"}), folder) is None
    assert ctypes.CDLL(str(built[-1])).three() == 3


def test_flags_for_any_processor_make_one(tmp_path: Path) -> None:
    one, folder = recipe(tmp_path / "source", ()), tmp_path / "out"
    (path,) = prebuild(one, folder)
    assert prebuilt(one, frozenset(), folder) == path


def test_other_sources_are_another_library(tmp_path: Path) -> None:
    one, folder = recipe(tmp_path / "source", ()), tmp_path / "out"
    prebuild(one, folder)
    (tmp_path / "source" / "one.c").write_text("int three(void) { return 4; }\n")
    assert prebuilt(one, frozenset(), folder) is None


def test_found_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, folder = recipe(tmp_path / "source", ()), tmp_path / "out"
    (path,) = prebuild(one, folder)
    monkeypatch.setattr(library, "_PREBUILT", folder)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert build(one) == path
    with pytest.raises(BuildError, match="no C compiler"):
        build(recipe(tmp_path / "another", ("-O1",)))
