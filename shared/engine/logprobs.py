"""Log-probabilities of drawn tokens and of the likeliest ones: float32 log-softmax of raw logits,
before bias, penalties and temperature, so that they say what the model gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from shared.engine.batch import Draw
from shared.engine.checking import MAX_LOGPROBS
from shared.engine.row_groups import in_groups
from shared.wire.sampling import TokenLogprobs

FLOOR: Final = -9_999.0
"""Told instead of anything lower: minus infinity is no JSON."""


def score(
    logits: torch.Tensor, draws: Sequence[Draw], tokens: Sequence[int]
) -> list[TokenLogprobs | None]:
    """Per row of [row, vocab] float32 logits what its draw asked to be told of its token."""
    found: list[TokenLogprobs | None] = [None] * len(draws)
    rows = [row for row, draw in enumerate(draws) if draw.logprobs is not None]
    for part, some in in_groups(rows, logits):
        top = any(draws[row].logprobs for row in part)
        for row, told in zip(part, _tell(some, [tokens[row] for row in part], top), strict=True):
            count = draws[row].logprobs
            found[row] = TokenLogprobs(
                told.logprob, told.top_ids[:count], told.top_logprobs[:count]
            )
    return found


def _tell(logits: torch.Tensor, tokens: Sequence[int], top: bool) -> list[TokenLogprobs]:
    """As many of the likeliest for each row as any could want: then equals are cut alike,
    whatever the company."""
    mass = logits.logsumexp(-1, keepdim=True)
    chosen = torch.tensor(tokens, device=logits.device)[:, None]
    own: list[float] = (logits.gather(1, chosen) - mass).clamp_(min=FLOOR)[:, 0].tolist()
    if not top:
        return [TokenLogprobs(value) for value in own]
    values, ids = logits.topk(min(MAX_LOGPROBS, logits.shape[1]))
    ids, order = ids.sort()
    values, order = values.gather(1, order).sort(descending=True, stable=True)
    logs: list[list[float]] = (values - mass).clamp_(min=FLOOR).tolist()
    likeliest: list[list[int]] = ids.gather(1, order).tolist()
    return [
        TokenLogprobs(value, tuple(names), tuple(rest))
        for value, names, rest in zip(own, likeliest, logs, strict=True)
    ]
