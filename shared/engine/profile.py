"""Measures an engine at start: the cost model of the heartbeats, and decode's token budget.

prefill = step_s + token_s * n + pair_s * ((n + p)^2 - p^2)      n new, p earlier tokens
budget  = most tokens of a step that decodes and prefills within the target between two tokens
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from shared.engine.batch import Draw, Engine, StepItem
from shared.ids import PageId
from shared.wire.workers import CostModel

_GREEDY: Final = Draw(temperature=0.0, top_p=1.0, seed=0, position=0)
_SMALL_TOKENS: Final = 32
_SLOW_S: Final = 0.010
"""A small chunk slower than this means a CPU: then the large one stays small, too."""
_SEQUENCES: Final = 8
_TRIES: Final = 2
LEAST_BUDGET: Final = 64
"""A smaller share would read all weights for next to nothing: prompts would never end."""
_MARGIN: Final = 0.9
"""Of the target: contexts grow, and steps vary."""
_BUDGET_CONTEXT: Final = 512
"""Earlier tokens of each sequence of the measured step."""


@dataclass(frozen=True, slots=True)
class _Bench:
    """Times steps over throw-away tokens in the first pages of the memory."""

    engine: Engine
    block_tokens: int

    @property
    def room_tokens(self) -> int:
        pages = self.engine.memory.pages * self.block_tokens
        return min(self.engine.context_tokens, pages)

    def seconds(self, tokens: int, earlier: int, sequences: int = 1) -> float:
        """Best of a few tries. Sequences share pages: only the time matters here."""
        pages = -(-(earlier + tokens) // self.block_tokens)
        table = tuple(PageId(page) for page in range(pages))
        fill = tuple(index % self.engine.vocab_size for index in range(tokens))
        items = [StepItem(fill, earlier, table, _GREEDY)] * sequences
        return self._best(items)

    def mixed_seconds(self, tokens: int, earlier: int, decoding: int) -> float:
        """One step of `tokens` in all: one each for the sequences that decode, the rest one
        chunk of a prompt."""
        pages = -(-(earlier + tokens) // self.block_tokens)
        table = tuple(PageId(page) for page in range(pages))
        fill = tuple(index % self.engine.vocab_size for index in range(tokens - decoding))
        one = StepItem(fill[:1], earlier, table, _GREEDY)
        return self._best([*[one] * decoding, StepItem(fill, earlier, table, _GREEDY)])

    def _best(self, items: list[StepItem]) -> float:
        return min(self.engine.step(items).seconds for _ in range(_TRIES))


def measure_costs(engine: Engine, block_tokens: int) -> CostModel:
    """Run a handful of steps (about a second on a CPU) and fit. Overwrites pages 0.., so it
    must run before any page is in use. Raises EngineError."""
    bench = _Bench(engine, block_tokens)
    small = min(_SMALL_TOKENS, bench.room_tokens)
    bench.seconds(small, 0)
    small_s = bench.seconds(small, 0)
    large = min(128 if small_s > _SLOW_S else 1_024, bench.room_tokens)
    large_s = bench.seconds(large, 0) if large > small else small_s
    earlier = max(0, min(1_024, bench.room_tokens - small))
    late_s = bench.seconds(small, earlier)
    # Timings are noisy: pairs may explain at most half of the large chunk.
    pair_s = min(_slope(late_s - small_s, 2 * small * earlier), large_s / large**2 / 2)
    token_s = _slope(large_s - small_s - pair_s * (large**2 - small**2), large - small)
    context = max(0, min(256, bench.room_tokens - 1))
    one_s = bench.seconds(1, context)
    many_s = bench.seconds(1, context, _SEQUENCES)
    return CostModel(
        step_s=max(0.0, small_s - token_s * small - pair_s * small**2),
        token_s=token_s,
        pair_s=pair_s,
        decode_step_s=one_s,
        decode_sequence_s=_slope(many_s - one_s, _SEQUENCES - 1),
    )


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What was chosen, and why."""

    tokens: int
    seconds: float
    """Measured: a step of so many tokens, most of them a prompt's."""
    kept: bool
    """False: even the smallest budget takes longer than the target."""


def measure_budget(
    engine: Engine, block_tokens: int, sequences: int, most_tokens: int, target_s: float
) -> StepBudget:
    """The largest budget whose mixed step stays below the target, as Sarathi-Serve chooses it:
    by running such steps. `sequences` decode in each. Overwrites pages 0.., so it must run before
    any page is in use; takes a few times `target_s`. Raises EngineError."""
    bench = _Bench(engine, block_tokens)
    most = max(1, min(most_tokens, bench.room_tokens))
    earlier = max(0, min(_BUDGET_CONTEXT, bench.room_tokens - most))
    decoding = min(sequences, most - 1)
    return choose_budget(
        lambda tokens: bench.mixed_seconds(tokens, earlier, decoding),
        budget_rungs(most, decoding + block_tokens),
        target_s,
    )


def budget_rungs(most_tokens: int, least_tokens: int) -> tuple[int, ...]:
    """Budgets worth a look, ascending: tiles of matrix products end at such numbers."""
    least = min(most_tokens, max(LEAST_BUDGET, least_tokens))
    powers = [LEAST_BUDGET * 2**step for step in range(12)]
    rungs = {rung for power in powers for rung in (power, power * 3 // 2)}
    return tuple(sorted({least, *(rung for rung in rungs if least < rung <= most_tokens)}))


def choose_budget(
    measure: Callable[[int], float], rungs: Sequence[int], target_s: float
) -> StepBudget:
    """The last rung within the target, looking no further than the first one beyond it."""
    chosen = StepBudget(rungs[0], measure(rungs[0]), kept=True)
    if chosen.seconds > _MARGIN * target_s:
        return StepBudget(chosen.tokens, chosen.seconds, kept=False)
    for tokens in rungs[1:]:
        seconds = measure(tokens)
        if seconds > _MARGIN * target_s:
            break
        chosen = StepBudget(tokens, seconds, kept=True)
    return chosen


def _slope(rise: float, run: int) -> float:
    return max(0.0, rise / run) if run > 0 else 0.0
