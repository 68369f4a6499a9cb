"""Writes what NATS and each service need to know each other in a cluster of containers.

One folder per role, so that a container mounts its own secret and no other.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from shared.bus.credentials import write_credentials, write_private
from shared.bus.server_config import render_server_config
from shared.errors import StartupError
from shared.wire.subjects import GRANTS

PORT: Final = 4222
MONITOR_PORT: Final = 8222
STORE: Final = "/data/jetstream"


def write_secrets(folder: Path) -> int:
    """`nats/nats.conf` and `<role>/nats.json`; an existing set is kept, so that processes of one
    cluster agree over restarts. Raises StartupError when the folder cannot be written."""
    if (folder / "nats" / "nats.conf").is_file():
        return 0
    passwords = {role: secrets.token_urlsafe(32) for role in GRANTS}
    try:
        for role, password in passwords.items():
            (folder / role).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_credentials(folder / role / "nats.json", role, password)
        (folder / "nats").mkdir(mode=0o700, parents=True, exist_ok=True)
        config = render_server_config(
            passwords, port=PORT, store_dir=STORE, monitor_port=MONITOR_PORT, host="0.0.0.0"
        )
        write_private(folder / "nats" / "nats.conf", config)
    except OSError as error:
        raise StartupError(f"cannot write secrets to {folder}: {error.strerror}") from None
    return 0
