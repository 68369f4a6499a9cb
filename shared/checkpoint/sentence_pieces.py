"""Builds SentencePiece tokenizers (Llama 2, Mistral, Gemma) from a vocabulary with scores.

Kudo and Richardson, SentencePiece (2018), byte-pair mode: of all neighbouring pieces whose union
is a piece, the pair of the best score is joined first. The `tokenizers` library wants the pairs
themselves, best first, so they are derived from the scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from shared.errors import CheckpointError

_SPACE: Final = "\u2581"
_MAX_PIECE_CHARACTERS: Final = 1_024


def build_sentence_pieces(
    tokens: Sequence[str],
    scores: Sequence[float],
    unknown: int | None,
    space_prefix: bool,
    special: Mapping[str, int],
    added: Mapping[str, int],
) -> Tokenizer:
    """A tokenizer whose ids are the positions in `tokens`; characters outside the vocabulary
    become bytes. `space_prefix`: a text starts with a space that its decoding drops. Special
    tokens are parsed unless the caller sets `encode_special_tokens`; no BOS is added. Raises
    CheckpointError."""
    vocabulary = {text: id_ for id_, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError("the vocabulary holds a token twice")
    pairs = _pairs(vocabulary, scores, special.keys() | added.keys())
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    if space_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
        spaces.insert(0, normalizers.Prepend(_SPACE))
    try:
        model = BPE(
            vocab=vocabulary,
            merges=pairs,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Sequence(spaces)
        tokenizer.decoder = decoders.Sequence(steps)
        tokenizer.add_special_tokens([_added(text, special=True) for text in special])
        tokenizer.add_tokens([_added(text, special=False) for text in added])
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"the tokenizer cannot be built ({error})") from error
    return tokenizer


def _pairs(
    vocabulary: Mapping[str, int], scores: Sequence[float], whole: set[str]
) -> list[tuple[str, str]]:
    """Every pair whose union is a piece, the best union first."""
    found: list[tuple[float, int, int, str, str]] = []
    for text, id_ in vocabulary.items():
        if text in whole:
            continue
        if len(text) > _MAX_PIECE_CHARACTERS:
            raise CheckpointError(f"token {id_} has {len(text)} characters")
        for left, right in _splits(text):
            if left in vocabulary and right in vocabulary:
                key = (-scores[id_], vocabulary[left], vocabulary[right])
                found.append((*key, left, right))
    found.sort()
    return [(left, right) for _, _, _, left, right in found]


def _splits(text: str) -> Iterator[tuple[str, str]]:
    return ((text[:at], text[at:]) for at in range(1, len(text)))


def _added(text: str, special: bool) -> AddedToken:
    return AddedToken(text, special=special, normalized=False)
