"""The likeliest tokens of each row, cut by top_k, min_p and top_p.

Looks at a few candidates first and at a row's whole vocabulary only where those do not decide it.
Which tokens stay is the same either way: the heaviest, of equal ones those with the lowest ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from shared.engine.batch import Draw

_CANDIDATES: Final = (128, 2_048)
_REACHED: Final = 1.0 - 1e-6
"""So much of top_p counts as all of it: float32 probabilities do not add up more exactly."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The kept tokens of some rows."""

    rows: list[int]
    """Which rows of the batch these are."""
    ids: torch.Tensor
    """[row, candidate] token ids."""
    bounds: torch.Tensor
    """[row, candidate] float64: cumulated weight of the kept tokens; it does not rise at others."""


def likeliest(weights: torch.Tensor, draws: Sequence[Draw]) -> Iterator[Cut]:
    """Each row of [row, vocab] float32 probabilities in exactly one cut."""
    left = list(range(len(draws)))
    for count in _CANDIDATES:
        if left and count < weights.shape[1]:
            cut, decided = _cut(_rows(weights, left), left, [draws[row] for row in left], count)
            done = [place for place, known in enumerate(decided) if known]
            if done:
                at = torch.tensor(done, device=weights.device)
                yield Cut([left[place] for place in done], cut.ids[at], cut.bounds[at])
            left = [row for row, known in zip(left, decided, strict=True) if not known]
    if left:
        yield _cut_all(_rows(weights, left), left, [draws[row] for row in left])


def _rows(weights: torch.Tensor, rows: list[int]) -> torch.Tensor:
    if len(rows) == len(weights):
        return weights
    return weights[torch.tensor(rows, device=weights.device)]


def _cut(
    weights: torch.Tensor, rows: list[int], draws: Sequence[Draw], count: int
) -> tuple[Cut, list[bool]]:
    """Cut the `count` likeliest tokens of each row, and say of which rows that is the answer."""
    values, ids = weights.topk(count)
    ids, order = ids.sort()
    values, order = values.gather(1, order).sort(descending=True, stable=True)
    sums = values.cumsum(-1, dtype=torch.float64)
    kept, known = _kept(values, sums, draws, weights.shape[1])
    # Among equals at the end of the candidates, those with the lowest ids may be missing.
    sure = (values > values[:, -1:]).sum(-1, keepdim=True)
    bounds = torch.minimum(sums, sums.gather(1, kept - 1))
    return Cut(rows, ids.gather(1, order), bounds), (known & (kept <= sure))[:, 0].tolist()


def _cut_all(weights: torch.Tensor, rows: list[int], draws: Sequence[Draw]) -> Cut:
    """Cut whole rows, by the least weight that is kept: sorting bare numbers is far quicker than
    sorting tokens. In order of the vocabulary."""
    values = _descending(weights)
    kept, _ = _kept(values, values.cumsum(-1, dtype=torch.float64), draws, weights.shape[1])
    least = values.gather(1, kept - 1)
    above, equal = weights > least, weights == least
    room = kept - above.sum(-1, keepdim=True)
    inside = above | (equal & (equal.cumsum(-1) <= room))
    ids = torch.arange(weights.shape[1], device=weights.device).expand_as(weights)
    return Cut(rows, ids, weights.where(inside, 0.0).cumsum(-1, dtype=torch.float64))


def _descending(weights: torch.Tensor) -> torch.Tensor:
    if weights.device.type != "cpu":
        return weights.sort(descending=True).values
    return torch.from_numpy(np.sort(weights.numpy())[:, ::-1].copy())


def _kept(
    values: torch.Tensor, sums: torch.Tensor, draws: Sequence[Draw], vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """[row, 1]: how many of the likeliest tokens, sorted here, stay, at most all that are here;
    and whether those that are not here could not change it."""
    count = values.shape[1]
    allowed = _allowed(values, draws, vocab)
    # All tokens together weigh 1; how much `allowed` ones weigh shows once they are here.
    mass = sums.gather(1, allowed.clamp(max=count) - 1).masked_fill(allowed > count, 1.0)
    top_p = torch.tensor([[draw.top_p] for draw in draws], dtype=torch.float64, device=sums.device)
    nucleus = (sums - values < _REACHED * top_p * mass).sum(-1, keepdim=True).clamp_(min=1)
    known = (allowed <= count) | (allowed == vocab)
    return torch.minimum(allowed, nucleus), known


def _allowed(values: torch.Tensor, draws: Sequence[Draw], vocab: int) -> torch.Tensor:
    """[row, 1]: how many tokens top_k and min_p leave. Beyond vocab: more than the candidates
    show."""
    device, beyond = values.device, vocab + 1
    min_p = torch.tensor([[draw.min_p] for draw in draws], device=device)
    top_k = torch.tensor([[draw.top_k or beyond] for draw in draws], device=device)
    likely = (values >= min_p * values[:, :1]).sum(-1, keepdim=True)
    if values.shape[1] < vocab:
        likely = likely.masked_fill(likely == values.shape[1], beyond)
    return torch.minimum(likely.masked_fill(min_p == 0, vocab), top_k)
