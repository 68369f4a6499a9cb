"""Child processes and their folder, with small scripts instead of services."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from services.bus_server import write_secrets
from services.child import Child
from services.run_folder import RunFolder
from shared.bus.credentials import read_credentials
from shared.errors import StartupError
from shared.wire.subjects import GRANTS


def child(folder: Path, script: str) -> Child:
    argv = [sys.executable, "-c", script]
    return Child("one", argv, dict(os.environ), folder / "one.log", folder)


async def test_last_words_are_the_last_plain_line(tmp_path: Path) -> None:
    script = """import sys; print('{"event": "x"}'); print('decode: no such model'); print('{}')"""
    process = child(tmp_path, script)
    assert process.last_words() == ""
    await process.start()
    assert await process.wait() == 0
    assert not process.running
    assert process.last_words() == "decode: no such model"


async def test_stop_is_gentle_first(tmp_path: Path) -> None:
    gentle = child(tmp_path, "import time; print('up', flush=True); time.sleep(60)")
    await gentle.start()
    assert gentle.exit_code is None
    assert await gentle.stop(10)
    assert gentle.exit_code == -signal.SIGTERM


async def test_stop_kills_the_deaf(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    script = f"""
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(ready)!r}).write_bytes(b'')
time.sleep(60)
"""
    deaf = child(tmp_path, script)
    await deaf.start()
    await asyncio.to_thread(ready.read_bytes)
    assert not await deaf.stop(0.1)
    assert deaf.exit_code == -signal.SIGKILL


async def test_a_child_can_start_again(tmp_path: Path) -> None:
    process = child(tmp_path, "print('hello')")
    await process.start()
    first = process.pid
    await process.wait()
    await process.start()
    await process.wait()
    assert process.pid != first
    assert process.log.read_text("utf-8") == "hello\nhello\n"


def test_the_run_folder_is_private_and_used_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.open()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    with pytest.raises(StartupError, match="another local cluster"):
        RunFolder(tmp_path / "run").open()
    (folder.path / "old.json").write_text("{}")
    folder.close()
    again = RunFolder(tmp_path / "run")
    again.open()
    assert not (folder.path / "old.json").exists()
    again.close()


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StartupError, match="holds other files"):
        RunFolder(tmp_path).open()
    assert (tmp_path / "thesis.txt").exists()


def test_where_a_process_listens(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.listening("decode-0") is None
    (tmp_path / "decode-0.json").write_text('{"pid": 7, "probe_url": "http://x", "role": "d"}')
    found = folder.listening("decode-0")
    assert found is not None
    assert (found.pid, found.probe_url) == (7, "http://x")


def test_secrets_are_one_private_folder_per_role_and_kept(tmp_path: Path) -> None:
    config = write_secrets(tmp_path)
    before = {role: read_credentials(str(tmp_path / role / "nats.json")) for role in GRANTS}
    assert len({login.password for login in before.values()}) == len(GRANTS)
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    text = config.read_text("utf-8")
    assert write_secrets(tmp_path) == config
    assert config.read_text("utf-8") == text
    after = {role: read_credentials(str(tmp_path / role / "nats.json")) for role in GRANTS}
    assert after == before
