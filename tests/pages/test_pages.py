"""The pages in a real browser, on a cluster that has served (`make test-pages`)."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from tests.e2e.traces import until_whole
from tests.pages.conftest import REQUIRED, SHOTS, SIZES, THEMES, Scene, post_spans
from tests.pages.work import SHARED

pytestmark = [
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("pages"),
]
AXE = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
NAMES = ("cluster", "traces", "trace", "runs", "run", "compare", "prefixes")


def paths(scene: Scene) -> dict[str, str]:
    return {
        "cluster": "/",
        "traces": "/traces",
        "trace": f"/traces/{scene.served.handed_over}",
        "runs": "/runs",
        "run": "/runs/run-a",
        "compare": "/runs?a=run-a&b=run-b",
        "prefixes": "/prefixes",
    }


async def texts(page: Any, selector: str) -> list[str]:
    found: list[str] = await page.locator(selector).all_inner_texts()
    return found


# -- what is shown ---------------------------------------------


async def test_the_cluster_shows_who_serves(scene: Scene) -> None:
    async with scene.page("/") as page:
        await page.wait_for_selector(".worker .page.free")
        verdict = await page.inner_text("#verdict")
        assert verdict.startswith("Healthy") and "scheduler-0 leads" in verdict
        names = await texts(page, ".worker h3")
        assert names == [
            "gateway-0", "scheduler-0", "prefill-0", "prefill-1", "decode-0", "kvpool-0",
        ]  # fmt: skip
        assert "cached" in await page.inner_text(".worker.decode .pages")
        links = await page.inner_text("#links")
        assert "decode-0" in links and re.search(r"\d B|KiB", links)
        assert await page.is_visible("#changes")
        refusals = await page.inner_text("#refusals")
        assert "model_not_found" in refusals
        pool = await page.inner_text(".worker.kvpool")
        assert all(
            name in pool for name in ("Lookups", "Tokens found", "Held", "Evicted", "Leases")
        )
        assert "Serving prefill" in await page.inner_text("#roles")
        tiles = await page.inner_text("#tiles")
        assert "Prompt from cache" in tiles and "%" in tiles


async def test_the_operators_own_mistakes_are_no_refusals(scene: Scene) -> None:
    for path in ("/admin/nothing", "/nowhere", "/admin/traces?colour=red"):
        async with scene.cluster.http.get(f"{scene.cluster.admin_url}{path}") as answer:
            assert answer.status in (400, 404)
    async with scene.page("/") as page:
        await page.wait_for_selector("#refusals li")
        assert "not_offered" not in await page.inner_text("#refusals")


async def test_what_became_of_hints_and_the_run_is_told(scene: Scene) -> None:
    asked = {"x-baton-affinity": "somebody", "x-baton-run": "run-of-a-test"}
    answer = await scene.cluster.chat("Hints and a run.", headers=asked, max_tokens=2)
    assert answer.headers["x-baton-hints"].startswith("affinity_key=")
    await until_whole(scene.cluster, {answer.trace_id})
    async with scene.page(f"/traces/{answer.trace_id}") as page:
        hints = await page.inner_text("#hints")
        assert "affinity_key" in hints and ("applied" in hints or "ignored" in hints)
        assert "run-of-a-test" in await page.inner_text("#facts")
        await page.get_by_role("link", name="run-of-a-test").click()
        await page.wait_for_selector("#results tbody tr")
        assert await results(page) == 1
        assert await page.get_by_label("Load run").input_value() == "run-of-a-test"
        await page.get_by_label("Hint").fill("affinity_key=nothing")
        await page.get_by_role("button", name="Search").click()
        assert await results(page) == 0


async def test_the_trace_of_a_handover_has_all_services_and_adds_up(scene: Scene) -> None:
    async with scene.page(paths(scene)["trace"]) as page:
        services = set(await texts(page, ".line .service"))
        assert services == {"gateway", "scheduler", "prefill", "decode", "kvpool"}
        shares = [float(text.split()[0]) for text in await texts(page, "#split td.share")]
        assert len(shares) == 14 and abs(sum(shares) - 100.0) <= 0.1
        assert await page.inner_text("#split td.total") == "100.0 %"
        assert await page.locator(".line.critical").count() >= 4
        placement = await page.inner_text("#placement")
        assert "Handed over" in placement and "chosen" in placement
        assert "colocated" in await page.inner_text("#whatif")
        facts = await page.inner_text("#facts")
        assert "finished" in facts and "disaggregated" in facts and "missed ttft" in facts
        assert "5 services" in await page.inner_text("#waterfall-note")


async def test_the_trace_of_a_colocated_request_adds_up_too(scene: Scene) -> None:
    async with scene.page(f"/traces/{scene.served.colocated}") as page:
        shares = [float(text.split()[0]) for text in await texts(page, "#split td.share")]
        assert abs(sum(shares) - 100.0) <= 0.1
        assert "It was colocated" in await page.inner_text("#whatif")


async def test_a_request_without_a_token_says_so(scene: Scene) -> None:
    async with scene.page(f"/traces/{scene.served.failed}") as page:
        assert "No first token" in await page.inner_text("#split")
        assert "model_not_found" in await page.inner_text("#facts")


async def test_prefixes_name_their_holders(scene: Scene) -> None:
    for number in range(3):  # what was asked for long ago has cooled down
        await scene.cluster.chat(f"{SHARED} Once more, {number}.", max_tokens=2)
    async with scene.page("/prefixes") as page:
        await page.wait_for_selector("#body tbody tr")
        assert re.search(r"(prefill|decode)-\d", await page.inner_text("#body"))


async def test_runs_are_listed_shown_and_compared(scene: Scene) -> None:
    async with scene.page("/runs") as page:
        listed = await page.inner_text("#body")
        assert "run-a" in listed and "run.json cannot be read" in listed
        await page.get_by_label("First").select_option("run-a")
        await page.get_by_label("Second").select_option("run-b")
        await page.get_by_role("button", name="Compare").click()
        await page.wait_for_selector("#compared td .pill")
        compared = await page.inner_text("#compared")
        assert "the second is faster" in compared and "no difference shown" in compared
        await page.get_by_role("link", name="run-a").click()
        await page.wait_for_selector("#title:has-text('run-a')")
        await page.locator("#body a[href^='/traces/']").first.click()
        await page.wait_for_selector(".waterfall")


# -- searching and keys ---------------------------------------------


async def results(page: Any) -> int:
    await page.wait_for_selector("#results[aria-busy=false]", state="attached")
    count: int = await page.locator("#results tbody tr").count()
    return count


async def test_filters_leave_what_fits(scene: Scene) -> None:
    async with scene.page("/traces") as page:
        everything = await results(page)
        assert everything >= 10
        await page.get_by_label("Ending").select_option("cancelled")
        assert await results(page) == 1
        assert scene.served.cancelled in str(await page.locator("#results a").get_attribute("href"))
        assert "status=cancelled" in page.url
        await page.get_by_role("button", name="Clear").click()
        assert await results(page) == everything
        await page.get_by_label("Cache").select_option("yes")
        hits = await results(page)
        assert 0 < hits < everything
        await page.get_by_label("Cache").select_option("")
        await page.get_by_label("Route").select_option("colocated")
        assert 0 < await results(page) < everything
        await page.get_by_label("Worker").fill("nobody-9")
        await page.get_by_role("button", name="Search").click()
        assert await results(page) == 0
        assert "No trace fits" in await page.inner_text("#results")
    async with scene.page("/traces?slo=missed&worker=decode-0") as page:
        assert await page.get_by_label("Promise").input_value() == "missed"
        assert await results(page) > 0
        assert "missed ttft" in await page.inner_text("#results")


async def test_a_trace_is_read_with_keys_alone(scene: Scene) -> None:
    async with scene.page("/traces") as page:
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.locator("#id").fill(scene.served.handed_over)
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".waterfall")
        await page.locator(".line").first.focus()
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            await page.keyboard.press(key)
        assert await page.inner_text("#span h3") == "gateway.render"
        assert "baton.render.tokens" in await page.inner_text("#span")
        await page.keyboard.press("Home")
        visible = await page.locator(".line:visible").count()
        await page.keyboard.press("ArrowLeft")
        assert await page.locator(".line:visible").count() == 1 < visible
        await page.keyboard.press("ArrowRight")
        assert await page.locator(".line:visible").count() == visible


# -- what must not happen ---------------------------------------------


def hostile(text: str) -> dict[str, Any]:
    """A trace with this text wherever a text can stand."""
    value = {"stringValue": text}
    own = {"key": text, "value": value}
    told = ("baton.request.id", "baton.tenant", "baton.route", "error.type", "baton.hint.x")
    span = {
        "traceId": "ab" * 16,
        "spanId": "cd" * 8,
        "name": text,
        "kind": 2,
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": "1700000000100000000",
        "status": {"code": 2},
        "attributes": [own, *({"key": key, "value": value} for key in told)],
        "events": [{"name": text, "timeUnixNano": "1700000000000000001", "attributes": [own]}],
    }
    resource = {"attributes": [{"key": "service.name", "value": value}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}


async def test_texts_of_others_stay_texts(scene: Scene) -> None:
    text = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    await post_spans(scene.cluster, hostile(text))
    await scene.cluster.trace("ab" * 16)
    async with scene.page(f"/traces/{'ab' * 16}") as page:
        assert text in await page.inner_text("#waterfall")
        await page.locator(".line").first.click()
        assert text in await page.inner_text("#span")
        assert await page.locator("main img, main script").count() == 0
    async with scene.page("/traces") as page:
        await results(page)
        assert text in await page.inner_text("#results")
        assert await page.locator("main img, main script").count() == 0


async def test_a_trace_of_many_spans_opens(scene: Scene) -> None:
    spans = [
        {
            "traceId": "ef" * 16,
            "spanId": f"{number + 1:016x}",
            "parentSpanId": "" if number == 0 else f"{(number + 1) // 2:016x}",
            "name": "chat" if number == 0 else f"span {number}",
            "kind": 2 if number == 0 else 1,
            "startTimeUnixNano": str(1_700_000_000_000_000_000 + number * 1_000),
            "endTimeUnixNano": str(1_700_000_000_900_000_000),
            "attributes": [{"key": "baton.request.id", "value": {"stringValue": "many"}}],
        }
        for number in range(10_000)
    ]
    for begin in range(0, len(spans), 2_500):
        part = {"scopeSpans": [{"spans": spans[begin : begin + 2_500]}]}
        await post_spans(scene.cluster, {"resourceSpans": [part]})
    await scene.cluster.trace("ef" * 16)
    async with scene.page(f"/traces/{'ef' * 16}") as page:
        assert await page.locator(".line").count() == 2_000
        assert "more are not shown" in await page.inner_text("#waterfall-note")


async def test_what_is_not_there_is_said(scene: Scene) -> None:
    async with scene.page("/traces?tenant=nobody") as page:
        assert "No trace fits" in await page.inner_text("#results")
    with pytest.raises(AssertionError, match="404"):  # the browser itself notes the answer
        async with scene.page("/runs/nothing-here") as page:
            assert "no such run" in (await page.inner_text("#state")).lower()


async def test_without_the_gateway_the_page_says_what_it_shows_is_old(scene: Scene) -> None:
    with pytest.raises(AssertionError, match="ERR_FAILED"):
        async with scene.page("/") as page:
            await page.route("**/admin/*", lambda route: route.abort())
            await page.wait_for_selector("#verdict.bad", timeout=15_000)
            assert "does not answer" in await page.inner_text("#verdict")
            assert await page.locator(".worker").count() == 6


# -- for everybody ---------------------------------------------


@pytest.mark.parametrize("name", NAMES)
async def test_a_page_fits_every_size_and_axe_finds_nothing_serious(
    scene: Scene, name: str
) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    async with scene.page(paths(scene)[name]) as page:
        await page.evaluate(AXE)
        for theme in THEMES:
            await page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            for size, (width, height) in SIZES.items():
                await page.set_viewport_size({"width": width, "height": height})
                assert await page.evaluate(wider) <= 0, f"{name} is wider than a {size}"
                if REQUIRED:
                    path = SHOTS / f"{name}-{size}-{theme}.png"
                    await page.screenshot(path=path, full_page=True)
            assert await serious(page) == [], theme


async def serious(page: Any) -> list[str]:
    """Violations that keep somebody out."""
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{entry['id']}: {node['target']} {node['failureSummary']}"
        for entry in found["violations"]
        if entry["impact"] in ("serious", "critical")
        for node in entry["nodes"][:3]
    ]
