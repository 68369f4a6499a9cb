"""The file of the trace store: made, or seen to be one of ours. One that this version cannot read
is set aside under another name and a new one begun: old traces are not worth a server that does
not start, and nobody's file is thrown away.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from services.gateway import trace_schema as schema
from shared.errors import StartupError

_ENDINGS: Final = ("", "-wal", "-shm")
_MOST_ASIDE: Final = 1_000


def open_file(path: str, set_aside: Callable[[str, str], None]) -> None:
    """`set_aside` hears where an unreadable file went, and why. Raises StartupError where the
    place itself is of no use."""
    place = Path(path)
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with place.with_name(place.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be doing the same
            why = _unreadable(path)
            if why:
                set_aside(str(_move(place)), why)
            with closing(schema.connect(path)) as database:
                schema.make_tables(database)
    except (OSError, sqlite3.Error) as error:
        raise StartupError(
            f"the trace store {path} cannot be opened ({error}): "
            "remove the file or set --store-path"
        ) from None


def _unreadable(path: str) -> str:
    """Why the file is of no use to this version; empty: it is, or there is none."""
    if not Path(path).is_file():
        return ""
    try:
        with closing(schema.connect(path)) as database:
            found = schema.version(database)
    except sqlite3.OperationalError:
        raise  # locked, or not to be opened: that says nothing about what is in it
    except sqlite3.DatabaseError as error:
        return f"it is damaged: {error}"
    if found is None or found == schema.SCHEMA:
        return ""
    age = "an older" if found < schema.SCHEMA else "a newer"
    return f"it is of {age} version ({found}, not {schema.SCHEMA})"


def _move(place: Path) -> Path:
    """To the first free name `<file>.old-<n>`, with what SQLite keeps beside it."""
    for number in range(1, _MOST_ASIDE):
        new = place.with_name(f"{place.name}.old-{number}")
        if not new.exists():
            for ending in _ENDINGS:
                with suppress(FileNotFoundError):
                    Path(f"{place}{ending}").rename(f"{new}{ending}")
            return new
    raise OSError(f"{_MOST_ASIDE} older files lie beside it")
