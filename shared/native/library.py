"""Compiles C sources once for this processor; knows nothing of what they do.

A library lands in .baton/native under a name that tells sources, flags and processor apart. Images
bring libraries for several kinds of processors instead (`prebuild`), and need no compiler. Without
either there is none, and who asked does the work in another way.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_CACHE: Final = Path(__file__).parents[2] / ".baton" / "native"
_PREBUILT: Final = Path(__file__).parents[2] / "prebuilt"
_COMPILE_S: Final = 120.0
_THIS_PROCESSOR: Final = "-march=native"


class BuildError(Exception):
    """There is no compiler, or it refused; the text says why."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one library is made of."""

    name: str
    folder: Path
    """Where its sources and headers are; a change to any of these makes another library."""
    sources: tuple[str, ...]
    flags: tuple[str, ...]
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of processor: how it is compiled for, and the names in /proc/cpuinfo of what that
    takes for granted."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_V3: Final = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"])
_V4: Final = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_VECTORS: Final = _V4 | {"avx512_bf16"}
_VECTOR_FLAGS: Final = ("-march=x86-64-v4", "-mavx512bf16")
_TILES: Final = _VECTORS | {"amx_tile", "amx_bf16"}
_TILE_FLAGS: Final = (*_VECTOR_FLAGS, "-mamx-tile", "-mamx-bf16")
LEVELS: Final = {
    "x86_64": (
        Level("tiles", _TILE_FLAGS, _TILES),
        Level("vectors", _VECTOR_FLAGS, _VECTORS),
        Level("v4", ("-march=x86-64-v4",), _V4),
        Level("v3", ("-march=x86-64-v3",), _V3),
    )
}
"""By machine, the best first."""
_ANY: Final = Level("any", (), frozenset())


def prebuild(recipe: Recipe, folder: Path = _PREBUILT) -> tuple[Path, ...]:
    """Compile for every kind of processor of this machine's architecture. Raises BuildError."""
    compiler = _compiler()
    folder.mkdir(parents=True, exist_ok=True)
    built = []
    for level in _levels(recipe):
        wanted = folder / _name(recipe, level)
        try:
            _compile(compiler, _for_level(recipe, level), wanted)
        except (OSError, subprocess.SubprocessError) as error:
            raise _refused(compiler, error) from error
        built.append(wanted)
    return tuple(built)


def prebuilt(recipe: Recipe, processor: Set[str], folder: Path = _PREBUILT) -> Path | None:
    """The best library there that a processor with these abilities runs."""
    for level in _levels(recipe):
        found = folder / _name(recipe, level)
        if level.needs <= processor and found.exists():
            return found
    return None


def build(recipe: Recipe) -> Path:
    """The library, compiled (up to a few seconds) where that was not done. Raises BuildError."""
    ready = prebuilt(recipe, abilities(), _PREBUILT) if _PREBUILT.is_dir() else None
    return ready or _built(recipe)


def _levels(recipe: Recipe) -> tuple[Level, ...]:
    return LEVELS.get(platform.machine(), (_ANY,)) if _THIS_PROCESSOR in recipe.flags else (_ANY,)


def _for_level(recipe: Recipe, level: Level) -> Recipe:
    others = (flag for flag in recipe.flags if flag != _THIS_PROCESSOR)
    return replace(recipe, flags=(*level.flags, *others))


def _name(recipe: Recipe, level: Level) -> str:
    digest = _sources(recipe)
    digest.update(repr((_for_level(recipe, level).flags, platform.machine())).encode())
    return f"{recipe.name}-{level.name}-{digest.hexdigest()[:20]}.so"


def abilities() -> frozenset[str]:
    """What the processor says of itself."""
    lines = (line for line in _processor().splitlines() if line.startswith("flags"))
    return frozenset(word for line in lines for word in line.partition(":")[2].split())


def _built(recipe: Recipe) -> Path:
    compiler = _compiler()
    try:
        return _library(recipe, compiler)
    except (OSError, subprocess.SubprocessError) as error:
        raise _refused(compiler, error) from error


def _compiler() -> str:
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        raise BuildError("no C compiler")
    return found


def _refused(compiler: str, error: Exception) -> BuildError:
    if isinstance(error, subprocess.CalledProcessError):
        first = error.stderr.decode(errors="replace").strip().partition("\n")[0]
        return BuildError(f"{compiler}: {first[:200]}")
    return BuildError(f"{type(error).__name__}: {error}")


def _library(recipe: Recipe, compiler: str) -> Path:
    name = f"{recipe.name}-{_fingerprint(recipe, compiler)}.so"
    try:
        _CACHE.mkdir(parents=True, exist_ok=True)
        folder = _CACHE if os.access(_CACHE, os.W_OK) else Path(tempfile.mkdtemp())
    except OSError:
        folder = Path(tempfile.mkdtemp())
    wanted = folder / name
    if not wanted.exists():
        _compile(compiler, recipe, wanted)
    return wanted


def _compile(compiler: str, recipe: Recipe, wanted: Path) -> None:
    with tempfile.TemporaryDirectory(dir=wanted.parent) as scratch:
        built = Path(scratch) / wanted.name
        sources = [str(recipe.folder / source) for source in recipe.sources]
        command = [compiler, *recipe.flags, "-o", str(built), *sources, *recipe.libraries]
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_S)
        # Processes that start together may all compile; the last one's name wins.
        built.replace(wanted)


def _sources(recipe: Recipe) -> hashlib._Hash:
    digest = hashlib.sha256()
    for path in sorted(recipe.folder.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest


def _fingerprint(recipe: Recipe, compiler: str) -> str:
    digest = _sources(recipe)
    version = subprocess.run(
        [compiler, "--version"], check=True, capture_output=True, timeout=_COMPILE_S
    )
    digest.update(version.stdout)
    digest.update(repr((recipe.flags, platform.machine(), _processor())).encode())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """What -march=native looks at, near enough."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    told = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(told)}))
