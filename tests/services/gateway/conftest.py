"""The models that the gateway's tests read: the built-in one, and the small real one if there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.gateway.text import Text
from shared.checkpoint import Checkpoint, open_checkpoint

ROOT = Path(__file__).parents[3]
REAL = ROOT / ".baton" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def hashchain() -> Checkpoint:
    return open_checkpoint("hashchain")


@pytest.fixture(scope="session")
def real_model() -> Checkpoint:
    """Skips where the small real model was not fetched."""
    path = Path(os.environ.get("BATON_TEST_MODEL", REAL))
    if not path.exists():
        pytest.skip("the small real model is not here")
    return open_checkpoint(str(path))


@pytest.fixture(scope="session")
def byte_text(hashchain: Checkpoint) -> Text:
    return Text(hashchain)


@pytest.fixture(scope="session")
def real_text(real_model: Checkpoint) -> Text:
    return Text(real_model)
