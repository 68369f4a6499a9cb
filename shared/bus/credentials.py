"""The file that holds one role's user and password for NATS. Never logged, never inline."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import StartupError


@dataclass(frozen=True, slots=True)
class Login:
    """None: the server asks for nothing (tests only)."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)


def read_credentials(path: str) -> Login:
    """The login in the file, or none for an empty path. Raises StartupError."""
    if not path:
        return Login()
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"cannot read NATS credentials {path}: {error.strerror}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"user", "password"} <= found.keys():
        raise StartupError(f'{path} must hold {{"user": …, "password": …}}')
    return Login(str(found["user"]), str(found["password"]))


def write_credentials(path: Path, user: str, password: str) -> None:
    """A new file that only this user can read; an old one is replaced."""
    write_private(path, json.dumps({"user": user, "password": password}))


def write_private(path: Path, text: str) -> None:
    """Put `text` in a file with mode 0600. A reader sees the old file or the new one, whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
