"""Vocabularies of every kind that the families need: splits, ids, round trips."""

from __future__ import annotations

import math
import unicodedata
from pathlib import Path

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import Metaspace as MetaspaceDecoder
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.pre_tokenizers import Metaspace

from shared.checkpoint import open_checkpoint
from shared.checkpoint.byte_pairs import PRE_TOKENIZERS, build_byte_pairs
from shared.checkpoint.checkpoint import TextSide
from shared.checkpoint.gguf_header import read_header
from shared.checkpoint.gguf_text import text_side
from shared.checkpoint.sentence_pieces import build_sentence_pieces
from shared.errors import CheckpointError

from .files import tiny_spec, write_folder

SPACE = "\u2581"
TEXTS = st.text(
    alphabet=st.one_of(st.sampled_from("abehlort  '\n19"), st.characters(codec="utf-8"))
)


def byte_tokens() -> list[str]:
    """The 256 printable stand-ins of byte-level vocabularies, by byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(hidden)) for byte in range(256)]


BYTE_LEVEL = {
    pre: build_byte_pairs([*byte_tokens(), "<end>"], [], pre, {"<end>": 256}, {})
    for pre in PRE_TOKENIZERS
}


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'll  be 1234", ["I", "'ll", " ", " be", " 1234"]),
        ("smollm", "a 123", ["a", " ", "1", "2", "3"]),
        ("llama-bpe", "I'LL be 12345", ["I", "'LL", " be", " ", "123", "45"]),
        ("llama-bpe", "x\n\n  y", ["x", "\n\n", " ", " y"]),
        ("qwen2", "at 12,5%\n", ["at", " ", "1", "2", ",", "5", "%\n"]),
        ("tekken", "HelloWorld a/b 12", ["Hello", "World", " a", "/b", " ", "1", "2"]),
    ],
)
def test_texts_are_cut_as_the_publishers_cut_them(pre: str, text: str, pieces: list[str]) -> None:
    steps = BYTE_LEVEL[pre].pre_tokenizer
    assert steps is not None
    assert [text[start:end] for _, (start, end) in steps.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(text=TEXTS)
def test_bytes_come_back(pre: str, text: str) -> None:
    expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
    ids = BYTE_LEVEL[pre].encode(text, add_special_tokens=False).ids
    assert BYTE_LEVEL[pre].decode(ids) == expected


def test_a_whole_word_beats_its_merges_where_the_family_says_so() -> None:
    tokens = [*byte_tokens(), "ab", "bc", "abc"]
    merges = ["b c", "a b"]
    assert build_byte_pairs(tokens, merges, "llama-bpe", {}, {}).encode("abc").ids == [258]
    assert build_byte_pairs(tokens, merges, "qwen2", {}, {}).encode("abc").ids == [97, 257]


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
WORDS = {
    SPACE + "t": -1.0,
    "er": -2.0,
    "he": -3.0,
    SPACE + "the": -4.0,
    "lo": -5.0,
    "hel": -6.0,
    "hello": -7.0,
    SPACE + SPACE: -8.0,
    "or": -2.5,
    "ther": -9.0,
}
LETTERS = [SPACE, *"abehlort'19\n"]
VOCABULARY = [*PIECES, *WORDS, *LETTERS]
SCORES = [0.0] * len(PIECES) + [*WORDS.values()] + [-100.0 - n for n in range(len(LETTERS))]
SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2}


def pieces(space_prefix: bool) -> Tokenizer:
    return build_sentence_pieces(VOCABULARY, SCORES, 0, space_prefix, SPECIAL, {})


PREFIXED, BARE = pieces(True), pieces(False)


def reference_ids(text: str, space_prefix: bool) -> list[int]:
    """Join the best-scoring neighbours, the leftmost of equals, until none is left; characters
    outside the vocabulary are spelled in bytes."""
    text = (SPACE if space_prefix and text else "") + text.replace(" ", SPACE)
    parts = list(text)
    while True:
        best, where = -math.inf, -1
        for at in range(len(parts) - 1):
            joined = parts[at] + parts[at + 1]
            if joined in WORDS and WORDS[joined] > best:
                best, where = WORDS[joined], at
        if where < 0:
            break
        parts[where : where + 2] = ["".join(parts[where : where + 2])]
    ids: list[int] = []
    for part in parts:
        if part in VOCABULARY:
            ids.append(VOCABULARY.index(part))
        else:
            ids.extend(3 + byte for byte in part.encode())
    return ids


@pytest.mark.parametrize("space_prefix", [True, False])
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_sentence_pieces_join_the_best_pair_first(space_prefix: bool, text: str) -> None:
    tokenizer = PREFIXED if space_prefix else BARE
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == reference_ids(text, space_prefix)
    spelled = text.replace(SPACE, " ")
    assert tokenizer.decode(ids, skip_special_tokens=False) == spelled


def test_control_pieces_are_parsed_unless_told_otherwise() -> None:
    tokenizer = pieces(False)
    assert tokenizer.encode("<s>he</s>").ids == [1, VOCABULARY.index("he"), 2]
    tokenizer.encode_special_tokens = True
    assert not {0, 1, 2} & set(tokenizer.encode("<s>he</s>").ids)


def sentence_piece_side(path: Path, vocab: int = 512, **changes: object) -> TextSide:
    writer = GGUFWriter(str(path), "llama")
    fields: dict[str, object] = {
        "model": "llama",
        "scores": SCORES,
        "tokens": VOCABULARY,
        **changes,
    }
    writer.add_tokenizer_model(str(fields["model"]))
    writer.add_token_list(fields["tokens"])  # type: ignore[arg-type]
    if fields["scores"]:
        writer.add_token_scores(fields["scores"])  # type: ignore[arg-type]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(VOCABULARY) - 259)]
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return text_side(read_header(path).metadata, vocab)


def test_a_sentence_piece_file_says_all_of_it(tmp_path: Path) -> None:
    side = sentence_piece_side(tmp_path / "v.gguf")
    assert (side.bos_id, side.eos_ids, side.add_bos) == (1, (2,), True)
    assert dict(side.special_tokens) == SPECIAL
    ids = side.build().encode("the hello", add_special_tokens=False).ids
    assert ids == reference_ids("the hello", space_prefix=True)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model": "bert"}, "tokenizer kind 'bert'"),
        ({"scores": []}, "token scores"),
        ({"scores": [math.nan, *SCORES[1:]]}, "not a finite number"),
        ({"vocab": 100}, "embedding of 100"),
    ],
)
def test_vocabularies_we_do_not_read(tmp_path: Path, changes: dict[str, object], word: str) -> None:
    with pytest.raises(CheckpointError, match=word):
        sentence_piece_side(tmp_path / "v.gguf", **changes)  # type: ignore[arg-type]


def test_a_piece_too_long_to_take_apart_is_refused() -> None:
    with pytest.raises(CheckpointError, match="2000 characters"):
        build_sentence_pieces(["a", "a" * 2_000], [0.0, 0.0], None, False, {}, {})


def folder_with(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    path = write_folder(tmp_path / "m", tiny_spec())
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_a_folder_may_bring_a_unigram_model(tmp_path: Path) -> None:
    pieces = [("<unk>", 0.0), *((text, -float(len(text))) for text in (SPACE + "hi", *LETTERS))]
    tokenizer = Tokenizer(Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = Metaspace()
    tokenizer.decoder = MetaspaceDecoder()
    found = open_checkpoint(str(folder_with(tmp_path, tokenizer))).tokenizer()
    ids = found.encode("hi hello", add_special_tokens=False).ids
    assert ids[0] == 1
    assert found.decode(ids) == "hi hello"


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (WordPiece({"[UNK]": 0}), "tokenizer kind 'WordPiece'"),
        (BPE({str(n): n for n in range(600)}, []), "token id 599 for an embedding of 512"),
    ],
)
def test_folders_with_vocabularies_we_do_not_read(
    tmp_path: Path, model: WordPiece | BPE, word: str
) -> None:
    with pytest.raises(CheckpointError, match=word):
        open_checkpoint(str(folder_with(tmp_path, Tokenizer(model))))


def test_a_folder_without_tokenizer_json(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "m", tiny_spec())
    (path / "tokenizer.json").rename(path / "tokenizer.model")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        open_checkpoint(str(path))
