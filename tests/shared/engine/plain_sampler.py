"""The sampler in plain float64, one row and one token at a time, from the definitions."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence

from shared.engine.batch import Draw


def shaped(logits: Sequence[float], draw: Draw) -> list[float]:
    """After bias, penalties and bans."""
    row = list(logits)
    for token, bias in zip(draw.bias_ids, draw.biases, strict=True):
        row[token] += bias
    if draw.penalties is not None:
        tokens = [one for (one,) in struct.iter_unpack("<i", draw.penalties.history)]
        for token in set(tokens):
            factor = draw.penalties.repetition
            row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
        for token, count in Counter(tokens[draw.penalties.prompt_tokens :]).items():
            row[token] -= draw.penalties.presence + draw.penalties.frequency * count
    for token in draw.banned:
        row[token] = -math.inf
    return row


def probabilities(row: Sequence[float], temperature: float) -> list[float]:
    peak = max(row)
    weights = [math.exp((value - peak) / temperature) for value in row]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def kept(weights: Sequence[float], draw: Draw, slack: float) -> list[int]:
    """What min_p, top_k and top_p leave, likeliest first. `slack` moves each border a little, for
    float32 may see a token on its other side."""
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    floor = draw.min_p * weights[order[0]] * (1 - slack)
    left = [token for token in order if weights[token] >= floor][: draw.top_k or None]
    mass = math.fsum(weights[token] for token in left)
    found, before = [], 0.0
    for token in left:
        if found and before >= draw.top_p * mass * (1 - 1e-6 + slack):
            break
        found.append(token)
        before += weights[token]
    return found


def logprobs(row: Sequence[float]) -> list[float]:
    peak = max(row)
    total = math.log(math.fsum(math.exp(value - peak) for value in row))
    return [value - peak - total for value in row]
