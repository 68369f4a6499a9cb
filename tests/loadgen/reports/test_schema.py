"""The schema that is shipped says what runs really hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from loadgen.load.histogram import Histogram
from loadgen.reports.run_files import SCHEMA
from loadgen.reports.summary import Facts, summarise
from tests.architecture.sources import ROOT
from tests.loadgen.reports.rows import rows_of

SHIPPED: Final = json.loads((ROOT / "loadgen/reports/run.schema.json").read_text("utf-8"))
TYPES: Final = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int,
    "number": (int, float), "null": type(None),
}  # fmt: skip


def wrong(schema: dict[str, Any], said: Any, where: str = "run") -> Iterator[str]:
    """The words of JSON Schema that ours uses."""
    if "$ref" in schema:
        schema = SHIPPED["$defs"][schema["$ref"].rpartition("/")[2]]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(said, TYPES[kind]) for kind in kinds):  # type: ignore[arg-type]
        yield f"{where} is {said!r}"
    if "const" in schema and said != schema["const"]:
        yield f"{where} is not {schema['const']}"
    if "enum" in schema and said not in schema["enum"]:
        yield f"{where} is none of {schema['enum']}"
    if isinstance(said, dict):
        yield from (f"{where}.{name} is missing" for name in schema.get("required", ())
                    if name not in said)  # fmt: skip
        for name, part in schema.get("properties", {}).items():
            if name in said:
                yield from wrong(part, said[name], f"{where}.{name}")
    if isinstance(said, list) and "items" in schema:
        for number, one in enumerate(said):
            yield from wrong(schema["items"], one, f"{where}[{number}]")


@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_summary_fits(count: int) -> None:
    rows = rows_of({"ttft": 0.1}, *({"ttft": 0.1, "at": n / 9} for n in range(count)))
    rows = rows if count else rows.where(~rows.ok)
    found = summarise(rows, Facts(gaps=Histogram()))
    missing = [told for told in wrong(SHIPPED, found) if not told.endswith("is missing")]
    assert missing == []
    of_run = {"schema", "id", "source", "environment", "command", "seed", "schedule_digest"}
    of_run |= {"dataset", "arrival", "target", "steps", "server_delta", "trouble", "interrupted"}
    absent = {told.split(".")[1].split()[0] for told in wrong(SHIPPED, found)}
    assert absent == of_run and SHIPPED["properties"]["schema"]["const"] == SCHEMA


def test_the_checker_sees_what_is_wrong() -> None:
    told = list(wrong(SHIPPED, {"schema": "baton.run/2", "warnings": [3], "source": "x"}))
    assert any("is not baton.run/1" in one for one in told)
    assert any("run.warnings[0] is 3" in one for one in told)
    assert any("run.source is none of" in one for one in told)
