"""The names under which vLLM and the GenAI conventions know our figures, for boards and endpoint
pickers that expect them: the same numbers again, summed over the workers. Off by default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Metric

from shared.telemetry.metrics import Metrics
from shared.wire.views import Sample, WorkerSeen

_HISTOGRAMS: Final = {
    "vllm:time_to_first_token_seconds": "baton_ttft_seconds",
    "vllm:inter_token_latency_seconds": "baton_itl_seconds",
    "vllm:request_time_per_output_token_seconds": "baton_tpot_seconds",
    "vllm:e2e_request_latency_seconds": "baton_e2e_seconds",
    "vllm:request_queue_time_seconds": "baton_admit_wait_seconds",
    "vllm:request_prefill_time_seconds": "baton_prefill_phase_seconds",
    "vllm:request_decode_time_seconds": "baton_decode_phase_seconds",
    "gen_ai_server_request_duration_seconds": "baton_e2e_seconds",
    "gen_ai_server_time_to_first_token_seconds": "baton_ttft_seconds",
    "gen_ai_server_time_per_output_token_seconds": "baton_tpot_seconds",
}
_BUSY: Final = ("referenced", "leased", "quarantined")
_EXTERNAL: Final = ("host", "disk", "peer")


def alias_families(
    own: Metrics,
    workers: Sequence[tuple[WorkerSeen, Sequence[Sample]]],
    model: str,
) -> Iterator[Metric]:
    """Families under foreign names; `workers` with their latest figures."""
    label = {"model_name": model}
    yield from _gauges(own, workers, label)
    yield from _counters(own, workers, label)
    for name, source in _HISTOGRAMS.items():
        yield _histogram(name, own, source, label)
    yield _layout(workers, label)


def _gauges(
    own: Metrics, workers: Sequence[tuple[WorkerSeen, Sequence[Sample]]], label: Mapping[str, str]
) -> Iterator[Metric]:
    loads = [worker.load for worker, _ in workers]
    parked = _sum(workers, "baton_sequences_parked")
    running = float(sum(load.running_sequences for load in loads))
    queued = sum(load.queued_requests for load in loads)
    # Requests that no worker knows of yet wait at the door.
    known = running + queued + parked
    waiting = queued + parked + max(0.0, own.value("baton_requests_running") - known)
    yield _one("vllm:num_requests_running", "gauge", "Sequences running.", running, label)
    yield _one("vllm:num_requests_waiting", "gauge", "Requests waiting.", waiting, label)
    pages: defaultdict[str, float] = defaultdict(float)
    for worker, samples in workers:
        if worker.role == "decode":
            for sample in samples:
                if sample.name == "baton_pages":
                    pages[sample.labels["state"]] += sample.value
    used = sum(pages[state] for state in _BUSY)
    share = used / sum(pages.values()) if pages else 0.0
    yield _one("vllm:kv_cache_usage_perc", "gauge", "Share of KV pages in use.", share, label)


def _counters(
    own: Metrics, workers: Sequence[tuple[WorkerSeen, Sequence[Sample]]], label: Mapping[str, str]
) -> Iterator[Metric]:
    by_source = _by(own, "baton_prompt_tokens_total", "source")
    prompt = sum(by_source.values())
    device, external = by_source["device"], sum(by_source[tier] for tier in _EXTERNAL)
    for name, text, value in (
        ("vllm:prefix_cache_queries", "Prompt tokens looked up on the device.", prompt),
        ("vllm:prefix_cache_hits", "Prompt tokens found on the device.", device),
        ("vllm:external_prefix_cache_queries", "Looked up elsewhere.", prompt - device),
        ("vllm:external_prefix_cache_hits", "Found elsewhere.", external),
        ("vllm:prompt_tokens", "Prompt tokens.", prompt),
        ("vllm:generation_tokens", "Tokens made.", own.value("baton_generated_tokens_total")),
        ("vllm:num_preemptions", "Preemptions.", _sum(workers, "baton_preemptions_total")),
    ):
        yield _one(name, "counter", text, value, label)
    yield _labelled("vllm:prompt_tokens_by_source", "source", by_source, label)
    finishes = _by(own, "baton_finishes_total", "finish")
    yield _labelled("vllm:request_success", "finished_reason", finishes, label)


def _layout(
    workers: Sequence[tuple[WorkerSeen, Sequence[Sample]]], label: Mapping[str, str]
) -> Metric:
    sizes = [worker.block_tokens for worker, _ in workers if worker.role == "decode"]
    pages = sum(worker.load.pages_total for worker, _ in workers if worker.role == "decode")
    said = {"block_size": str(max(sizes, default=0)), "num_gpu_blocks": str(pages), **label}
    return _one("vllm:cache_config_info", "gauge", "Size of a block, and how many.", 1.0, said)


def _one(name: str, kind: str, text: str, value: float, labels: Mapping[str, str]) -> Metric:
    metric = Metric(name, text, kind)
    ending = "_total" if kind == "counter" else ""
    metric.add_sample(name + ending, dict(labels), value)
    return metric


def _labelled(name: str, by: str, values: Mapping[str, float], labels: Mapping[str, str]) -> Metric:
    metric = Metric(name, name.partition(":")[2].replace("_", " ").capitalize() + ".", "counter")
    for key, value in sorted(values.items()):
        metric.add_sample(f"{name}_total", {by: key, **labels}, value)
    return metric


def _histogram(name: str, own: Metrics, source: str, labels: Mapping[str, str]) -> Metric:
    """All series of ours as one."""
    metric = Metric(name, f"As {source}.", "histogram")
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for sample in own.raw(source):
        ending = sample.name.removeprefix(source)
        if ending in ("_bucket", "_sum", "_count"):
            sums[ending, sample.labels.get("le", "")] += sample.value
    for (ending, bound), value in sums.items():
        said = {"le": bound, **labels} if bound else dict(labels)
        metric.add_sample(name + ending, said, value)
    return metric


def _by(own: Metrics, name: str, label: str) -> defaultdict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for sample in own.raw(name):
        if not sample.name.endswith("_created"):
            found[sample.labels[label]] += sample.value
    return found


def _sum(workers: Iterable[tuple[WorkerSeen, Sequence[Sample]]], name: str) -> float:
    return sum(s.value for _, samples in workers for s in samples if s.name == name)
