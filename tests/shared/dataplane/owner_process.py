"""A child process that owns pages: prints its plane address, then serves until it is ended.

Usage: owner_process TRANSPORT PAGES PAGE_BYTES PORT
"""

from __future__ import annotations

import asyncio
import sys

from shared.dataplane.link_parts import LinkSettings
from shared.dataplane.nixl import NixlPlane
from shared.dataplane.plane import Plane
from shared.dataplane.ucx import UcxPlane, UcxSettings
from tests.shared.dataplane.pages import ArrayPages, TicketGuard


async def serve(transport: str, pages: int, page_bytes: int, port: int) -> None:
    plane: Plane
    if transport == "nixl":
        plane = NixlPlane(LinkSettings(port=port))
    else:
        plane = UcxPlane(UcxSettings(transport=transport, port=port))
    plane.register(ArrayPages(pages, page_bytes).stamp(), TicketGuard())
    await plane.start()
    print(plane.address, flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.read)
    await plane.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
