"""What a process holds once it serves is no longer searched for reference cycles."""

from __future__ import annotations

import asyncio
import gc

from shared.runtime.service import keep_for_good


class Starting:
    """An app that becomes ready."""

    role = "decode"
    serves = False

    async def run(self, scope: object) -> None: ...

    def ready(self) -> bool:
        return self.serves

    def accounting(self) -> dict[str, object]:
        return {}

    async def drain(self) -> None: ...


async def test_what_is_there_once_it_serves_is_kept_for_good() -> None:
    app, before = Starting(), gc.get_freeze_count()
    keeping = asyncio.create_task(keep_for_good(app))
    try:
        await asyncio.sleep(0)
        assert gc.get_freeze_count() == before and not keeping.done()
        app.serves = True
        await keeping
        assert gc.get_freeze_count() > before + 1000
    finally:
        keeping.cancel()
        gc.unfreeze()
