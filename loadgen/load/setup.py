"""Flags to a plan: checked before anything is sent. What cannot be is told with the flag's name."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from loadgen import arrivals
from loadgen.load import flag_values as values
from loadgen.load.datasets import ALIASES, Choice, Chosen, choose
from loadgen.load.flag_values import UsageError
from loadgen.load.plan import CHAT, COMPLETIONS, MOST_PROCESSES, Asking, Pace
from loadgen.load.sockets import read_url
from loadgen.reports import slo
from loadgen.workloads.file import CAPTURED
from loadgen.workloads.request import Request, WorkloadError, build

_PER_PROCESS_RPS: Final = 400.0
_MOST_REQUESTS: Final = 5_000_000
_ARRIVALS: Final = ("poisson", "constant", "gamma", "onoff", "trace", "closed")
_DEFAULT_COUNT: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run as the flags want it; the server has not been asked yet."""

    base_url: str
    path: str
    choice: Choice
    arrival: str
    rate_per_s: float
    pace: Pace
    processes: int
    slos: slo.Slos
    gpus: int
    """That serve; 0: not said."""
    percentiles: tuple[float, ...]
    steady: tuple[float, float]
    headers: tuple[tuple[str, str], ...]
    body: Mapping[str, Any]
    hints: Mapping[str, Mapping[str, Any]]
    tenants: Mapping[str, Mapping[str, Any]]
    warmups: int


def read(options: argparse.Namespace) -> Plan:
    """Raises UsageError."""
    try:
        return _read(options)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from None


def _read(options: argparse.Namespace) -> Plan:
    base_url = options.base_url or f"http://{options.host}:{options.port}"
    read_url(base_url)
    arrival = _arrival(options)
    rate = _rate(options, arrival)
    count = _count(options, rate, arrival)
    choice = _choice(options, count, arrival)
    paced_by_trace = arrival == "trace"
    pace = Pace(
        closed=arrival == "closed",
        cap=_cap(options, arrival),
        think_s=options.think_time or 0.0,
        duration_s=values.at_least("--duration", options.duration, 0.0),
        grace_s=values.at_least("--grace-period", options.grace_period, 0.0)
        if options.duration
        else 0.0,
        cancel_rate=values.within("--cancel-rate", options.cancel_rate, 0.0, 1.0),
        cancel_after_s=values.at_least("--cancel-after", options.cancel_after, 0.0),
        seed=options.seed,
        stall_s=options.stall_ms / 1000,
    )
    if options.num_warmups and options.warmup_seconds:
        raise UsageError("--num-warmups and --warmup-seconds say the same: give one")
    warmups = options.num_warmups or math.ceil(options.warmup_seconds * min(rate or 1.0, 1e4))
    return Plan(
        base_url=base_url.rstrip("/").removesuffix("/v1"),
        path=_path(options),
        choice=choice,
        arrival=arrival,
        rate_per_s=0.0 if paced_by_trace else rate,
        pace=pace,
        processes=int(
            values.within("--processes", options.processes or _processes(rate), 1, MOST_PROCESSES)
        ),
        slos=slo.read(options.goodput),
        gpus=int(values.within("--gpus", options.gpus, 0, 1 << 20)),
        percentiles=values.percentiles(options.metric_percentiles),
        steady=values.steady(options.steady_window),
        headers=values.headers(options),
        body=values.body(options),
        hints=values.objects(options.hints, "--hints"),
        tenants=values.tenants(options.tenants),
        warmups=warmups,
    )


def schedule(plan: Plan, options: argparse.Namespace) -> Callable[[int], Sequence[float]]:
    """Send times of so many requests, by the flags. Raises ValueError when called."""
    rate, seed = plan.rate_per_s or 1.0, options.seed

    def times(count: int) -> Sequence[float]:
        if plan.pace.closed:
            return (0.0,) * count
        if options.ramp_up_strategy in ("linear", "exponential"):
            first, last = options.ramp_start_rps, options.ramp_end_rps
            exponential = options.ramp_up_strategy == "exponential"
            return arrivals.ramp(first, last, count, seed, exponential)
        match plan.arrival:
            case "constant":
                return arrivals.constant(rate, count)
            case "gamma":
                shape = options.burstiness or 1.0
                return arrivals.gamma(rate, count, 1 / math.sqrt(shape), seed)
            case "onoff":
                on_s, off_s, factor = options.on_s, options.off_s, options.on_factor
                return arrivals.on_off(rate, count, on_s, off_s, seed, factor)
            case _:
                return arrivals.poisson(rate, count, seed)

    return times


def load(plan: Plan, options: argparse.Namespace, warmup: bool = False) -> Chosen:
    """The data set on its schedule, or another drawing of it to warm up with. Raises UsageError."""
    choice = plan.choice
    if warmup:
        choice = replace(choice, count=plan.warmups, seed=choice.seed + 1_000_003)
    try:
        chosen = choose(choice, schedule(plan, options))
    except (WorkloadError, ValueError) as error:
        raise UsageError(str(error)) from None
    if plan.tenants and not warmup:
        chosen = _with_tenants(chosen, plan, options.seed)
    return chosen


def asking(plan: Plan, chosen: Chosen, options: argparse.Namespace, model: str) -> Asking:
    """The envelope, once the model is known."""
    path = plan.path or (CHAT if chosen.texts else COMPLETIONS)
    follows = any(request.after is not None for request in chosen.part.workload)
    return Asking(
        base_url=plan.base_url,
        path=path,
        model=model,
        temperature=options.temperature,
        ignore_eos=options.ignore_eos,
        timeout_s=values.at_least("--timeout", options.timeout, 0.001),
        headers=plan.headers,
        extra_body=plan.body,
        tenant_headers={
            name: (("Authorization", f"Bearer {values.key(Path(tenant['api_key_file']))}"),)
            for name, tenant in plan.tenants.items()
            if "api_key_file" in tenant
        },
        hints=plan.hints,
        sessions=chosen.part.workload.name == CAPTURED,
        token_ids=follows and path.endswith("/v1/completions"),
    )


# -- one flag each --------------------------------------------------------------------------------


def _arrival(options: argparse.Namespace) -> str:
    name = options.arrival or options.profile or ("trace" if options.fixed_schedule else "")
    name = {"on-off": "onoff", "concurrency": "closed"}.get(name, name)
    if not name:
        name = "gamma" if options.burstiness not in (None, 1.0) else "poisson"
    if name not in _ARRIVALS:
        raise UsageError(f"--arrival {name}: expected one of {', '.join(_ARRIVALS)}")
    if options.burstiness is not None and not 1e-6 <= options.burstiness <= 1e6:
        raise UsageError("--burstiness must be above 0")
    return name


def _rate(options: argparse.Namespace, arrival: str) -> float:
    """0 where a trace keeps its own."""
    first, last = options.ramp_start_rps, options.ramp_end_rps
    if options.ramp_up_strategy:
        if first is None or last is None or not (0 < first < math.inf and 0 < last < math.inf):
            raise UsageError("--ramp-up-strategy needs --ramp-start-rps and --ramp-end-rps above 0")
        return float((first + last) / 2)
    rate = options.request_rate
    if rate is None:
        return 0.0 if arrival == "trace" or _is_trace(options) else 1.0
    if not rate > 0:
        raise UsageError("--request-rate must be above 0")
    return float(rate)


def _is_trace(options: argparse.Namespace) -> bool:
    kind = ALIASES.get(options.dataset, options.dataset).partition(":")[0]
    return kind in ("mooncake", "azure", "servegen", "burstgpt", "jsonl")


def _count(options: argparse.Namespace, rate: float, arrival: str) -> int:
    per_group = options.gsp_prompts_per_group * options.groups
    count = options.num_prompts or per_group
    if not count:
        fast = rate if 0 < rate < math.inf else 100.0
        count = math.ceil(options.duration * fast * 1.2) + 50 if options.duration else 0
        if arrival == "closed" and options.duration:
            count = max(count, 100_000)
    count = count or _DEFAULT_COUNT
    if not 1 <= count <= _MOST_REQUESTS:
        raise UsageError(f"--num-prompts must be 1..{_MOST_REQUESTS}")
    return int(count)


def _choice(options: argparse.Namespace, count: int, arrival: str) -> Choice:
    name = ALIASES.get(options.dataset, options.dataset)
    if not name:
        name = "jsonl" if options.dataset_path else "random-ids"
    tree = name == "agents"
    prefix = options.prefix_len
    if prefix is None:
        prefix = {"shared-prefix": 512, "agents": 256, "multi-turn": 128}.get(name, 0)
    ids = (
        values.whole_range("--token-range", options.token_range) if options.token_range else (0, -1)
    )
    return Choice(
        name=name,
        path=options.dataset_path,
        folder=options.data,
        count=count,
        rate_per_s=options.request_rate or 0.0 if arrival != "trace" else 0.0,
        time_scale=values.at_least("--time-scale", options.time_scale, 1e-6),
        seed=options.seed,
        input_tokens=values.whole_range("--input-len", options.input_len or "256"),
        output_tokens=values.whole_range("--output-len", options.output_len or "32"),
        output_given=bool(options.output_len),
        prefix_tokens=int(values.at_least("--prefix-len", prefix, 0)),
        shared=values.within("--shared-prefix", options.shared_prefix, 0.0, 1.0),
        groups=int(values.at_least("--groups", options.groups, 1)),
        zipf=values.at_least("--zipf", options.zipf, 0.0),
        depth=int(values.within("--depth", options.depth or (3 if tree else 1), 1, 20)),
        turns=int(values.at_least("--turns", options.turns, 1)),
        think_s=2.0 if options.think_time is None else options.think_time,
        fork=int(values.at_least("--fork", options.fork, 1)),
        alphabet=tuple(range(ids[0], ids[1] + 1)),
    )


def _cap(options: argparse.Namespace, arrival: str) -> int:
    cap = int(values.at_least("--max-concurrency", options.max_concurrency, 0))
    if arrival == "closed" and not cap:
        raise UsageError("a closed loop needs its number of users: --max-concurrency")
    return cap


def _path(options: argparse.Namespace) -> str:
    """Empty: by the data set."""
    told = options.endpoint or {
        "openai-chat": "chat", "openai": "completions", "vllm": "completions",
        "sglang-oai": "completions", "sglang-oai-chat": "chat", "": "",
    }.get(options.backend, "?")  # fmt: skip
    known = {"": "", "chat": CHAT, "completions": COMPLETIONS}
    if told in known:
        return known[told]
    if told.startswith("/") and told.endswith("/completions"):
        return str(told)
    raise UsageError(
        f"--endpoint {options.endpoint or options.backend!r}: expected chat, completions, or the "
        "path of one of them; other dialects are not spoken yet"
    )


def _with_tenants(chosen: Chosen, plan: Plan, seed: int) -> Chosen:
    """Sessions are drawn to tenants by weight."""
    names = list(plan.tenants)
    weights = [float(plan.tenants[name].get("weight", 1)) for name in names]
    chance, workload = random.Random(f"tenants:{seed}"), chosen.part.workload
    rows: list[Request] = []
    for request in workload:
        after = request.after
        tenant = rows[after].tenant if after is not None else chance.choices(names, weights)[0]
        rows.append(replace(request, tenant=tenant))
    part = replace(chosen.part, workload=build(workload.name, workload.block_tokens, rows))
    return replace(chosen, part=part)


def _processes(rate: float) -> int:
    return 1 if rate == math.inf else max(1, min(8, math.ceil(rate / _PER_PROCESS_RPS)))
