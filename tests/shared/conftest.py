"""Where tests of shared rooms find the small real model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_CACHED = Path(__file__).parents[2] / ".baton" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def model_path() -> str:
    """BATON_TEST_MODEL, or the copy that `make` caches; skips where neither is there."""
    path = os.environ.get("BATON_TEST_MODEL", str(_CACHED))
    if not Path(path).is_file():
        pytest.skip("the small real model is not here (make fetches it, or set BATON_TEST_MODEL)")
    return path
