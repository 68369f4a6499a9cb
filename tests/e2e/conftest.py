"""Fixtures of the end-to-end tests: a fresh cluster per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.e2e.cluster import TestCluster, running_cluster


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[TestCluster]:
    """One prefill, one decode, one pool, on the weightless engine."""
    async with running_cluster(tmp_path) as running:
        yield running
