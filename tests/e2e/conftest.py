"""Fixtures of the end-to-end tests: a fresh cluster per test, and the small real model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.fetch import CACHE, FILE
from tests.architecture.sources import ROOT
from tests.e2e.cluster import TestCluster, running_cluster


@pytest.fixture(scope="session")
def model_path() -> str:
    """BATON_TEST_MODEL, or the copy that `make` caches; skips where neither is there."""
    path = Path(os.environ.get("BATON_TEST_MODEL", str(ROOT / CACHE / FILE)))
    if not path.is_file():
        pytest.skip("the small real model is not here (make fetch, or set BATON_TEST_MODEL)")
    return str(path)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[TestCluster]:
    """One prefill, one decode, one pool, on the weightless engine."""
    async with running_cluster(tmp_path) as running:
        yield running
