"""What each form of weights and pages costs in accuracy.

Golden prompts and answers are fed token by token; at each answer token the form's distribution is
compared with float32's: how often the likeliest token is the same, and the mean KL divergence.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from shared.checkpoint import open_checkpoint
from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.geometry import page_layout
from shared.engine.batch import Draw, StepItem
from shared.engine.native.library import native, rounds
from shared.engine.runner import TorchEngine
from shared.engine.tuning import HostSetup
from shared.ids import PageId

_GOLDEN: Final = Path(__file__).parents[3] / "tests" / "golden" / "greedy.json"
_BLOCK: Final = 16
_PAGES: Final = 160
_GREEDY: Final = Draw(temperature=0.0, top_p=1.0, seed=0, position=0)
_FORMS: Final = {
    "float32, weights as stored": ("stored", "float32"),
    "float32, float16 pages": ("stored", "float16"),
    "float32, int8 weights": ("int8", "float32"),
    "bfloat16": ("stored", "bfloat16"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt and the tokens that follow it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def main(options: argparse.Namespace) -> int:
    """Compare all forms, print the table and the line of JSON."""
    checkpoint = open_checkpoint(options.model)
    cases = golden(options.golden)[: options.cases]
    exact = [*distributions(checkpoint, "dense", "float32", cases)]
    found = {}
    for name, (weights, dtype) in _FORMS.items():
        rows = distributions(checkpoint, weights, dtype, cases)
        found[name] = compare(exact, rows)
        sys.stdout.write(f"{name:<28}{found[name]}\n")
    # Without matrix tiles only the pages are in bfloat16.
    rounded = rounds(native().functions, "bfloat16")
    summary = {"bench": "precision", "against": "float32", "rounded": rounded, "forms": found}
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0


def golden(path: Path) -> list[Case]:
    """The cases of a golden file."""
    rows = json.loads(path.read_text())["cases"]
    return [Case(tuple(row["prompt_ids"]), tuple(row["greedy_ids"])) for row in rows]


def distributions(
    checkpoint: Checkpoint, weights: str, dtype: str, cases: Sequence[Case]
) -> Iterator[torch.Tensor]:
    """[vocab] log-probabilities at each answer token, given the golden tokens before it."""
    layout = page_layout(checkpoint, dtype, _BLOCK)
    engine = TorchEngine.load(checkpoint, "cpu", layout, _PAGES, HostSetup(0, weights))
    table = tuple(PageId(page) for page in range(_PAGES))
    for case in cases:
        start, given = 0, case.prompt
        for token in case.answer:
            logits = engine.logits([StepItem(given, start, table, _GREEDY)])
            yield logits[0].double().log_softmax(-1)
            start, given = start + len(given), (token,)


def compare(exact: Sequence[torch.Tensor], found: Iterator[torch.Tensor]) -> dict[str, float | int]:
    """Agreement of the likeliest token, and KL(float32 || form) in nats."""
    agreed, divergence = 0, 0.0
    for one, other in zip(exact, found, strict=True):
        agreed += int(one.argmax() == other.argmax())
        divergence += float((one.exp() * (one - other)).sum())
    return {
        "tokens": len(exact),
        "agreement": round(agreed / len(exact), 4),
        "mean_kl": float(f"{max(0.0, divergence / len(exact)):.3g}"),
    }


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="precision", description=__doc__)
    parser.add_argument("model", help="the golden file's model")
    parser.add_argument("--golden", type=Path, default=_GOLDEN)
    parser.add_argument("--cases", type=int, default=1_000)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(parse(sys.argv[1:])))
