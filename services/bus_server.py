"""`python -m services.bus_server FOLDER [ADDRESS]`: NATS in a container, a secret a role.

Writes `<FOLDER>/<role>/nats.json` (one folder per role, so that a container mounts its own and no
other), then becomes nats-server. The local cluster does not need it.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shared.bus.credentials import read_credentials, write_credentials, write_private
from shared.bus.server import find_server
from shared.bus.server_config import render_server_config
from shared.errors import StartupError
from shared.wire.subjects import GRANTS

PORT: Final = 4222
MONITOR_PORT: Final = 8222
STORE: Final = "/data/jetstream"


def main(argv: Sequence[str]) -> int:
    """Does not return when all is well: the process becomes the server."""
    if len(argv) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        config, binary = write_secrets(Path(argv[0]), *argv[1:]), find_server()
        os.execv(binary, [binary, "--config", str(config)])
    except StartupError as error:
        print(f"nats: {error.message}", file=sys.stderr)
    return 2


def write_secrets(folder: Path, host: str = "127.0.0.1") -> Path:
    """The server's configuration. Passwords that are there are kept, so that all containers agree
    after a restart of this one. Raises StartupError when the folder cannot be written."""
    try:
        passwords = {role: _password(folder / role, role) for role in GRANTS}
        config = folder / "nats" / "nats.conf"
        config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = render_server_config(
            passwords, port=PORT, store_dir=STORE, monitor_port=MONITOR_PORT, host=host
        )
        write_private(config, text)
    except OSError as error:
        raise StartupError(f"cannot write secrets to {folder}: {error.strerror}") from None
    return config


def _password(folder: Path, role: str) -> str:
    path = folder / "nats.json"
    if path.is_file():
        return read_credentials(str(path)).password or ""
    password = secrets.token_urlsafe(32)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_credentials(path, role, password)
    return password


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
