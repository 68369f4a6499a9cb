"""The UCX adapter over both transports, with every read closed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.shared.dataplane.worlds import UcxWorld


@pytest.fixture(params=["auto", "tcp"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[UcxWorld]:
    built = UcxWorld(request.param)
    yield built
    await built.close()
    assert [end.guard.open for end in built.ends] == [set()] * len(built.ends)
