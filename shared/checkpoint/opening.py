"""The one door to models: a GGUF file, a Hugging Face folder, or the word 'hashchain'."""

from __future__ import annotations

from pathlib import Path

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.folder import open_folder
from shared.checkpoint.gguf_file import open_gguf
from shared.checkpoint.hashchain import NAME, open_hashchain
from shared.errors import CheckpointError


def open_checkpoint(path: str) -> Checkpoint:
    """Read headers and vocabulary, no weights. Raises CheckpointError with one clear line."""
    if path == NAME:
        return open_hashchain()
    if not path:
        raise CheckpointError("no model given; set a GGUF file, a model folder, or 'hashchain'")
    place = Path(path)
    if place.is_dir():
        return open_folder(place)
    if not place.is_file():
        raise CheckpointError(f"model {path} does not exist (a GGUF file or a model folder)")
    return open_gguf(place)
