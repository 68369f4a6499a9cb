"""A cluster that has served, and a browser that looks at its pages.

Without a Chromium these tests are skipped, unless BATON_TEST_PAGES=required (`make test-pages`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.architecture.sources import ROOT
from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.pages.work import Served, serve

SIZES = {"laptop": (1280, 800), "phone": (390, 844)}
THEMES = ("light", "dark")
REQUIRED = os.environ.get("BATON_TEST_PAGES") == "required"
"""`make test-pages` asked for them: then pictures are taken too."""
SHOTS = ROOT / ".baton" / "screenshots"


@dataclass
class Scene:
    """What a test sees: pages of one cluster in one browser."""

    cluster: TestCluster
    browser: Any
    served: Served
    problems: list[str] = field(default_factory=list)
    """Console errors, exceptions and requests to other hosts since the last look."""

    @asynccontextmanager
    async def page(
        self, path: str, size: str = "laptop", theme: str = "light"
    ) -> AsyncIterator[Any]:
        """A page that has shown its first answer. Afterwards nothing may have gone wrong."""
        self.problems.clear()
        width, height = SIZES[size]
        context = await self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
        )
        try:
            page = await context.new_page()
            page.on("console", self._heard)
            page.on("pageerror", lambda error: self.problems.append(str(error)))
            page.on("request", self._asked)
            page.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
            await page.goto(self.cluster.admin_url + path)
            await page.wait_for_selector("body[data-ready]", timeout=30_000)
            yield page
        finally:
            await context.close()
        assert self.problems == []

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.cluster.admin_url):
            self.problems.append(f"asked {request.url}")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Its path."""
    lacking = pytest.fail if REQUIRED else pytest.skip
    try:
        import playwright.async_api  # noqa: F401
    except ImportError:
        lacking("playwright is not installed: run make test-pages")
    found = subprocess.run(
        [ROOT / "ops/setup/chromium.sh"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        lacking(found.stderr.strip().splitlines()[-1])
    return found.stdout.strip().splitlines()[-1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """Two prefill workers, one decode worker, a pool; results of two load runs."""
    from playwright.async_api import async_playwright

    folder: Path = tmp_path_factory.mktemp("pages")
    settings = {"gateway": {"runs_dir": str(folder / "runs"), "slo_ttft_ms": 0.001}}
    wish = Wish(prefill=2, settings=settings)
    async with running_cluster(folder, wish) as cluster, async_playwright() as driver:
        served = await serve(cluster, folder / "runs")
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await driver.chromium.launch(executable_path=chromium, args=flags)
        try:
            yield Scene(cluster, browser, served)
        finally:
            await browser.close()


async def post_spans(cluster: TestCluster, document: dict[str, Any]) -> None:
    """Spans of our own making, as OTLP JSON."""
    url = f"http://127.0.0.1:{cluster.local.ports.traces}/v1/traces"
    async with aiohttp.ClientSession() as http, http.post(url, json=document) as answer:
        assert answer.status == 200, await answer.text()
