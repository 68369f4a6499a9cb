"""The page about the API says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import MagicMock

from services.gateway import parameters
from services.gateway.listeners import public_table
from services.gateway.refusals import STATUS, Refusal

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "ops/docs/api.md").read_text("utf-8")
_HEADER = re.compile(r'"((?:x-|X-|retry-after-)[A-Za-z-]+|Retry-After|traceparent)"')


def table(title: str) -> list[list[str]]:
    """The rows of the first table under a heading."""
    _, _, rest = PAGE.partition(f"# {title}\n")
    rows = re.search(r"^\|[-|]+\|\n((?:\|.*\|\n)+)", rest, re.MULTILINE)
    assert rows is not None, title
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1].splitlines()]


def words(text: str) -> list[str]:
    """What stands in back quotes."""
    return re.findall(r"`([^`]+)`", text)


def test_endpoints() -> None:
    routes = public_table(MagicMock(), MagicMock(), MagicMock(), 1).routes
    told = [(method, *words(path), access) for method, path, access in table("Endpoints")]
    assert told == [(route.method, route.path, route.access.value) for route in routes]


def test_honoured_parameters() -> None:
    chat, completions = set(), set()
    for names, endpoint, _ in table("Parameters that are honoured"):
        if endpoint in ("both", "chat"):
            chat.update(words(names))
        if endpoint in ("both", "completions"):
            completions.update(words(names))
    assert chat == parameters.CHAT
    assert completions == parameters.COMPLETIONS


def test_parameters_that_are_not_built() -> None:
    rows = table("Parameters that could change the answer and are not built")
    told = {words(name)[0]: [json.loads(value) for value in words(values)] for name, values in rows}
    assert told == {name: list(values) for name, values in parameters.NEUTRAL.items()}


def test_internal_parameters() -> None:
    _, _, rest = PAGE.partition("### Parameters that a request may never set\n")
    told = words(rest.split("\n\n")[0])
    assert set(told) == parameters.INTERNAL | {"forbidden_parameter", "bootstrap_"}


def test_headers() -> None:
    sources = (ROOT / "services/gateway").glob("*.py")
    used = {name.lower() for path in sources for name in _HEADER.findall(path.read_text("utf-8"))}
    told = [name.lower() for row in table("Headers") for name in words(row[0])]
    assert sorted(told) == sorted(used - {"x-accel-buffering", "x-content-type-options"})


def test_errors() -> None:
    told = [(int(s), kind, *words(code), retry) for s, kind, code, retry in table("Errors")]
    expected = []
    for code, status in sorted(STATUS.items(), key=lambda entry: (entry[1], entry[0])):
        refusal = Refusal(code, "")
        retry = {"true": "yes", "false": "no"}[refusal.headers()["x-should-retry"]]
        error = refusal.body("")["error"]
        assert isinstance(error, dict)
        expected.append((status, error["type"], code.value, retry))
    assert told == expected
