"""Conversations and agents: requests that wait for an earlier one.

A turn's prompt is everything said before plus the new message, so it shares the whole of its
predecessor's prompt and answer. An agent's calls form a tree: each child starts with its parent's
context; siblings run side by side.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadgen.workloads.prefixes import BLOCK_TOKENS, Ids, log_normal
from loadgen.workloads.request import Request, Workload, WorkloadError, build


@dataclass(frozen=True, slots=True)
class Talk:
    """Conversations of `turns`; tokens as (mean, deviation)."""

    turns: int
    system_tokens: int
    message_tokens: tuple[float, float]
    output_tokens: tuple[float, float]
    think_s: float
    """Mean of the exponential pause between an answer and the next message."""


@dataclass(frozen=True, slots=True)
class Tree:
    """An agent: at each of `depth` levels a call forks into `fork` tool calls."""

    depth: int
    fork: int
    system_tokens: int
    step_tokens: tuple[float, float]
    output_tokens: tuple[float, float]
    tool_s: float
    """Mean time that a tool takes before the next call."""


class _Context:
    """What has been said on one branch: its full blocks, and the tokens after them."""

    def __init__(self, ids: Ids, blocks: tuple[int, ...], tokens: int) -> None:
        self._ids = ids
        self.blocks = blocks
        self.tokens = tokens

    def grown(self, tokens: int) -> _Context:
        """With more said; a partial block is named anew when it grows."""
        total = self.tokens + tokens
        kept = self.blocks[: self.tokens // BLOCK_TOKENS]
        wanted = -(-total // BLOCK_TOKENS)
        return _Context(self._ids, kept + self._ids.take(wanted - len(kept)), total)

    def request(self, at_s: float, output_tokens: int, after: int | None, session: int) -> Request:
        """What is sent when so much has been said."""
        return Request(
            at_s=at_s,
            prompt_tokens=self.tokens,
            output_tokens=output_tokens,
            blocks=self.blocks,
            after=after,
            session=session,
        )


def talks(name: str, talk: Talk, starts: Sequence[float], seed: int = 0) -> Workload:
    """One conversation per start; all share the system prompt. Raises WorkloadError."""
    if talk.turns < 1 or talk.system_tokens < 0:
        raise WorkloadError(f"{name}: needs at least one turn")
    return build(name, BLOCK_TOKENS, _talks(talk, starts, seed))


def _talks(talk: Talk, starts: Sequence[float], seed: int) -> Iterator[Request]:
    chance, ids = random.Random(f"talks:{seed}"), Ids()
    system = _Context(ids, (), 0).grown(talk.system_tokens)
    row = 0
    for session, start_s in enumerate(starts):
        context = system
        for turn in range(talk.turns):
            context = context.grown(log_normal(chance, *talk.message_tokens))
            output = log_normal(chance, *talk.output_tokens)
            pause_s = chance.expovariate(1 / talk.think_s) if talk.think_s > 0 else 0.0
            at_s, after = (pause_s, row - 1) if turn else (start_s, None)
            yield context.request(at_s, output, after, session)
            context = context.grown(output)
            row += 1


def trees(name: str, tree: Tree, starts: Sequence[float], seed: int = 0) -> Workload:
    """One agent per start. Raises WorkloadError where a tree would have over 10,000 calls."""
    calls = sum(tree.fork**level for level in range(tree.depth))
    if tree.depth < 1 or tree.fork < 1 or calls > 10_000:
        raise WorkloadError(f"{name}: a tree of depth {tree.depth} and fork {tree.fork} cannot be")
    return build(name, BLOCK_TOKENS, _trees(tree, starts, seed))


def _trees(tree: Tree, starts: Sequence[float], seed: int) -> Iterator[Request]:
    chance, ids = random.Random(f"trees:{seed}"), Ids()
    system = _Context(ids, (), 0).grown(tree.system_tokens)
    row = 0
    for session, start_s in enumerate(starts):
        waiting: list[tuple[_Context, int | None, int]] = [(system, None, 0)]
        while waiting:
            context, parent, level = waiting.pop(0)
            context = context.grown(log_normal(chance, *tree.step_tokens))
            output = log_normal(chance, *tree.output_tokens)
            tool_s = chance.expovariate(1 / tree.tool_s) if tree.tool_s > 0 else 0.0
            at_s = start_s if parent is None else tool_s
            yield context.request(at_s, output, parent, session)
            if level + 1 < tree.depth:
                said = context.grown(output)
                waiting += [(said, row, level + 1)] * tree.fork
            row += 1
