"""Changes logits before a draw: bias, bans, and penalties for seen tokens, a whole batch at once.

A row's values depend on its own draw alone: each touched place is computed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from shared.engine.batch import Draw, Penalties
from shared.errors import EngineError

_Ids = NDArray[np.int64]


def shape(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """[row, vocab] float32 logits as each row's draw wants them; the same tensor where no draw
    wants anything. Raises EngineError for a token outside the vocabulary."""
    if all(draw.plain for draw in draws):
        return logits
    logits = logits.clone()
    flat, vocab = logits.view(-1), logits.shape[1]
    _add_biases(flat, vocab, draws)
    _penalise(flat, vocab, draws)
    banned = [row * vocab + token for row, draw in enumerate(draws) for token in draw.banned]
    if banned:
        flat[torch.tensor(banned, device=flat.device)] = float("-inf")
    return logits


def _add_biases(flat: torch.Tensor, vocab: int, draws: Sequence[Draw]) -> None:
    places = [row * vocab + token for row, draw in enumerate(draws) for token in draw.bias_ids]
    if places:
        values = torch.tensor([bias for draw in draws for bias in draw.biases], device=flat.device)
        flat.index_add_(0, torch.tensor(places, device=flat.device), values)


def _penalise(flat: torch.Tensor, vocab: int, draws: Sequence[Draw]) -> None:
    rows = [(row, draw.penalties) for row, draw in enumerate(draws) if draw.penalties is not None]
    if not rows:
        return
    ids = [np.frombuffer(penalties.history, "<i4").astype(np.int64) for _, penalties in rows]
    if any(len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab for tokens in ids):
        raise EngineError(f"a history holds a token id outside 0..{vocab - 1}")
    repeated = [
        (row, penalties, tokens)
        for (row, penalties), tokens in zip(rows, ids, strict=True)
        if penalties.repetition != 1.0
    ]
    counted = [
        (row, penalties, tokens[penalties.prompt_tokens :])
        for (row, penalties), tokens in zip(rows, ids, strict=True)
        if penalties.presence or penalties.frequency
    ]
    if repeated:
        _divide(flat, vocab, repeated)
    if counted:
        _subtract(flat, vocab, counted)


def _divide(flat: torch.Tensor, vocab: int, rows: list[tuple[int, Penalties, _Ids]]) -> None:
    """Keskar et al. (2019), in the form that also lowers negative logits. A token that came more
    than once is written more than once, with the same value."""
    places = _places(vocab, rows, flat.device)
    factors = _each(rows, [penalties.repetition for _, penalties, _ in rows], flat)
    seen = flat[places]
    flat[places] = torch.where(seen > 0, seen / factors, seen * factors)


def _subtract(flat: torch.Tensor, vocab: int, rows: list[tuple[int, Penalties, _Ids]]) -> None:
    """presence + frequency * count, for tokens with a count."""
    places = _places(vocab, rows, flat.device)
    counts = torch.zeros_like(flat)
    counts.index_add_(0, places, torch.ones(len(places), device=flat.device))
    presence = _each(rows, [penalties.presence for _, penalties, _ in rows], flat)
    frequency = _each(rows, [penalties.frequency for _, penalties, _ in rows], flat)
    flat[places] = flat[places] - (presence + frequency * counts[places])


def _places(
    vocab: int, rows: list[tuple[int, Penalties, _Ids]], device: torch.device
) -> torch.Tensor:
    """Where the rows' seen tokens are in the flat logits."""
    found = np.concatenate([row * vocab + tokens for row, _, tokens in rows])
    return torch.from_numpy(found).to(device)


def _each(
    rows: list[tuple[int, Penalties, _Ids]], values: list[float], like: torch.Tensor
) -> torch.Tensor:
    """A row's value for each of its seen tokens."""
    repeats = [len(tokens) for _, _, tokens in rows]
    spread = np.repeat(np.array(values, np.float32), repeats)
    return torch.from_numpy(spread).to(like.device)
