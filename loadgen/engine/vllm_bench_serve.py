"""`vllm bench serve` in the peers' environment: python vllm_bench_serve.py FOLDER FLAGS…

The command itself asks for a package name that the CPU build does not have; its benchmark is the
same. FOLDER gets a tokenizer of a thousand words: the scripted server counts for itself.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
from typing import Any


def tokenizer(folder: pathlib.Path) -> None:
    """One token a word."""
    tokenizers: Any = importlib.import_module("tokenizers")
    words = {f"w{number}": number for number in range(1_000)} | {"[UNK]": 1_000}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def main(folder: str, flags: list[str]) -> None:
    """Runs the benchmark; its results lie where the flags say."""
    tokenizer(pathlib.Path(folder))
    serve: Any = importlib.import_module("vllm.benchmarks.serve")
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args([*flags, "--tokenizer", folder]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
