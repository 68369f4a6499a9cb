"""The figures that services promise, read from the real `/metrics` of all five after real requests:
every family of the interface page is there, moves where it should, and docs name no other.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from services.scheduler.core.placement.registry import POLICIES
from services.scheduler.core.placement.split import SPLITS
from tests.architecture.sources import ROOT
from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.e2e.traces import until_whole

pytestmark = pytest.mark.process

_EVERYWHERE: Final = (
    "bus_request_seconds bus_messages_total bus_reconnects_total loop_lag_seconds"
    " spans_dropped_total build"
)
_PAGES: Final = "pages leases fenced_total checksum_failures_total leaked_pages"
_WORKERS: Final = (
    "queue_requests queue_tokens queue_seconds sequences_running step_seconds step_tokens"
    " engine_tick_age_seconds page_evictions_total"
)
_TRANSFER: Final = "transfer_seconds transfer_bytes_total transfer_failures_total links"

FAMILIES: Final = {
    "gateway": "requests_total requests_running refusals_total ttft_seconds ttst_seconds"
    " tpot_seconds itl_seconds e2e_seconds ttft_part_seconds admit_wait_seconds"
    " prompt_tokens_total generated_tokens_total attempts_total cancels_total"
    " cancel_settle_seconds streams_open stream_blocked_seconds_total stale_chunks_total"
    " trace_store_bytes hints_total hint_reused_tokens_total",
    "scheduler": "placements_total placement_seconds ttft_estimate_error_seconds index_blocks"
    " index_bytes index_resyncs_total workers leader assumed_tokens bus_gaps_total",
    "prefill": f"{_WORKERS} {_PAGES} {_TRANSFER} lease_expiries_total",
    "decode": f"{_WORKERS} {_PAGES} {_TRANSFER} sequences_parked preemptions_total transfers_open"
    " transfer_exposed_seconds",
    "kvpool": f"{_PAGES} {_TRANSFER} lease_expiries_total pool_bytes pool_lookups_total"
    " pool_hit_tokens_total pool_evictions_total pool_read_seconds pool_write_seconds"
    " pool_unused_evictions_total",
}
"""By service, without the prefix `baton_`."""

NOT_BUILT: Final = {
    "pool_codec_ratio": "pages are stored as they are",
    "hint_unused_block_seconds_total": "no block is kept for a hint",
}
"""Of the interface page, with the reason."""

MOVED: Final = {
    "gateway": (
        'baton_ttft_seconds_count{route="disaggregated"}',
        'baton_ttst_seconds_count{route="disaggregated"}',
        'baton_itl_seconds_count{route="disaggregated"}',
        'baton_ttft_part_seconds_count{part="prepare"}',
        'baton_ttft_part_seconds_count{part="place"}',
        'baton_ttft_part_seconds_count{part="compute"}',
        "baton_admit_wait_seconds_count",
    ),
    "scheduler": (
        "baton_ttft_estimate_error_seconds_count",
        "baton_index_bytes",
        "baton_index_blocks",
    ),
    "prefill": ('baton_step_seconds_count{role="prefill"}',),
    "decode": (
        'baton_step_seconds_count{role="decode"}',
        "baton_transfer_exposed_seconds_count",
    ),
    "kvpool": ('baton_pages{state="cached"}',),
}
"""Above zero once requests with more than one block were served."""

BOARD: Final = ROOT / "ops/grafana/baton.json"
VLLM: Final = {
    *(f"vllm:num_requests_{state}" for state in ("running", "waiting")),
    *(
        f"vllm:{where}prefix_cache_{what}"
        for where in ("", "external_")
        for what in ("queries", "hits")
    ),
    *(f"vllm:{what}" for what in ("prompt_tokens", "generation_tokens", "num_preemptions")),
    *(f"vllm:request_{phase}_time_seconds" for phase in ("queue", "prefill", "decode")),
    *(f"gen_ai_server_{what}_seconds" for what in ("request_duration", "time_to_first_token")),
    "gen_ai_server_time_per_output_token_seconds",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_by_source",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:cache_config_info",
}
"""Families of the interface page, as OpenMetrics names them: counters without `_total`."""

_SOURCES: Final = ("README.md", "ops/docs/*.md", "ops/docs/adr/*.md")


def samples(text: str) -> dict[str, float]:
    rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def families(text: str) -> set[str]:
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}


def value(rows: dict[str, float], name: str) -> float:
    """Of one sample, whatever labels it has where none are named."""
    return sum(v for key, v in rows.items() if key == name or key.startswith(name + "{"))


def named_in_docs() -> set[str]:
    pages = (path for pattern in _SOURCES for path in ROOT.glob(pattern))
    named = {name for page in pages for name in re.findall(r"\bbaton_[a-z_]+", page.read_text())}
    return named - set(POLICIES) - set(SPLITS)


def _leave_an_old_store(run: Path) -> None:
    """As an earlier version left it: the cluster starts anyway, and throws nothing away."""
    run.mkdir()
    (run / "lock").touch()
    with closing(sqlite3.connect(run / "traces.sqlite")) as database:
        database.executescript("CREATE TABLE spans (x); PRAGMA user_version = 1;")


async def test_every_promised_figure_is_there_and_moves(tmp_path: Path) -> None:
    _leave_an_old_store(tmp_path / "run")
    wish = Wish(settings={"gateway": {"metrics_alias": "vllm"}})
    async with running_cluster(tmp_path, wish) as cluster:
        log = cluster.log("gateway-0")
        assert "traces.set_aside" in log and "traces.sqlite.old-1" in log
        await _check_figures(cluster)


async def _check_figures(cluster: TestCluster) -> None:
    for seed in range(3):
        prompt = [32 + (seed * 31 + place) % 90 for place in range(200)]
        answer = await cluster.complete(prompt, headers={"x-baton-route": "disaggregated"})
        assert answer.complete
    texts: dict[str, str] = {}
    for role, promised in FAMILIES.items():
        text = texts[role] = await _settled(cluster, role)
        wanted = {f"baton_{name}" for name in (promised + " " + _EVERYWHERE).split()}
        lacking = wanted - families(text) - {name + "_total" for name in families(text)}
        assert not lacking, (role, sorted(lacking))
    known = {name for text in texts.values() for name in families(text)}
    known |= {sample.split("{")[0] for text in texts.values() for sample in samples(text)}
    assert not {f"baton_{name}" for name in NOT_BUILT} & known, "built: promise it above"
    assert named_in_docs() <= known, named_in_docs() - known
    assert _on_the_board() <= known, _on_the_board() - known
    _check_sums(samples(texts["gateway"]))
    await _check_negotiated(cluster)


def _on_the_board() -> set[str]:
    """Every figure that the Grafana board asks for."""
    board = json.loads(BOARD.read_text("utf-8"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(asked) > 40
    assert all(panel["description"] for panel in panels if panel["type"] != "row")
    return {name for query in asked for name in re.findall(r"\bbaton_[a-z_]+", query)}


async def _check_negotiated(cluster: TestCluster) -> None:
    """OpenMetrics for whoever accepts it: with it, the trace of a slow request is one click away.
    And the names of vLLM, as this cluster was told to."""
    asked = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    async with cluster.http.get(f"{cluster.admin_url}/metrics", headers=asked) as answer:
        assert answer.content_type == "application/openmetrics-text"
        text = await answer.text()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    for name in ("baton_ttft_seconds", "baton_itl_seconds", "baton_e2e_seconds"):
        shown = [sample.exemplar for sample in found[name].samples if sample.exemplar]
        assert shown, name
        await until_whole(cluster, {shown[0].labels["trace_id"]})
    aliases = {name: family for name, family in found.items() if name.startswith(("vllm", "gen_"))}
    assert set(aliases) == VLLM
    ours = {sample.name: sample.value for sample in found["baton_ttft_seconds"].samples}
    theirs = {s.name: s.value for s in aliases["vllm:time_to_first_token_seconds"].samples}
    count = theirs["vllm:time_to_first_token_seconds_count"]
    assert count == ours["baton_ttft_seconds_count"] == 3
    (info,) = aliases["vllm:cache_config_info"].samples
    assert info.labels["block_size"] == "16" and int(info.labels["num_gpu_blocks"]) > 0
    assert "\nvllm:prompt_tokens_total{" in text and 'le="+Inf"' in text
    (success,) = aliases["vllm:request_success"].samples
    assert (success.labels["finished_reason"], success.value) == ("length", 3.0)


async def _settled(cluster: TestCluster, role: str) -> str:
    """Once what happened has reached every gauge and the other end of the bus."""
    for _ in range(200):
        text = await cluster.metrics(f"{role}-0")
        rows = samples(text)
        if all(value(rows, name) > 0 for name in MOVED[role]):
            return text
        await cluster.until_nothing_is_held()
    raise AssertionError(f"{role}: {[n for n in MOVED[role] if not value(rows, n)]} never moved")


def _check_sums(rows: dict[str, float]) -> None:
    """The parts add up to the whole, and gaps between tokens never count the first one."""
    whole = value(rows, "baton_ttft_seconds_sum")
    assert value(rows, "baton_ttft_part_seconds_sum") == pytest.approx(whole, abs=1e-6)
    requests = value(rows, "baton_ttft_seconds_count")
    tokens = value(rows, "baton_generated_tokens_total")
    assert 0 < value(rows, "baton_itl_seconds_count") <= tokens - requests
    assert value(rows, "baton_ttst_seconds_sum") <= value(rows, "baton_itl_seconds_sum") + 1e-6
