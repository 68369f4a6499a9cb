"""Digests of model files: whole files up to 1 GiB, evenly spaced samples beyond.

Five services name the model by this digest at start, so it must not read a hundred gigabytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shared.errors import CheckpointError

_WHOLE_BYTES: Final = 1 << 30
_SAMPLES: Final = 1_024
_SAMPLE_BYTES: Final = 1 << 16
_READ_BYTES: Final = 1 << 20


def digest_files(files: Iterable[Path]) -> str:
    """64 hex characters over the contents, in name order; names do not count."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(_digest_file(path))
    return total.hexdigest()


def digest_parts(*parts: bytes) -> str:
    """64 hex characters over length-tagged parts."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def _digest_file(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        return _whole(path) if size <= _WHOLE_BYTES else _sampled(path, size)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def _whole(path: Path) -> bytes:
    content = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            content.update(piece)
    return content.digest()


def _sampled(path: Path, size: int) -> bytes:
    content = hashlib.sha256(size.to_bytes(8, "little"))
    last = size - _SAMPLE_BYTES
    with path.open("rb", buffering=0) as file:
        for sample in range(_SAMPLES):
            file.seek(last * sample // (_SAMPLES - 1))
            content.update(file.read(_SAMPLE_BYTES))
    return content.digest()
