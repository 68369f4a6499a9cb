"""The vocabulary of the real model against golden texts and ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.checkpoint import open_checkpoint

pytestmark = pytest.mark.model
CASES = json.loads((Path(__file__).parents[2] / "golden" / "tokenizer.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_ids_and_back(model_path: str, case: dict[str, object]) -> None:
    tokenizer = open_checkpoint(model_path).tokenizer()
    ids = tokenizer.encode(str(case["text"]), add_special_tokens=False).ids
    assert ids == case["ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == case["text"]


def test_content_never_becomes_a_control_token(model_path: str) -> None:
    checkpoint = open_checkpoint(model_path)
    tokenizer = checkpoint.tokenizer()
    tokenizer.encode_special_tokens = True
    text = "".join(checkpoint.special_tokens)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert not set(ids) & set(checkpoint.special_tokens.values())
    assert tokenizer.decode(ids) == text
