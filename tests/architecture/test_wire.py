"""Every message that may travel has a sender and a receiver."""

from __future__ import annotations

import ast

import pytest

from shared.wire.codec import REGISTRY
from tests.architecture.sources import product


def users() -> dict[str, set[str]]:
    """Message name -> files outside shared/wire that mention it."""
    found: dict[str, set[str]] = {name: set() for name in REGISTRY}
    for source in product():
        if source.name.startswith("shared/wire/"):
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Name) and node.id in found:
                found[node.id].add(source.name)
    return found


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_message_is_used(name: str) -> None:
    assert users()[name], f"{name} is registered, but nobody sends or reads it"


def test_registry_types_are_frozen() -> None:
    soft = [name for name, kind in REGISTRY.items() if not kind.__dataclass_params__.frozen]
    assert soft == []
