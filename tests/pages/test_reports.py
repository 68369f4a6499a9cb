"""The load generator's own pages in a browser: they need nothing from outside and open at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from loadgen import compare
from loadgen.reports import compare_page, page, run_files
from tests.loadgen.reports.rows import write_rows
from tests.loadgen.reports.test_files import document
from tests.pages.conftest import SIZES, THEMES
from tests.pages.test_pages import AXE, serious

WORKERS = [
    {"at_s": at, "workers": {"decode-0": {"queued": 1.0, "running": at, "pages": 0.5}}}
    for at in (0.0, 2.0, 4.0)
]


def runs(folder: Path) -> dict[str, Path]:
    """Pages of a full run, of one in which nothing worked, and of two runs compared."""
    for name, scale in (("run-a", 1.0), ("run-b", 1.5)):
        (folder / name).mkdir()
        good = ({"at": n / 10, "ttft": scale * (0.1 + n % 17 / 100)} for n in range(300))
        write_rows(folder / name, *good, {"at": 9.0, "outcome": "refused", "reason": "queue_full"})
        rows = run_files.read_rows(folder / name)
        split = {"traces": 9, "mean_ms": {"prefill_queue": 3.0, "compute": 40.0}}
        delta = {"workers": WORKERS, "ttft_split": split, "bytes_moved": {"decode-0 shm": 5e6}}
        delta["prompt_tokens_by_source"] = {"computed": 300.0, "device": 900.0}
        told = document(rows, id=name, server_delta=delta, warnings=["capped: 3"])
        run_files.write_run(folder / name, told)
        (folder / f"{name}.html").write_text(page.render(told, rows), "utf-8")
    nothing = rows.where(~rows.ok)
    limited = {"limited": True, "reasons": ["late"], "lag_ms": {"p50": 9.0}, "processes": []}
    empty = page.render(document(nothing, client=limited), nothing)
    (folder / "empty.html").write_text(empty, "utf-8")
    both = compare_page.render(compare.compared(folder / "run-a", folder / "run-b"))
    (folder / "both.html").write_text(both, "utf-8")
    return {name: folder / f"{name}.html" for name in ("run-a", "empty", "both")}


@pytest.mark.asyncio
async def test_reports_stand_alone_fit_every_size_and_please_axe(
    chromium: str, tmp_path: Path
) -> None:
    from playwright.async_api import async_playwright

    problems: list[str] = []
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=flags)
        tab: Any = await browser.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda one: problems.append(one.url) if "file:" not in one.url else None)
        for name, path in runs(tmp_path).items():
            await tab.goto(path.as_uri())
            await tab.evaluate(AXE)
            for theme in THEMES:
                await tab.emulate_media(color_scheme=theme)
                for width, height in SIZES.values():
                    await tab.set_viewport_size({"width": width, "height": height})
                    wide = await tab.evaluate("document.documentElement.scrollWidth")
                    assert wide <= width, f"{name} is wider than {width}"
                assert await serious(tab) == [], f"{name}, {theme}"
            assert await tab.locator("h1").count() == 1
        assert await tab.locator("svg[role=img][aria-label]").count() >= 1
        await browser.close()
    assert problems == []
