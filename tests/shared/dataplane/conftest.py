"""The UCX adapter over both transports and without its compiled part; all reads end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.shared.dataplane.worlds import UcxWorld


@pytest.fixture(params=["auto", "tcp", "plain"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[UcxWorld]:
    plain = request.param == "plain"
    built = UcxWorld("tcp" if plain else request.param, compiled=not plain)
    yield built
    await built.close()
    assert [end.guard.open for end in built.ends] == [set()] * len(built.ends)
