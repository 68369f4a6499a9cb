"""`python -m services`: the local cluster, and the small commands around it.

python -m services [serve] [flags]    start everything, until Ctrl-C
python -m services fetch              bring and verify the small real model
python -m services.probe [URL]        exit 0 when a process is ready (container health checks)
python -m services.bus_server FOLDER  NATS with a credential per role (containers)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from services.fetch import BUILT_IN, CACHE, fetch, resolve
from services.local import LocalCluster, LocalSettings
from services.topology import Topology, read_topology
from shared.errors import StartupError

TOPOLOGY: Final = "ops/topology.toml"
ADMIN_PORT: Final = 8001
"""Where `loadgen trace` looks by itself."""
_EXIT_STARTUP: Final = 2


def main(argv: Sequence[str]) -> int:
    """The exit code: 0, or 2 after one line that says what to do."""
    try:
        options = _parser().parse_args(_with_command(argv))
        return int(options.call(options))
    except StartupError as error:
        print(f"baton: {' '.join(error.message.split())}", file=sys.stderr)
        return _EXIT_STARTUP
    except KeyboardInterrupt:
        return 130


def _with_command(argv: Sequence[str]) -> list[str]:
    """`serve` is understood when no command stands first."""
    known = ("serve", "fetch", "-h", "--help")
    return list(argv) if argv and argv[0] in known else ["serve", *argv]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, like everything else here."""

    def error(self, message: str) -> NoReturn:
        raise StartupError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    top = _Parser(prog="python -m services", allow_abbrev=False)
    commands = top.add_subparsers(required=True, metavar="command")
    serve = commands.add_parser("serve", help="start the local cluster (the default)")
    serve.add_argument("--topology", default=TOPOLOGY, help=f"file with all services ({TOPOLOGY})")
    serve.add_argument("--model", default="", help="GGUF file, Hugging Face folder, or hashchain")
    serve.add_argument("--engine", choices=("torch", "hashchain"), help="of prefill and decode")
    serve.add_argument("--prefill", type=int, metavar="N", help="number of prefill workers")
    serve.add_argument("--decode", type=int, metavar="N", help="number of decode workers")
    serve.add_argument("--port", type=int, help="public port (8000)")
    serve.add_argument("--admin-port", type=int, help="port of traces and metrics (8001)")
    serve.add_argument("--traces-port", type=int, help="port that takes spans (4318)")
    serve.add_argument("--run-dir", default=".baton/run", help="private folder (.baton/run)")
    serve.add_argument("--no-restart", action="store_true", help="leave dead processes dead")
    serve.set_defaults(call=_serve)
    fetching = commands.add_parser("fetch", help="bring and verify the small real model")
    fetching.add_argument("--cache", default=str(CACHE), help=f"folder ({CACHE})")
    fetching.set_defaults(call=lambda options: _fetch(Path(options.cache)))
    return top


def _serve(options: argparse.Namespace) -> int:
    topology = _adapted(read_topology(options.topology), options)
    model = resolve(options.model, _say)
    if model == BUILT_IN:
        topology = topology.with_engine(BUILT_IN)
    settings = LocalSettings(
        topology=topology,
        model_path=model,
        run_dir=Path(options.run_dir),
        restart=not options.no_restart,
    )
    return asyncio.run(_run(LocalCluster(settings, _say)))


def _adapted(topology: Topology, options: argparse.Namespace) -> Topology:
    """Flags over the file."""
    ports = {
        name: getattr(options, name)
        for name in ("port", "admin_port", "traces_port")
        if getattr(options, name) is not None
    }
    topology = topology.changed(topology.group("gateway").changed(**ports))
    topology = topology.with_count("prefill", options.prefill)
    topology = topology.with_count("decode", options.decode)
    return topology.with_engine(options.engine) if options.engine else topology


async def _run(cluster: LocalCluster) -> int:
    """Start, tell how to use it, and supervise until a signal; then drain."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            _say("stopping at once")
            cluster.hurry()
            return
        _say("draining (once more to stop at once)")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    starting = asyncio.create_task(cluster.start(), name="start")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return 0
    stopped.cancel()
    await starting
    await _tell_usage(cluster)
    await cluster.supervise(stop)
    _say("stopped")
    return 0


async def _tell_usage(cluster: LocalCluster) -> None:
    async with cluster.http.get(f"{cluster.url}/v1/models") as answer:
        listed = json.loads(await answer.read())["data"]
    model = listed[0]["id"] if listed else "?"
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    _say("")
    _say(f"Baton serves {model} at {cluster.url}/v1")
    _say(f"  try     curl -iN {cluster.url}/v1/chat/completions \\")
    _say(f"            -H 'content-type: application/json' -d '{json.dumps(body)}'")
    admin = "" if cluster.ports.admin == ADMIN_PORT else f" --admin-url {cluster.admin_url}"
    _say(f"  trace   {_python()} -m loadgen trace ID{admin}")
    _say("            (ID: x-baton-trace-id in the head of the answer)")
    _say(f"  pages   {cluster.admin_url}/   (cluster, traces, runs, prefixes)")
    _say(f"  logs    {cluster.folder.path / 'logs'}")
    _say("  Ctrl-C drains and stops.")


def _python() -> str:
    """How a person here names this interpreter."""
    return os.path.relpath(sys.executable) if sys.prefix.startswith(os.getcwd()) else "python"


def _fetch(cache: Path) -> int:
    _say(f"the model is at {fetch(cache, _say)}")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
