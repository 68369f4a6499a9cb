"""Streams of SentencePiece tokens: piece by piece the same text as the whole sequence at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.gateway.vocabulary import Detokeniser, token_bytes
from shared.checkpoint.sentence_pieces import build_sentence_pieces

SPACE = "\u2581"
CONTROL = {"<unk>": 0, "<s>": 1, "</s>": 2}
WORDS = [SPACE + "the", "he", SPACE + "h", "er", SPACE, *"thelor"]
VOCABULARY = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
SCORES = [-float(id_) for id_ in range(len(VOCABULARY))]


def tokenizer(space_prefix: bool) -> Tokenizer:
    return build_sentence_pieces(VOCABULARY, SCORES, 0, space_prefix, CONTROL, {})


BOTH = {prefix: tokenizer(prefix) for prefix in (True, False)}
TABLES = {prefix: token_bytes(one, CONTROL) for prefix, one in BOTH.items()}


@pytest.mark.parametrize("space_prefix", [True, False])
@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=st.one_of(st.sampled_from("the lor "), st.characters(codec="utf-8"))))
def test_streams_join_to_the_text(space_prefix: bool, text: str) -> None:
    ids = BOTH[space_prefix].encode(text, add_special_tokens=False).ids
    stream = Detokeniser(TABLES[space_prefix])
    joined = "".join(stream.feed(id_) for id_ in ids) + stream.finish()
    assert joined == BOTH[space_prefix].decode(ids)
