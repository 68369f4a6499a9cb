"""Workloads by name, as flags spell them: `mooncake:conversation`, `preble:toolbench`, a file.

`DATA` (../shared/data unless told otherwise) holds the public traces; without it those names say
where the originals are published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from loadgen import arrivals
from loadgen.workloads import file, servegen, traces
from loadgen.workloads.prefixes import PREBLE, Family, families, preble
from loadgen.workloads.request import Workload, WorkloadError, build
from loadgen.workloads.sessions import Talk, Tree, talks, trees

_SOURCES: Final = {
    "mooncake": "github.com/kvcache-ai/Mooncake, FAST25-release/traces",
    "azure": "github.com/Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_*.csv",
    "vidur": "github.com/microsoft/vidur, data/processed_traces",
    "servegen": "github.com/alibaba/ServeGen, data/",
}
_MODELS: Final = ("m-small", "m-mid", "m-large", "deepseek-r1")
_SERVEGEN_BEGIN_S: Final = 10 * 3600.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What to draw. `rate_per_s` 0 keeps a trace's own rate; generators then take 1/s."""

    name: str
    count: int = 1_000
    rate_per_s: float = 0.0
    arrival: str = "poisson"
    """poisson, constant, gamma:CV, on-off:ON_S:OFF_S (generators only)."""
    seed: int = 0


def load(wish: Wish, folder: Path) -> Workload:
    """Raises WorkloadError that names what can be asked for."""
    kind, _, rest = wish.name.partition(":")
    if Path(wish.name).suffix == ".jsonl":
        return _paced(file.read(Path(wish.name)), wish)
    if kind in _SOURCES:
        return _published(kind, rest, wish, folder)
    if kind == "preble":
        return preble(rest, times(wish), wish.seed)
    draw = _GENERATORS.get(wish.name)
    if draw is None:
        raise WorkloadError(f"no workload {wish.name!r}; there are: {', '.join(NAMES)}, FILE.jsonl")
    return draw(wish)


def paced_by_arrival(name: str) -> bool:
    """Whether a workload's schedule is drawn; recorded ones have their own."""
    return name in _GENERATORS or name.startswith(("preble:", "vidur:"))


def times(wish: Wish) -> tuple[float, ...]:
    """The schedule of a generator. Raises WorkloadError."""
    rate = wish.rate_per_s or 1.0
    kind, *numbers = wish.arrival.split(":")
    try:
        values = [float(number) for number in numbers]
        match kind, values:
            case "poisson", []:
                return arrivals.poisson(rate, wish.count, wish.seed)
            case "constant", []:
                return arrivals.constant(rate, wish.count)
            case "gamma", [cv]:
                return arrivals.gamma(rate, wish.count, cv, wish.seed)
            case "on-off", [on_s, off_s]:
                return arrivals.on_off(rate, wish.count, on_s, off_s, wish.seed)
    except ValueError as error:
        raise WorkloadError(f"arrival {wish.arrival!r}: {error}") from None
    raise WorkloadError(
        f"arrival {wish.arrival!r}; expected poisson, constant, gamma:CV or on-off:ON_S:OFF_S"
    )


def _published(kind: str, rest: str, wish: Wish, folder: Path) -> Workload:
    if not folder.is_dir():
        raise WorkloadError(f"{folder} is absent; the originals: {_SOURCES[kind]}")
    match kind, rest:
        case "mooncake", "conversation" | "synthetic":
            found = traces.mooncake(folder / "mooncake" / f"{rest}_trace.jsonl")
        case "azure", "code" | "conv":
            path = folder / "azure-llm-2023" / f"AzureLLMInferenceTrace_{rest}.csv"
            found = traces.azure(path)
        case "vidur", "arxiv":
            name = "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
            return traces.vidur(folder / "vidur" / name, times(wish), wish.seed)
        case "servegen", model if model in _MODELS:
            begin_s = _SERVEGEN_BEGIN_S
            found = servegen.mix(folder / "servegen", model, begin_s, wish.count, seed=wish.seed)
        case _:
            raise WorkloadError(f"no workload {wish.name!r}; there are: {', '.join(NAMES)}")
    return _paced(found, wish)


def _paced(found: Workload, wish: Wish) -> Workload:
    """The first `count` rows, at another mean rate where one is wished."""
    rows = found.requests[: wish.count]
    trimmed = build(found.name, found.block_tokens, rows)
    return at_rate(trimmed, wish.rate_per_s) if wish.rate_per_s else trimmed


def at_rate(found: Workload, rate_per_s: float) -> Workload:
    """The same requests at another mean rate. Raises WorkloadError."""
    rows = found.requests
    own = [place for place, row in enumerate(rows) if row.after is None]
    try:
        moved = arrivals.scaled([rows[place].at_s for place in own], rate_per_s)
    except ValueError as error:
        raise WorkloadError(f"{found.name}: {error}") from None
    paced = list(rows)
    for place, at_s in zip(own, moved, strict=True):
        paced[place] = replace(rows[place], at_s=at_s)
    return build(found.name, found.block_tokens, paced)


def _zipf(wish: Wish) -> Workload:
    return families("zipf", Family(40, 2_000, 200, 20, zipf=1.1), times(wish), wish.seed)


def _hot(wish: Wish) -> Workload:
    return families("hot", Family(1, 2_000, 200, 20), times(wish), wish.seed)


def _groups(wish: Wish) -> Workload:
    return families("groups96", Family(96, 1_696, 154, 16), times(wish), wish.seed)


def _chat(wish: Wish) -> Workload:
    talk = Talk(6, 512, (80, 60), (200, 120), 8.0)
    starts = times(replace(wish, count=-(-wish.count // talk.turns)))
    return talks("chat", talk, starts, wish.seed)


def _agents(wish: Wish) -> Workload:
    tree = Tree(3, 3, 1_024, (300, 150), (80, 40), 1.5)
    calls = sum(tree.fork**level for level in range(tree.depth))
    return trees("agents", tree, times(replace(wish, count=-(-wish.count // calls))), wish.seed)


_GENERATORS: Final[dict[str, Callable[[Wish], Workload]]] = {
    "zipf": _zipf,
    "hot": _hot,
    "groups96": _groups,
    "chat": _chat,
    "agents": _agents,
}
NAMES: Final = (
    *_GENERATORS,
    *(f"preble:{kind}" for kind in PREBLE),
    "mooncake:conversation",
    "mooncake:synthetic",
    "azure:code",
    "azure:conv",
    "vidur:arxiv",
    *(f"servegen:{model}" for model in _MODELS),
)
