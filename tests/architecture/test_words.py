"""Names say what a thing is; files name no machine and no package index."""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath

import pytest

from tests.architecture.sources import ROOT, product, tracked

EMPTY_WORDS = frozenset(
    "manager helper helpers util utils common base mixin misc data info".split()  # noqa: SIM905
)
FOREIGN = frozenset(("data_received",))
"""Names that a library's protocol prescribes."""
MACHINE = re.compile(
    "|".join(
        (
            r"(?<![\w.])/" + r"(?:work|root|home/\w+)/",
            r"(?<![\w.])/" + r"opt/wheels",
            r"(?<![\w.])/" + r"tmp/w/",
            "py" + r"pi\.org",
            "python" + r"hosted\.org",
            "download" + r"\.pytorch\.org",
            "registry" + r"\.npmjs",
            "ghcr" + r"\.io",
        )
    )
)


def words(name: str) -> list[str]:
    """snake_case and CamelCase alike."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def empty(name: str) -> bool:
    return not EMPTY_WORDS.isdisjoint(words(name))


def test_files_have_telling_names() -> None:
    assert [s.name for s in product() if empty(PurePosixPath(s.name).stem)] == []


def test_classes_and_functions_have_telling_names() -> None:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    wrong = [
        f"{source.name}:{node.lineno} {node.name}"
        for source in product()
        for node in ast.walk(source.tree)
        if isinstance(node, kinds) and empty(node.name) and node.name not in FOREIGN
    ]
    assert wrong == []


def test_no_tracked_file_names_a_machine_or_a_package_index() -> None:
    if not tracked():
        pytest.skip("not a git checkout")
    wrong = []
    for name in tracked():
        try:
            text = (ROOT / name).read_text("utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [f"{name}: {found.group()}" for found in MACHINE.finditer(text)]
    assert wrong == []


KINDS = ("cpu", "gpu", "dev", "nixl")


def test_the_root_holds_only_what_the_design_lists() -> None:
    if not tracked():
        pytest.skip("not a git checkout")
    allowed = {".ci", ".gitignore", "LICENSE", "Makefile", "README.md", "docker-compose.yml"}
    allowed |= {"pyproject.toml", ".dockerignore", "services", "shared", "kernels", "loadgen"}
    allowed |= {"tests", "ops"} | {f"requirements-{kind}.lock" for kind in KINDS}
    assert {name.split("/")[0] for name in tracked()} - allowed == set()
