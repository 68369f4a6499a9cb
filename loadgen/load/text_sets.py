"""Data sets of texts: sonnets, questions with passages (MuSiQue), ShareGPT, and files of prompts.
Their lengths in tokens are estimates until the server has counted.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadgen.workloads.file import lines
from loadgen.workloads.request import WorkloadError

_TOKENS_PER_WORD: Final = 4 / 3
_ANSWER_WITH: Final = "Answer the question from the passages below, as briefly as you can."
_SONNET_ASK: Final = "Pick as many lines as you can from these poem lines:\n"
_SOURCES: Final = {
    "sonnet": "github.com/vllm-project/vllm, benchmarks/sonnet.txt",
    "musique": "github.com/YaoJiayi/CacheBlend, inputs/musique_s.json",
    "sharegpt": "huggingface.co, ShareGPT_Vicuna_unfiltered: name the file with --dataset-path",
}
_MOST_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt. `output_tokens` 0: as the flags say."""

    said: str
    system: str = ""
    output_tokens: int = 0
    group: int = 0

    @property
    def prompt_tokens(self) -> int:
        """About."""
        return max(1, round(len(f"{self.system} {self.said}".split()) * _TOKENS_PER_WORD))


def sonnets(path: Path, count: int, words: int, shared_words: int, seed: int) -> list[Text]:
    """Prompts of about so many words, the first lines the same in all. Raises WorkloadError."""
    verses = [line for line in _read(path, "sonnet").splitlines() if line.strip()]
    if not verses or shared_words > words:
        raise WorkloadError(f"{path}: no lines, or a prefix longer than the prompt")
    prefix = _SONNET_ASK + "\n".join(_until(verses, shared_words)) if shared_words else _SONNET_ASK
    made = []
    for number in range(count):
        chance = random.Random(f"sonnet:{seed}:{number}")
        own = chance.sample(verses, len(verses))
        rest = max(1, words - len(prefix.split()))
        made.append(Text(prefix + "\n" + "\n".join(_until(own, rest))))
    return made


def musique(path: Path, count: int, seed: int) -> list[Text]:
    """Questions with their passages, in a drawn order, again from the first when they run out.
    Raises WorkloadError."""
    try:
        document = json.loads(_read(path, "musique"))
        asked = [
            (
                "\n\n".join(str(passage["text"]) for passage in one["ctxs"]),
                str(one["question"]),
            )
            for one in document
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"{path}: not the form of MuSiQue: {error!r}") from None
    if not asked:
        raise WorkloadError(f"{path}: no questions")
    random.Random(f"musique:{seed}").shuffle(asked)
    turns = (asked[number % len(asked)] for number in range(count))
    return [
        Text(f"{passages}\n\nQuestion: {question}", _ANSWER_WITH, group=number % len(asked))
        for number, (passages, question) in enumerate(turns)
    ]


def sharegpt(path: Path | None, count: int, seed: int) -> list[Text]:
    """First question and the length of its answer, of conversations with both. Raises
    WorkloadError."""
    if path is None:
        raise WorkloadError(f"sharegpt is not here: {_SOURCES['sharegpt']}")
    try:
        document = json.loads(_read(path, "sharegpt"))
        talks = [one["conversations"] for one in document if len(one["conversations"]) >= 2]
        pairs = [(str(talk[0]["value"]), str(talk[1]["value"])) for talk in talks]
    except (ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"{path}: not the form of ShareGPT: {error!r}") from None
    pairs = [pair for pair in pairs if all(part.strip() for part in pair)]
    if not pairs:
        raise WorkloadError(f"{path}: no conversation has a question and an answer")
    random.Random(f"sharegpt:{seed}").shuffle(pairs)
    turns = (pairs[number % len(pairs)] for number in range(count))
    return [
        Text(question, output_tokens=max(1, round(len(answer.split()) * _TOKENS_PER_WORD)))
        for question, answer in turns
    ]


def prompts_file(path: Path, count: int) -> list[Text]:
    """JSON lines with `prompt`, perhaps `output_tokens` (or `output_len`). Raises
    WorkloadError naming the line."""
    found: list[Text] = []
    for number, row in lines(path):
        if len(found) >= count:
            break
        prompt, length = row.get("prompt"), row.get("output_tokens", row.get("output_len", 0))
        if not isinstance(prompt, str) or not prompt.strip():
            raise WorkloadError(f"{path}, line {number}: prompt must be a text")
        if type(length) is not int or length < 0:
            raise WorkloadError(f"{path}, line {number}: output_tokens is {length!r}")
        found.append(Text(prompt, output_tokens=length))
    if not found:
        raise WorkloadError(f"{path}: no prompts")
    return found


def ideal_hit(texts: Sequence[Text], block: int = 64) -> float:
    """Share of characters that an infinite cache would have had, by blocks of `block`."""
    seen: set[int] = set()
    reused = total = 0
    for text in texts:
        whole = f"{text.system}\n\n{text.said}"
        chain, leading = 0, True
        for begin in range(0, len(whole) - block + 1, block):
            chain = hash((chain, whole[begin : begin + block]))
            leading = leading and chain in seen
            reused += block if leading else 0
            seen.add(chain)
        total += len(whole)
    return reused / total if total else 0.0


def _until(verses: Sequence[str], words: int) -> list[str]:
    """Lines, again from the first, until there are so many words."""
    taken: list[str] = []
    have = 0
    while have < words:
        verse = verses[len(taken) % len(verses)]
        taken.append(verse)
        have += max(1, len(verse.split()))
    return taken


def _read(path: Path, kind: str) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise WorkloadError(f"{path} is larger than {_MOST_BYTES >> 30} GiB")
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: {error}") from None
    except OSError as error:
        told: Any = error.strerror or error
        raise WorkloadError(f"{path}: {told}; published at {_SOURCES[kind]}") from None
