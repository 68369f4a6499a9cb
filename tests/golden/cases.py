"""The golden greedy outputs and the rule by which tokens agree with them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TESTS = Path(__file__).parents[1]
SUBSET = _TESTS / "golden" / "greedy.json"
_TIE = 0.001


@dataclass(frozen=True)
class GoldenCase:
    name: str
    messages: list[dict[str, str]]
    prompt: list[int]
    greedy: list[int]
    margins: list[float]
    """How far the best log-probability of each step is ahead of the second."""

    def agrees(self, tokens: Sequence[int]) -> bool:
        """Equal up to the first step where the best two are so near that either may follow."""
        for found, golden, margin in zip(tokens, self.greedy, self.margins, strict=False):
            if found != golden:
                return margin < _TIE
        return len(tokens) == len(self.greedy)


def full_set() -> Path:
    """BATON_GOLDEN, or where the public data lies beside the repository."""
    beside = _TESTS.parent.parent / "shared" / "data" / "golden" / "smollm2-135m-greedy.json"
    return Path(os.environ.get("BATON_GOLDEN", beside))


def load(path: Path) -> list[GoldenCase]:
    """The cases of a golden file; none if it is not there."""
    if not path.is_file():
        return []
    return [_case(row) for row in json.loads(path.read_text())["cases"]]


def _case(row: dict[str, object]) -> GoldenCase:
    steps = row.get("top2_logprobs", row.get("top5_logprobs"))
    margins = [step[0][1] - step[1][1] for step in steps]  # type: ignore[attr-defined]
    return GoldenCase(
        name=str(row["id"]),
        messages=row.get("messages", []),  # type: ignore[arg-type]
        prompt=row["prompt_ids"],  # type: ignore[arg-type]
        greedy=row["greedy_ids"],  # type: ignore[arg-type]
        margins=margins,
    )
