"""Prompts out of a workload's block ids: equal ids, equal tokens. Made anew from a hash whenever
they are needed, so that a million of them take no memory.

A follow-up repeats what really was said: the turn before and the server's own answer to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from loadgen.prompts import WORDS
from loadgen.workloads.request import Request, Workload

Messages = list[dict[str, str]]
Ids = npt.NDArray[np.int64]

DEFAULT_ALPHABET: Final = tuple(range(1_000, 30_000))
"""Ids of ordinary tokens in every large vocabulary that we know."""
_ALONE: Final = 1 << 44
"""Blocks of prompts that share nothing are numbered from here."""
_WORDS: Final = tuple(WORDS.split())


@dataclass(frozen=True, slots=True)
class Said:
    """An ended request that others follow."""

    request: Request
    ids: Ids | None
    messages: Messages
    answer_ids: tuple[int, ...] = ()
    answer_text: str = ""
    turn: int = 0
    followers: int = 0
    """Follow-ups that have not been sent yet."""

    def answered(self, ids: tuple[int, ...], text: str) -> Said:
        return replace(self, answer_ids=ids, answer_text=text)

    def taken(self) -> Said:
        return replace(self, followers=self.followers - 1)


class Prompts(Protocol):
    """What request `number` says."""

    def ids(self, number: int, before: Said | None) -> Ids | str:
        """For /v1/completions: token ids, or a text where the data set has only that."""
        ...

    def messages(self, number: int, before: Said | None) -> Messages:
        """For /v1/chat/completions."""
        ...


class BlockPrompts:
    """Tokens hashed from (workload, seed, block id, place in it), out of an alphabet of ids."""

    def __init__(
        self, workload: Workload, seed: int = 0, alphabet: Sequence[int] = DEFAULT_ALPHABET
    ) -> None:
        self._workload = workload
        # Workloads that number their blocks alike must not share tokens.
        named = hashlib.blake2b(f"{workload.name}:{seed}".encode(), digest_size=8).digest()
        self._seed = np.uint64(int.from_bytes(named, "little"))
        self._alphabet = np.asarray(alphabet or DEFAULT_ALPHABET, np.int64)

    def ids(self, number: int, before: Said | None) -> Ids:
        request = self._workload.requests[number]
        drawn: Ids = self._alphabet[self._hashes(number) % np.uint64(len(self._alphabet))]
        if before is not None and before.ids is not None:
            known = len(before.ids)
            if known <= request.prompt_tokens:
                drawn[:known] = before.ids
                answer = np.asarray(before.answer_ids, np.int64)
                if known + len(answer) <= len(drawn):
                    drawn[known : known + len(answer)] = answer
        return drawn

    def messages(self, number: int, before: Said | None) -> Messages:
        request = self._workload.requests[number]
        if before is None:
            return [{"role": "user", "content": self._text(number, 0, request.prompt_tokens)}]
        begun = before.request.prompt_tokens + before.request.output_tokens
        if begun >= request.prompt_tokens:
            return [{"role": "user", "content": self._text(number, 0, request.prompt_tokens)}]
        return [
            *before.messages,
            {"role": "assistant", "content": before.answer_text},
            {"role": "user", "content": self._text(number, begun, request.prompt_tokens)},
        ]

    def _text(self, number: int, begin: int, end: int) -> str:
        """Short English words, about one token each."""
        places = self._hashes(number)[begin:end] % np.uint64(len(_WORDS))
        return " ".join(_WORDS[place] for place in places.tolist())

    def _hashes(self, number: int) -> npt.NDArray[np.uint64]:
        """One 64-bit hash for each token of the prompt (splitmix64)."""
        request, size = self._workload.requests[number], self._workload.block_tokens
        count = request.prompt_tokens
        if request.blocks:
            blocks = np.asarray(request.blocks, np.uint64)
        else:
            per_request = np.uint64(-(-count // size))
            first = np.uint64(_ALONE) + np.uint64(number << 20)
            blocks = first + np.arange(per_request, dtype=np.uint64)
        places = np.repeat(blocks * np.uint64(size), size)[:count]
        places = places + np.tile(np.arange(size, dtype=np.uint64), len(blocks))[:count]
        state = places * np.uint64(0x9E3779B97F4A7C15) + self._seed
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed: npt.NDArray[np.uint64] = state ^ (state >> np.uint64(31))
        return hashed


class TextPrompts:
    """Texts as they are; lengths in tokens are the server's to tell."""

    def __init__(self, texts: Sequence[str], systems: Sequence[str] = ()) -> None:
        """`systems`: one for each text, or none."""
        self._texts = texts
        self._systems = systems

    def ids(self, number: int, before: Said | None) -> str:
        system = self._systems[number] + "\n\n" if self._systems else ""
        return system + self._texts[number]

    def messages(self, number: int, before: Said | None) -> Messages:
        said = [{"role": "user", "content": self._texts[number]}]
        if self._systems:
            said.insert(0, {"role": "system", "content": self._systems[number]})
        return said


def body_prompt(prompts: Prompts, number: int, chat: bool, before: Said | None) -> dict[str, Any]:
    """The field of the body that holds the prompt."""
    if chat:
        return {"messages": prompts.messages(number, before)}
    return {"prompt": prompts.ids(number, before)}
