"""Flags that parts of `python -m loadgen sim` share, and what they make: a workload, a fleet."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

from loadgen.calibration import costs as costs_file
from loadgen.sim.fleet import roofline
from loadgen.sim.fleet.design import Design, DesignError, Link
from loadgen.sim.fleet.devices import DEVICES, MODELS
from loadgen.sim.fleet.prices import PRICES, Price
from loadgen.workloads.catalogue import NAMES, Wish, load
from loadgen.workloads.request import Workload
from services.scheduler.core.placement.registry import POLICIES
from services.scheduler.core.placement.split import SPLITS

GIGA: Final = 1e9
JOBS: Final = 2


def add_question(part: argparse.ArgumentParser) -> None:
    """Model, GPU, workload and objectives."""
    models, gpus = ", ".join(MODELS), ", ".join(DEVICES)
    part.add_argument("--model", default="llama-3-8b", help=f"{models}; or with --gpu '' a fit")
    part.add_argument("--gpu", default="a100", help=f"{gpus}")
    part.add_argument("--costs", type=Path, help="file of `sim calibrate`, instead of both above")
    part.add_argument("--workload", default="zipf", help=f"{', '.join(NAMES)}, or FILE.jsonl")
    part.add_argument("--count", type=int, default=500, help="requests")
    part.add_argument(
        "--rate", type=float, default=0.0, help="requests/s; 0: the trace's own, or 1"
    )
    part.add_argument("--arrival", default="poisson", help="or constant, gamma:CV, on-off:ON:OFF")
    part.add_argument("--slo", default="ttft:1000,tpot:100", help="milliseconds")
    part.add_argument("--share", type=float, default=0.9, help="of requests that must meet both")
    part.add_argument("--link-gb", type=float, default=25.0, help="GB/s of each worker's card")
    part.add_argument("--block-tokens", type=int, default=64)
    part.add_argument("--data", type=Path, default=Path("../shared/data"), help="public traces")
    part.add_argument("--seed", type=int, default=0)
    part.add_argument("--jobs", type=int, default=JOBS, help="processes")


def add_fleet(part: argparse.ArgumentParser) -> None:
    """One fleet's workers, budgets and policies."""
    part.add_argument("--prefills", type=int, default=1, help="0: colocated")
    part.add_argument("--decodes", type=int, default=1)
    part.add_argument("--prefill-tp", type=int, default=1, help="GPUs of one prefill worker")
    part.add_argument("--decode-tp", type=int, default=1)
    part.add_argument("--prefill-pp", type=int, default=1, help="pipeline stages of one")
    part.add_argument("--decode-pp", type=int, default=1)
    part.add_argument("--chunk-tokens", type=int, default=2_048, help="of one prefill step")
    part.add_argument("--step-tokens", type=int, default=512, help="of one decode step; 0: as live")
    part.add_argument("--policy", default="baton", choices=POLICIES, help="of placement")
    part.add_argument("--split", default="baton_cost", choices=sorted(SPLITS), help="under auto")
    part.add_argument("--route", default="auto", choices=("auto", "disaggregated", "colocated"))
    part.add_argument(
        "--stride", type=int, default=1, help="output tokens a simulated step; route disaggregated"
    )


def workload(options: argparse.Namespace, rate: float) -> Workload:
    """What the flags name, at this rate. Raises WorkloadError."""
    wish = Wish(options.workload, options.count, rate, options.arrival, options.seed)
    return load(wish, options.data)


def first_rate(options: argparse.Namespace) -> float:
    """Where a search begins."""
    return float(options.rate) or 1.0


def design(options: argparse.Namespace) -> Design:
    """The fleet. Raises DesignError."""
    learnt = costs_file.read(options.costs) if options.costs else None
    found = Design(
        prefills=options.prefills,
        decodes=options.decodes,
        prefill=price(options, options.prefill_tp, options.prefill_pp),
        decode=price(options, options.decode_tp, options.decode_pp),
        link=learnt.link() if learnt else Link(bytes_per_s=options.link_gb * GIGA),
        front_s=learnt.front_s if learnt else 0.0,
        beside=learnt.beside if learnt else 1.0,
        copy_beside=learnt.copy_beside if learnt else 1.0,
        kvpools=1 if learnt and learnt.copy_bytes_per_s else 0,
        kvpool_tokens=learnt.kv_tokens if learnt else 0,
        kvpool_link=learnt.pool_link() if learnt else None,
        block_tokens=options.block_tokens,
        chunk_tokens=options.chunk_tokens,
        step_tokens=options.step_tokens,
        policy=options.policy,
        split=options.split,
        route=options.route,
        stride=options.stride,
    )
    return found if found.prefills else replace(found, route="colocated")


def price(options: argparse.Namespace, tp: int, stages: int = 1) -> Price:
    """Of one worker: so many GPUs a stage, so many stages. Raises DesignError."""
    split = roofline.parallel(tp, stages)
    if options.costs:
        if split != "tp1":
            raise DesignError(f"{options.costs} is about one device, not {split}")
        return costs_file.read(options.costs).price()
    if options.gpu:
        return roofline.find(f"{options.model}:{options.gpu}:{split}")
    if f"{options.model}:tp{tp}" not in PRICES:
        raise DesignError(f"no fit '{options.model}:{split}'; there are: {', '.join(PRICES)}")
    return roofline.find(f"{options.model}:{split}")
