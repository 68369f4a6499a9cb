"""`make load-demo`: three minutes of prompts that share prefixes, on the real model, in turns to
two clusters: prefill and decode apart, and colocated on as many workers. One page compares them;
the last line is JSON; exit 0 when every request was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loadgen import ab, compare, run
from loadgen.load import flags, setup, target
from loadgen.load.flag_values import UsageError
from loadgen.load.sitting import Sitting
from loadgen.reports import compare_page, drawing, run_files, terminal
from loadgen.reports.page import latency_table
from loadgen.reports.run_files import RunFileError
from services.fetch import BUILT_IN, resolve
from services.local import LocalCluster, LocalSettings
from services.topology import DEFAULT, Topology
from shared.errors import StartupError

_SIDES: Final = ("disaggregated", "colocated")
_WORKERS: Final = {
    "disaggregated": {"prefill": 1, "decode": 1},
    "colocated": {"prefill": 0, "decode": 2},
}
_SECONDS: Final = 180.0
_SLOT_S: Final = 15.0


def main() -> int:
    """0 when nothing failed, 1 when a request did, 2 when nothing could be started."""
    options = _options()
    try:
        return asyncio.run(_play(options))
    except StartupError as error:
        print(f"load-demo: {' '.join(error.message.split())}", file=sys.stderr)
        return 2
    except (UsageError, target.TargetError, RunFileError, OSError) as error:
        print(f"load-demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadgen.load_demo", description=__doc__)
    parser.add_argument("--model", default="", help="as of python -m services")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of load, both together")
    parser.add_argument("--rate", type=float, default=1.0, help="requests/s")
    parser.add_argument("--groups", type=int, default=4, help="different shared prefixes")
    parser.add_argument("--prefix-tokens", type=int, default=512)
    parser.add_argument("--own-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--goodput", nargs="+", default=["ttft:1000", "tpot:100"])
    parser.add_argument("--result-dir", type=Path, default=Path("results"))
    parser.add_argument("--run-dir", default=".baton/load-demo")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


async def _play(options: argparse.Namespace) -> int:
    model = resolve(options.model, _say)
    folder = options.result_dir / time.strftime("load-demo-%Y%m%d-%H%M%S")
    clusters = {side: _cluster(side, model, options) for side in _SIDES}
    try:
        for side, cluster in clusters.items():
            _say(f"\n{side}: {_WORKERS[side]}")
            await cluster.start()
        found = await _turns(clusters, folder, options)
    finally:
        for cluster in clusters.values():
            await cluster.drain()
    told = compare.compared(folder / _SIDES[1], folder / _SIDES[0])
    _say("\n" + compare.show(told) + "\n")
    report = folder / run_files.REPORT
    run_files.replace_file(report, compare_page.render(told, _sides(found)).encode())
    _say(f"report   {report}\npages    BATON_GATEWAY_RUNS_DIR={folder.absolute()} make serve")
    line = summary(found, report)
    print(json.dumps(line), flush=True)
    return 0 if line["failed"] == 0 else 1


def _cluster(side: str, model: str, options: argparse.Namespace) -> LocalCluster:
    settings = LocalSettings(
        topology=_topology(side, model),
        model_path=model,
        run_dir=Path(options.run_dir) / side,
        restart=False,
    )
    return LocalCluster(settings, _say)


async def _turns(
    clusters: Mapping[str, LocalCluster], folder: Path, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """The same requests to both, a slot of the schedule at a time, while the other one rests."""
    sittings = []
    for side, cluster in clusters.items():
        wanted = _flags(side, cluster, folder, options)
        sittings.append(await Sitting.begin(setup.read(wanted), wanted, run.new_folder(wanted)))
    _say(f"\n{options.seconds:g} s of load, in turns of {_SLOT_S:g} s")
    await ab.take_turns(sittings, sittings[0].options, _SLOT_S)
    found = {}
    for side, sitting in zip(clusters, sittings, strict=True):
        found[side] = await sitting.finish()
        _say(f"\n{side}\n{terminal.render(found[side])}")
    return found


def _flags(
    side: str, cluster: LocalCluster, folder: Path, options: argparse.Namespace
) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    flags.add(parser)
    words = {
        "base-url": cluster.url,
        "admin-url": cluster.admin_url,
        "dataset": "shared-prefix",
        "duration": options.seconds / 2,
        "grace-period": 300,
        "request-rate": options.rate,
        "groups": options.groups,
        "prefix-len": options.prefix_tokens,
        "input-len": options.own_tokens,
        "output-len": options.output_tokens,
        "zipf": 1.0,
        "num-warmups": 3,
        "seed": options.seed,
        "result-dir": folder,
        "result-filename": side,
    }
    told = [word for name, said in words.items() for word in (f"--{name}", str(said))]
    return parser.parse_args([*told, "--ignore-eos", "--goodput", *options.goodput])


def _topology(side: str, model: str) -> Topology:
    topology = DEFAULT.with_engine(BUILT_IN if model == BUILT_IN else "torch")
    for role, count in _WORKERS[side].items():
        topology = topology.with_count(role, count)
    gateway = topology.group("gateway").changed(port=0, admin_port=0, traces_port=0)
    scheduler = topology.group("scheduler").changed(route=side)
    return topology.changed(gateway).changed(scheduler)


def summary(found: Mapping[str, Mapping[str, Any]], report: Path) -> dict[str, Any]:
    """The last line: the figures of both sides, those of the handover under the plain names."""
    split, together = found["disaggregated"], found["colocated"]

    def failed(document: Mapping[str, Any]) -> int:
        outcomes: dict[str, int] = document["counts"]["outcomes"]
        return sum(outcomes.values()) - outcomes.get("ok", 0) + len(list(document["trouble"]))

    return {
        "bench": "load-demo",
        "failed": failed(split) + failed(together),
        "report": str(report),
        "ttft_p50_ms": split["metrics"]["ttft_ms"]["p50"],
        "tpot_p50_ms": split["metrics"]["tpot_ms"]["p50"],
        "goodput_rps": split["goodput"]["goodput_rps"],
        "colocated_ttft_p50_ms": together["metrics"]["ttft_ms"]["p50"],
        "colocated_tpot_p50_ms": together["metrics"]["tpot_ms"]["p50"],
        "colocated_goodput_rps": together["goodput"]["goodput_rps"],
        "requests": split["metrics"]["requests"] + together["metrics"]["requests"],
        "cache_hit_share": split["reuse"]["achieved"],
        "ideal_hit_share": split["reuse"]["ideal"],
        "client_limited": split["client"]["limited"] or together["client"]["limited"],
    }


def _sides(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Both runs' latencies and the parts of their first tokens, below the comparison."""
    bars = [
        (side, list((document["server_delta"]["ttft_split"].get("mean_ms") or {}).items()))
        for side, document in found.items()
    ]
    parts = [
        f"<section><h2>{'B' if side == 'disaggregated' else 'A'}: {side} "
        f'(<a href="{side}/{run_files.REPORT}">its report</a>)</h2>'
        f"{latency_table(document['metrics'])}</section>"
        for side, document in found.items()
    ]
    chart = drawing.stacked_bar("Mean time to first token by part", "ms", bars)
    head = "<h2>Parts of the first token's time, from traces</h2>"
    return "".join(parts) + f"<section>{head}<figure>{chart}</figure></section>"


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
