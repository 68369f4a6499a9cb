"""Opens a Hugging Face model folder: config.json and safetensors, single or sharded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.families import Family, folder_names
from shared.checkpoint.fingerprint import digest_files
from shared.checkpoint.finite import check_finite
from shared.checkpoint.folder_config import read_family, read_spec
from shared.checkpoint.folder_text import text_side
from shared.checkpoint.json_file import nested, read_fields
from shared.checkpoint.safetensors_file import StoredTensor, read_table, read_tensor
from shared.checkpoint.tensors import check_tensors
from shared.errors import CheckpointError

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_MAX_SHARDS: Final = 1_024


def open_folder(path: Path) -> Checkpoint:
    """Read configuration and tables of contents; check that the model is complete."""
    config = read_fields(path / "config.json")
    stored = _stored(path)
    try:
        family = read_family(config)
        spec = read_spec(config, family)
    except CheckpointError as error:
        raise CheckpointError(f"{path / 'config.json'}: {error.message}") from error
    names = folder_names(spec)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    check_tensors(spec, shapes, names, str(path))
    files = {path / "config.json", *(tensor.path for tensor in stored.values())}
    return Checkpoint(
        name=path.resolve().name,
        path=str(path.resolve()),
        backend="torch",
        spec=spec,
        text=text_side(path, config, spec.vocab),
        tensors=FolderTensors(stored, names, family),
        fingerprint=partial(digest_files, files),
    )


def _stored(path: Path) -> dict[str, StoredTensor]:
    if (path / _INDEX).exists():
        return _sharded(path)
    if not (path / _SINGLE).exists():
        raise CheckpointError(f"{path}: neither {_SINGLE} nor {_INDEX} is there")
    return read_table(path / _SINGLE)


def _sharded(path: Path) -> dict[str, StoredTensor]:
    index = path / _INDEX
    places = nested(read_fields(index), "weight_map") or {}
    shards = sorted({str(shard) for shard in places.values()})
    if not 1 <= len(shards) <= _MAX_SHARDS:
        raise CheckpointError(f"{index}: names {len(shards)} shards")
    if any("/" in shard or "\\" in shard or shard.startswith(".") for shard in shards):
        raise CheckpointError(f"{index}: a shard is not a plain file name")
    tables = {shard: read_table(path / shard) for shard in shards}
    stored: dict[str, StoredTensor] = {}
    for name, shard in places.items():
        tensor = tables[str(shard)].get(name)
        if tensor is None:
            raise CheckpointError(f"{index}: {name} is not in {shard}")
        stored[name] = tensor
    return stored


class FolderTensors:
    """Reads tensors out of the folder's shards, one at a time."""

    def __init__(
        self, stored: dict[str, StoredTensor], names: dict[str, str], family: Family
    ) -> None:
        self._stored = stored
        self._names = names
        self._norms_minus_one = family.norms_minus_one

    def has(self, name: str) -> bool:
        return self._names.get(name) in self._stored

    def read(self, name: str) -> NDArray[np.float32]:
        stored = self._stored.get(self._names.get(name, ""))
        if stored is None:
            raise CheckpointError(f"no tensor {name!r}")
        values = read_tensor(stored)
        check_finite(values, f"{stored.path}: tensor {stored.name!r}")
        if self._norms_minus_one and name.endswith("norm"):
            values += 1.0
        return values
