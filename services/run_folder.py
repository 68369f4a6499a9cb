"""The private folder of one local cluster: secrets, logs, and where each process listens.

Only its owner can read it. One cluster at a time uses it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.errors import StartupError

KEPT: Final = "traces."
"""Files that outlive a cluster: yesterday's traces can still be read."""


@dataclass(frozen=True, slots=True)
class Listening:
    """What a process wrote about itself once its probe listener was up."""

    pid: int
    probe_url: str


class RunFolder:
    """`open` empties and locks the folder; the lock ends with `close` or with the process."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock: int | None = None

    def open(self) -> None:
        """Raises StartupError: not writable, or another cluster is using it."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_foreign()
            self.path.chmod(0o700)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._empty()
            (self.path / "logs").mkdir(mode=0o700)
        except BlockingIOError:
            self.close()
            raise StartupError(
                f"another local cluster runs in {self.path}: stop it, or choose another --run-dir"
            ) from None
        except OSError as error:
            self.close()
            raise StartupError(f"cannot use {self.path}: {error.strerror}") from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def nats(self) -> Path:
        """Folder of the NATS server: configuration, credentials, store."""
        return self.path / "nats"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def listening(self, worker: str) -> Listening | None:
        """None until the process has said where it can be asked."""
        try:
            found = json.loads((self.path / f"{worker}.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        return Listening(pid=int(found["pid"]), probe_url=str(found["probe_url"]))

    def _refuse_foreign(self) -> None:
        """`open` deletes what lies here, so it must be a folder that a cluster made."""
        if any(self.path.iterdir()) and not (self.path / "lock").is_file():
            raise StartupError(f"{self.path} holds other files: choose an empty --run-dir")

    def _empty(self) -> None:
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != "lock" and not entry.name.startswith(KEPT):
                entry.unlink()
