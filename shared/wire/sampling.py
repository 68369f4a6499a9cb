"""How the next token of a sequence is chosen, and what is told of its probability. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """One choice's parameters, the same in every attempt but for `max_tokens`. All were checked
    at the door of the gateway; engines check them again. The defaults change nothing."""

    temperature: float
    """0 is greedy."""
    top_p: float
    seed: int
    """int64, always set. The draw at a position depends on (seed, position) alone."""
    max_tokens: int
    """Tokens still to emit in this attempt."""
    stop_token_ids: tuple[int, ...]
    """Generation ends when one is drawn; the token itself counts but has no text."""
    ignore_eos: bool = False
    """The model's own end tokens are not among `stop_token_ids`."""
    min_tokens: int = 0
    """Stop tokens cannot be drawn at positions below this one of the client's stream."""
    top_k: int = 0
    """Draw among so many likeliest tokens; 0: among all."""
    min_p: float = 0.0
    """Draw among tokens at least so likely, relative to the likeliest."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or output."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens seen in the output."""
    frequency_penalty: float = 0.0
    """The same, once for each time that the token was seen there."""
    bias_ids: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()
    """Added to the logit of the token at the same place in `bias_ids`."""
    logprobs: int | None = None
    """Tell the log-probability of each token and of so many likeliest ones; None: tell nothing."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of what the model itself gave, before penalties, bias and temperature."""

    logprob: float
    """Of the token that was drawn."""
    top_ids: tuple[int, ...] = ()
    """The likeliest tokens, likeliest first, equal ones by id."""
    top_logprobs: tuple[float, ...] = ()
