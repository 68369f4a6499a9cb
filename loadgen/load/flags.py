"""Flags of `loadgen run`: ours, and the names that users of vLLM, SGLang, AIPerf and GuideLLM
know."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_IGNORED: Final = (
    "--trust-remote-code", "--save-result", "--disable-shuffle", "--append-result",
    "--skip-chat-template", "--skip-tokenizer-init", "--no-oversample", "--plot-timeline",
    "--plot-dataset-stats", "--self-timed",
)  # fmt: skip
_IGNORED_WITH_VALUE: Final = (
    "--tokenizer", "--tokenizer-mode", "--served-model-name", "--label", "--request-id-prefix",
    "--ready-check-timeout-sec", "--logprobs",
)  # fmt: skip


class _Refused(argparse.Action):
    """A flag whose meaning differs between tools."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string} is refused: {self.help}")


class _Ignored(argparse.Action):
    """A flag that changes nothing here; it is told."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        namespace.ignored = [*getattr(namespace, "ignored", []), option_string]


def add(parser: argparse.ArgumentParser) -> None:
    """All of them, in groups."""
    # Defaults that are lists or None say nothing in a help text: they are told in words.
    _server(parser.add_argument_group("server"))
    _pace(parser.add_argument_group("pace"))
    _prompts(parser.add_argument_group("prompts"))
    _judging(parser.add_argument_group("judging"))
    _results(parser.add_argument_group("results"))
    others = parser.add_argument_group("accepted, without effect")
    parser.set_defaults(ignored=[])
    for name in _IGNORED:
        others.add_argument(name, action=_Ignored, nargs=0, help=argparse.SUPPRESS)
    for name in _IGNORED_WITH_VALUE:
        others.add_argument(name, action=_Ignored, help=argparse.SUPPRESS)
    others.add_argument(
        "--random-range-ratio",
        action=_Refused,
        help="vLLM and SGLang give it opposite meanings; say --input-len LEAST:MOST",
    )


def _server(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--base-url", "--target", "--url", "-u", default="", help="http://127.0.0.1:8000")
    add("--host", default="127.0.0.1", help="with --port, instead of --base-url")
    add("--port", type=int, default=8000)
    add("--backend", default="", help="openai (completions) or openai-chat, as in vLLM")
    add("--endpoint", default="", help="chat or completions (or a path); texts default to chat")
    add("--model", default="", help="default: the first of /v1/models")
    add("--api-key-file", type=Path, default=None, help="holds the key of Authorization: Bearer")
    add("--header", action="append", default=[], metavar="NAME:VALUE", help="more than once")
    add("--extra-body", default="", help="JSON object put into every body")
    add("--hints", type=Path, default=None, help='JSON: {"GROUP or *": {"headers":, "body":}}')
    add("--tenants", type=Path, default=None, help='JSON: {"NAME": {"api_key_file":, "weight":}}')
    add("--temperature", type=float, default=0.0)
    for name in ("--top-p", "--min-p", "--frequency-penalty", "--presence-penalty",
                 "--repetition-penalty"):  # fmt: skip
        add(name, type=float, default=None)
    add("--top-k", type=int, default=None)
    add("--ignore-eos", action="store_true", help="always output-len tokens")
    add("--timeout", type=float, default=300.0, help="seconds per request")
    add("--admin-url", default="auto", help="Baton's operators' port, for traces; '' for none")


def _pace(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--num-prompts", "--request-count", type=int, default=None, help="default: 32")
    add("--duration", "--max-seconds", "--benchmark-duration", type=float, default=0.0,
        help="seconds of sending; with --num-prompts, whichever ends first")  # fmt: skip
    add("--grace-period", type=float, default=30.0,
        help="with --duration: seconds after it until the rest is cut")  # fmt: skip
    add("--request-rate", type=float, default=None, help="requests/s, or inf; default 1")
    add("--arrival", "--arrival-pattern", default="",
        help="poisson (default), constant, gamma, onoff, trace, closed")  # fmt: skip
    add("--profile", nargs="?", const="", default="", help="GuideLLM's word for --arrival")
    add("--fixed-schedule", action="store_true", help="the same as --arrival trace")
    add("--burstiness", "--arrival-smoothness", type=float, default=None,
        help="shape of gamma gaps: 1 is Poisson, below 1 comes in bursts")  # fmt: skip
    add("--on-s", type=float, default=5.0, help="onoff: seconds on")
    add("--off-s", type=float, default=5.0, help="onoff: seconds off")
    add("--on-factor", type=float, default=None, help="onoff: rate while on / mean; none: silence")
    add("--max-concurrency", "--concurrency", type=int, default=0,
        help="users of a closed loop, or a cap in an open one (told as capped)")  # fmt: skip
    add("--think-time", type=float, default=None, help="seconds, of users and conversations")
    add("--ramp-up-strategy", choices=("", "linear", "exponential", "steps"), default="",
        help="steps: a sweep of rates with a verdict each, then bisection")  # fmt: skip
    add("--ramp-start-rps", "--ramp-up-start-rps", type=float, default=None)
    add("--ramp-end-rps", "--ramp-up-end-rps", type=float, default=None)
    add("--ramp-steps", type=int, default=5, help="rates of a sweep, by equal factors")
    add("--bisect", type=int, default=3, help="further rates of a sweep, around the limit")
    add("--num-warmups", "--warmup-requests", type=int, default=0,
        help="requests before the run, with other prompts; in no figure")  # fmt: skip
    add("--warmup-seconds", "--warmup-duration", type=float, default=0.0, help="the same by time")
    add("--cancel-rate", "--request-cancellation-rate", type=float, default=0.0, help="share 0..1")
    add("--cancel-after", "--request-cancellation-delay", type=float, default=1.0, help="seconds")
    add("--processes", type=int, default=0, help="client processes; default: by the rate")
    add("--seed", type=int, default=0)
    add("--stall-ms", type=float, default=0.0, help=argparse.SUPPRESS)


def _prompts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--dataset", "--dataset-name", default="", help="see ops/docs/loadgen.md; random-ids")
    add("--dataset-path", type=Path, default=None, help="file of jsonl, sharegpt, burstgpt, …")
    add("--data", type=Path, default=Path("../shared/data"), help="folder of published traces")
    add("--time-scale", "--mooncake-slowdown-factor", type=float, default=1.0,
        help="stretches a trace's clock")  # fmt: skip
    add("--input-len", "--isl", "--random-input-len", "--gsp-question-len", "--sonnet-input-len",
        "--prefix-repetition-suffix-len",
        default="", metavar="N or A:B", help="tokens of a prompt; 256")  # fmt: skip
    add("--output-len", "--osl", "--random-output-len", "--gsp-output-len", "--sonnet-output-len",
        "--sharegpt-output-len", "--custom-output-len", "--prefix-repetition-output-len",
        default="", metavar="N or A:B", help="max_tokens; 32")  # fmt: skip
    add("--prefix-len", "--random-prefix-len", "--gsp-system-prompt-len", "--sonnet-prefix-len",
        "--prefix-repetition-prefix-len",
        type=int, default=None, help="tokens of shared prefixes or systems")  # fmt: skip
    add("--shared-prefix", type=float, default=0.0, help="random-ids: share of prompts, 0..1")
    add("--groups", "--gsp-num-groups", "--prefix-repetition-num-prefixes", type=int, default=4,
        help="different shared prefixes")  # fmt: skip
    add("--gsp-prompts-per-group", type=int, default=0, help="instead of --num-prompts")
    add("--zipf", type=float, default=0.0, help="exponent of the groups' popularity")
    add("--depth", type=int, default=0, help="levels of the prefix tree, or of agents' calls")
    add("--fork", type=int, default=2, help="agents: calls that follow each call")
    add("--turns", type=int, default=4, help="multi-turn: requests of a conversation")
    add("--token-range", default="", metavar="A:B",
        help="ids of random prompts; default: by the server's /tokenize")  # fmt: skip


def _judging(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="ttft:500 tpot:50")
    add("--gpus", type=int, default=0, help="that serve: goodput is told per GPU too")
    add("--percentile-metrics", default="", help="accepted: all metrics are always there")
    add("--metric-percentiles", default="", help="50,90,95,99,99.9")
    add("--steady-window", default="0:1", metavar="A:B",
        help="shares of the time of sending that figures are made of")  # fmt: skip
    add("--assert", dest="claims", action="append", default=[], metavar="EXPR",
        help='exit 4 unless it holds: "p99_ttft_ms<800"')  # fmt: skip


def _results(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--result-dir", type=Path, default=Path("results"))
    add("--result-filename", default="", help="name of the run's folder; default: the time")
    add("--save-detailed", action="store_true", help="accepted: rows are always saved")
    add("--metadata", nargs="*", default=[], metavar="KEY=VALUE", help="kept in run.json")
    add("--disable-tqdm", "--quiet", dest="quiet", action="store_true", help="no progress lines")
