"""Log lines about one request, from the folder of the local cluster.

Reads the ends of the files only, and only while somebody looks.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

_TAIL_BYTES: Final = 2 * 1024 * 1024
_MOST_FILES: Final = 64
_MOST_LINES: Final = 200
_MOST_TEXT: Final = 2_048


def find_lines(run_dir: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Lines that name any of these ids, oldest first. `searched` is the number of files; 0: no
    logs lie there."""
    folder = Path(run_dir) / "logs" if run_dir else None
    files = sorted(islice(folder.glob("*.log"), _MOST_FILES)) if folder else []
    wanted = [name.encode() for name in names if name]
    found: list[dict[str, Any]] = []
    for path in files:
        found += _of_file(path, wanted)
    found.sort(key=lambda line: str(line.get("ts", "")))
    return {"searched": len(files), "lines": found[:_MOST_LINES], "more": len(found) > _MOST_LINES}


def _of_file(path: Path, wanted: list[bytes]) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as source:
            source.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            raw = source.read(_TAIL_BYTES).splitlines()
    except OSError:
        return []
    lines = (line for line in raw if any(name in line for name in wanted))
    return [_read(path.stem, line) for line in islice(lines, _MOST_LINES + 1)]


def _read(worker: str, line: bytes) -> dict[str, Any]:
    """A JSON line as it is; any other one as text."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        fields = None
    if isinstance(fields, dict):
        return fields
    return {"worker": worker, "event": line.decode("utf-8", "replace")[:_MOST_TEXT]}
