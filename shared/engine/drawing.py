"""From a request's parameters to the draw of one token. Pure, and the same on every path: prefill,
decode and every later attempt ask for a position in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.engine.batch import Draw, Penalties, StepItem, StepResult
from shared.wire.sampling import Sampling, TokenLogprobs


def draw_of(
    sampling: Sampling, position: int, prompt_tokens: int, history: Callable[[], bytes]
) -> Draw:
    """The draw at `position` of the client's stream. `history` packs the ids of prompt and output
    so far (`Penalties.history`); it is called only where something counts them."""
    penalties = None
    if has_penalties(sampling):
        penalties = Penalties(
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            history(),
            prompt_tokens,
        )
    return Draw(
        sampling.temperature,
        sampling.top_p,
        sampling.seed,
        position,
        sampling.top_k,
        sampling.min_p,
        sampling.bias_ids,
        sampling.biases,
        sampling.stop_token_ids if position < sampling.min_tokens else (),
        penalties,
        sampling.logprobs,
    )


def has_penalties(sampling: Sampling) -> bool:
    """Whether seen tokens are treated differently."""
    weights = (sampling.presence_penalty, sampling.frequency_penalty)
    return sampling.repetition_penalty != 1.0 or any(weights)


def result_of(
    items: Sequence[StepItem],
    tokens: Sequence[int],
    told: Sequence[TokenLogprobs | None],
    seconds: float,
) -> StepResult:
    """A step's result from what its drawing items got, in their order."""
    drawn, logprobs = iter(tokens), iter(told)
    return StepResult(
        tuple(None if item.draw is None else next(drawn) for item in items),
        seconds,
        tuple(None if item.draw is None else next(logprobs) for item in items) if any(told) else (),
    )
