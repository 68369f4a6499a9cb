"""Data sets by the names that flags use, each as a workload with its prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from loadgen.load import text_sets
from loadgen.load.client_process import Part
from loadgen.load.payloads import BlockPrompts, TextPrompts
from loadgen.load.text_sets import Text
from loadgen.workloads import catalogue, traces
from loadgen.workloads.catalogue import Wish
from loadgen.workloads.file import FORMAT, lines
from loadgen.workloads.prefixes import BLOCK_TOKENS, Family, Ids, families
from loadgen.workloads.request import Request, Workload, WorkloadError, build
from loadgen.workloads.sessions import Talk, Tree, talks, trees

Times = Callable[[int], Sequence[float]]
"""So many send times."""

OURS: Final = (
    "random-ids", "shared-prefix", "multi-turn", "agents", "sonnet", "musique", "sharegpt",
    "burstgpt", "jsonl",
)  # fmt: skip
ALIASES: Final = {
    "random": "random-ids",
    "generated-shared-prefix": "shared-prefix",
    "prefix_repetition": "shared-prefix",
    "rag": "musique",
    "custom": "jsonl",
    "mooncake": "mooncake:conversation",
    "azure": "azure:conv",
    "mooncake_trace": "mooncake:conversation",
}
_TEXTS: Final = ("sonnet", "musique", "sharegpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the flags say about prompts. Lengths as (least, most)."""

    name: str = "random-ids"
    path: Path | None = None
    folder: Path = Path("../shared/data")
    count: int = 1_000
    rate_per_s: float = 0.0
    """0: a trace's own rate."""
    time_scale: float = 1.0
    seed: int = 0
    input_tokens: tuple[int, int] = (256, 256)
    output_tokens: tuple[int, int] = (32, 32)
    output_given: bool = False
    """The flags set it: texts that know their own answers' length are overruled."""
    prefix_tokens: int = 0
    shared: float = 0.0
    groups: int = 4
    zipf: float = 0.0
    depth: int = 1
    turns: int = 4
    think_s: float = 2.0
    fork: int = 2
    alphabet: tuple[int, ...] = ()
    """Token ids to draw from; empty: those that every large vocabulary has."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A data set, ready to be sent."""

    part: Part
    ideal_hit: float
    texts: bool
    """Only texts are known, no token ids."""
    paced: bool
    """It brought its own times."""
    notes: tuple[str, ...] = ()


def choose(choice: Choice, times: Times) -> Chosen:
    """Raises WorkloadError that names what can be asked for, or where data is published."""
    name = ALIASES.get(choice.name, choice.name)
    if name == "jsonl" and choice.path is None:
        raise WorkloadError("this data set is a file: name it with --dataset-path")
    path = choice.path if name == "jsonl" else None
    if path is not None and not _is_workload(path):
        return _texts(name, text_sets.prompts_file(path, choice.count), choice, times)
    if name in _TEXTS:
        return _texts(name, _read_texts(name, choice), choice, times)
    notes: tuple[str, ...] = ()
    if name == "burstgpt":
        workload, notes = _burstgpt(choice)
    elif name in _DRAWN:
        workload = _DRAWN[name](choice, times)
    else:
        workload = _catalogued(str(path) if path is not None else name, choice, times)
    prompts = BlockPrompts(workload, choice.seed, choice.alphabet)
    paced = name not in _DRAWN and not catalogue.paced_by_arrival(name)
    return Chosen(Part(workload, prompts), ideal_hit(workload), False, paced, notes)


def ideal_hit(workload: Workload) -> float:
    """Share of prompt tokens in full blocks of 16 that an infinite cache would have had."""
    seen: set[int] = set()
    reused = total = 0
    for request in workload:
        known = 0
        for block in request.blocks:
            if block not in seen:
                break
            known += 1
        seen.update(request.blocks[known:])
        reusable = min(known * workload.block_tokens, request.prompt_tokens - 1)
        reused += reusable // BLOCK_TOKENS * BLOCK_TOKENS
        total += request.prompt_tokens
    return reused / total if total else 0.0


def _is_workload(path: Path) -> bool:
    _, first = next(lines(path), (0, {}))
    return first.get("format") == FORMAT or "hash_ids" in first


def _catalogued(name: str, choice: Choice, times: Times) -> Workload:
    """A published trace, or a generator of the catalogue, at the times of the flags."""
    if name.endswith(".jsonl") and "hash_ids" in next(lines(Path(name)), (0, {}))[1]:
        found = traces.mooncake(Path(name))
        found = build(found.name, found.block_tokens, found.requests[: choice.count])
    else:
        wish = Wish(name, choice.count, seed=choice.seed)
        found = catalogue.load(wish, choice.folder)
    if catalogue.paced_by_arrival(name):
        return _at_times(found, times)
    if choice.rate_per_s:
        return catalogue.at_rate(found, choice.rate_per_s)
    scale = choice.time_scale
    rows = [
        request if request.after is not None else replace(request, at_s=request.at_s * scale)
        for request in found
    ]
    return build(found.name, found.block_tokens, rows)


def _at_times(found: Workload, times: Times) -> Workload:
    """The same requests; those that follow nothing at other times."""
    roots = sum(request.after is None for request in found)
    moments = iter(times(roots))
    rows = [
        request if request.after is not None else replace(request, at_s=next(moments))
        for request in found
    ]
    return build(found.name, found.block_tokens, rows)


# -- drawn here ------------------------------------------------------------------------------------


def _random_ids(choice: Choice, times: Times) -> Workload:
    """Lengths drawn evenly from a range; a prefix for all, or one for each of some groups."""
    low, high = choice.input_tokens
    shared = choice.prefix_tokens or round(high * choice.shared)
    if shared:
        shared = shared // BLOCK_TOKENS * BLOCK_TOKENS
        own = high if choice.prefix_tokens else high - shared
        groups = 1 if choice.prefix_tokens else choice.groups
        family = Family(groups, shared, max(1, own), choice.output_tokens[1], choice.zipf)
        return families("random-ids", family, times(choice.count), choice.seed)
    chance = random.Random(f"random-ids:{choice.seed}")
    return build(
        "random-ids",
        BLOCK_TOKENS,
        (
            Request(
                at_s=at_s,
                prompt_tokens=chance.randint(low, high),
                output_tokens=chance.randint(*choice.output_tokens),
            )
            for at_s in times(choice.count)
        ),
    )


def _shared_prefix(choice: Choice, times: Times) -> Workload:
    """Groups with a prefix each; with a depth, prefixes are paths of a tree whose branches fork in
    two, so that neighbours share the beginnings of theirs."""
    prefix = max(BLOCK_TOKENS * choice.depth, choice.prefix_tokens // BLOCK_TOKENS * BLOCK_TOKENS)
    own, output = choice.input_tokens[1], choice.output_tokens[1]
    moments = times(choice.count)
    family = Family(choice.groups, prefix, own, output, choice.zipf)
    if choice.depth <= 1:
        return families("shared-prefix", family, moments, choice.seed)
    flat = families("shared-prefix", family, moments, choice.seed)
    blocks = prefix // BLOCK_TOKENS
    edges = [blocks * level // choice.depth for level in range(choice.depth + 1)]
    ids, known = Ids(), dict[tuple[int, int], tuple[int, ...]]()
    rows = []
    for request in flat:
        path: tuple[int, ...] = ()
        for level in range(choice.depth):
            branch = (level, (request.session or 0) >> (choice.depth - 1 - level))
            if branch not in known:
                known[branch] = ids.take(edges[level + 1] - edges[level])
            path += known[branch]
        rows.append(replace(request, blocks=path + ids.take(len(request.blocks) - blocks)))
    return build("shared-prefix", BLOCK_TOKENS, rows)


def _multi_turn(choice: Choice, times: Times) -> Workload:
    sessions = max(1, -(-choice.count // choice.turns))
    message, answer = choice.input_tokens[1], choice.output_tokens[1]
    talk = Talk(
        choice.turns,
        choice.prefix_tokens,
        (message, message / 2),
        (answer, answer / 2),
        choice.think_s,
    )
    return talks("multi-turn", talk, times(sessions), choice.seed)


def _agents(choice: Choice, times: Times) -> Workload:
    calls = sum(choice.fork**level for level in range(choice.depth))
    step, answer = choice.input_tokens[1], choice.output_tokens[1]
    tree = Tree(
        choice.depth,
        choice.fork,
        choice.prefix_tokens,
        (step, step / 2),
        (answer, answer / 2),
        choice.think_s,
    )
    return trees("agents", tree, times(max(1, -(-choice.count // calls))), choice.seed)


def _burstgpt(choice: Choice) -> tuple[Workload, tuple[str, ...]]:
    if choice.path is None:
        raise WorkloadError(
            "burstgpt is not here: github.com/HPMLL/BurstGPT, data/; name the file with "
            "--dataset-path"
        )
    found, dropped = traces.burstgpt(choice.path, choice.count)
    if choice.rate_per_s:
        found = catalogue.at_rate(found, choice.rate_per_s)
    note = (f"{dropped} rows without an answer were failures of the recorded service: left out",)
    return found, note if dropped else ()


_DRAWN: Final[dict[str, Callable[[Choice, Times], Workload]]] = {
    "random-ids": _random_ids,
    "shared-prefix": _shared_prefix,
    "multi-turn": _multi_turn,
    "agents": _agents,
}


def _read_texts(name: str, choice: Choice) -> list[Text]:
    folder = choice.folder
    match name:
        case "sonnet":
            path = choice.path or folder / "sonnet" / "sonnet.txt"
            words, shared = choice.input_tokens[1], choice.prefix_tokens
            return text_sets.sonnets(path, choice.count, words, shared, choice.seed)
        case "musique":
            path = choice.path or folder / "musique" / "musique_s.json"
            return text_sets.musique(path, choice.count, choice.seed)
        case _:
            return text_sets.sharegpt(choice.path, choice.count, choice.seed)


def _texts(name: str, texts: Sequence[Text], choice: Choice, times: Times) -> Chosen:
    chance = random.Random(f"{name}:{choice.seed}")
    rows = []
    for text, at_s in zip(texts, times(len(texts)), strict=True):
        drawn = chance.randint(*choice.output_tokens)
        own = 0 if choice.output_given else text.output_tokens
        rows.append(
            Request(
                at_s=at_s,
                prompt_tokens=text.prompt_tokens,
                output_tokens=own or drawn,
                session=text.group,
            )
        )
    systems = [text.system for text in texts]
    prompts = TextPrompts([text.said for text in texts], systems if any(systems) else ())
    workload = build(name, BLOCK_TOKENS, rows)
    return Chosen(Part(workload, prompts), text_sets.ideal_hit(texts), True, False)
