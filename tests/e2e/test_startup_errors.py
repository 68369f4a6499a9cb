"""How each process refuses to start: one line that says what to do, exit code 2, soon."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.bus.server import NatsServer
from tests.architecture.sources import ROOT
from tests.shared.checkpoint.files import TinyGguf, tiny_spec, write_folder

pytestmark = pytest.mark.process

ROLES = ("gateway", "scheduler", "prefill", "decode", "kvpool")
READERS = ("gateway", "prefill", "decode", "kvpool")
"""Roles that open the model."""
SOON_S = 60.0
"""Generous: a process that hangs is told from one on a busy machine."""


@dataclass(frozen=True, slots=True)
class Ending:
    code: int
    lines: list[str]
    """What is not a log line."""


async def run(module: str, *flags: str, **environment: str) -> Ending:
    """`python -m module` to its end."""
    clean = {key: text for key, text in os.environ.items() if not key.startswith("BATON_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", module, *flags),
        cwd=ROOT,
        env=clean | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SOON_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [line for line in said.decode().splitlines() if not line.startswith("{")]
    return Ending(process.returncode or 0, lines)


async def refused(module: str, *flags: str, **environment: str) -> str:
    """The one line."""
    ending = await run(module, *flags, **environment)
    assert ending.code == 2, ending
    assert len(ending.lines) == 1, ending
    assert "Traceback" not in ending.lines[0]
    return ending.lines[0]


@dataclass(frozen=True, slots=True)
class Bus:
    """A real NATS server, and the flags that reach it."""

    server: NatsServer

    def flags(self, role: str, **changes: str) -> list[str]:
        settings = {
            "model_path": "hashchain",
            "nats_url": self.server.url,
            "nats_credentials_file": str(self.server.credentials(role)),
            "otlp_endpoint": "",
        }
        if role == "gateway":
            settings |= {"port": "0", "admin_port": "0", "traces_port": "0"}
            settings["store_path"] = str(self.server.folder / "traces.sqlite")
        settings |= changes
        return [f"--{name.replace('_', '-')}={text}" for name, text in settings.items()]


@pytest.fixture(scope="module")
def bus(nats_server: NatsServer) -> Bus:
    return Bus(nats_server)


@pytest.fixture
def taken() -> Iterator[str]:
    """A port that somebody uses."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        yield str(busy.getsockname()[1])


# -- settings ------------------------------------------------------------------------------


async def test_an_unknown_flag_names_the_nearest() -> None:
    lines = await asyncio.gather(*(refused(f"services.{role}", "--modle-path=x") for role in ROLES))
    words = "--modle-path=x is not a flag; did you mean --model-path?"
    assert lines == [f"{role}: {words}" for role in ROLES]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--bogus"], ["--bogus", "--help"]),
        (["frobnicate"], ["frobnicate", "--help"]),
        (["--port=abc"], ["--port", "abc"]),
        (["--port=99999"], ["99999", "--port"]),
        (["--engine=fast"], ["--engine", "torch"]),
        (["--decode=0"], ["--decode"]),
        (["--topology=/nonexistent"], ["/nonexistent"]),
        (["--model=/nonexistent.gguf"], ["/nonexistent.gguf", "is not there"]),
    ],
)
async def test_the_local_cluster_says_what_is_wrong_with_its_flags(
    tmp_path: Path, flags: list[str], words: list[str]
) -> None:
    free = ["--model=hashchain", "--port=0", "--admin-port=0", "--traces-port=0"]
    line = await refused("services", *free, f"--run-dir={tmp_path / 'run'}", *flags)
    assert line.startswith("baton: ")
    assert all(word in line for word in words), line


async def test_wrong_values_are_named() -> None:
    lines = await asyncio.gather(
        refused("services.gateway", "--port=x"),
        refused("services.gateway", "--host=0.0.0.0"),
        refused("services.gateway", "--config=/nonexistent"),
        refused("services.decode", BATON_DECODE_KV_PAGE="9"),
    )
    words = ("port", "allow_anonymous", "/nonexistent", "did you mean BATON_DECODE_KV_PAGES?")
    assert all(word in line for word, line in zip(words, lines, strict=True)), lines


# -- models --------------------------------------------------------------------------------


async def test_a_truncated_model_stops_every_service_that_reads_it(
    tmp_path: Path, bus: Bus
) -> None:
    whole = TinyGguf().write(tmp_path / "whole.gguf").read_bytes()
    model = tmp_path / "cut.gguf"
    model.write_bytes(whole[: len(whole) * 2 // 3])
    lines = await asyncio.gather(
        *(refused(f"services.{r}", *bus.flags(r, model_path=str(model))) for r in READERS)
    )
    for role, line in zip(READERS, lines, strict=True):
        assert line.startswith(f"{role}: {model}: ") and "truncated" in line


async def test_models_that_cannot_be_served(tmp_path: Path, bus: Bus) -> None:
    bert = write_folder(tmp_path / "bert", tiny_spec(), model_type="bert")
    silent = write_folder(tmp_path / "silent", tiny_spec())
    (silent / "tokenizer.json").unlink()
    bare = tmp_path / "bare"
    bare.mkdir()
    alien = TinyGguf(architecture="bloom").write(tmp_path / "alien.gguf")
    wanted = {
        bert: "'bert' is not supported",
        silent: "tokenizer.json",
        bare: "config.json",
        alien: "'bloom' is not supported",
        tmp_path / "missing.gguf": "does not exist",
        "": "--model-path",
    }
    lines = await asyncio.gather(
        *(refused("services.gateway", *bus.flags("gateway", model_path=str(m))) for m in wanted)
    )
    for (model, word), line in zip(wanted.items(), lines, strict=True):
        assert str(model) in line and word in line, line


# -- ports and NATS ------------------------------------------------------------------------


async def test_taken_ports_are_named_with_their_flag(taken: str, bus: Bus) -> None:
    settings = ("port", "admin_port", "traces_port", "probe_port")
    lines = await asyncio.gather(
        *(refused("services.gateway", *bus.flags("gateway", **{s: taken})) for s in settings)
    )
    for setting, line in zip(settings, lines, strict=True):
        assert taken in line and f"--{setting.replace('_', '-')}" in line, line


async def test_credentials_that_nats_does_not_take(tmp_path: Path, bus: Bus) -> None:
    wrong, half, missing = (tmp_path / name for name in ("wrong", "half", "missing"))
    wrong.write_text(json.dumps({"user": "decode", "password": "wrong"}))
    half.write_text('{"user": ')
    wanted = {
        str(wrong): "--nats-credentials-file",
        str(half): f"{half} must hold",
        str(missing): f"cannot read NATS credentials {missing}",
        "": "--nats-credentials-file",
    }
    lines = await asyncio.gather(
        *(refused("services.decode", *bus.flags("decode", nats_credentials_file=f)) for f in wanted)
    )
    for words, line in zip(wanted.values(), lines, strict=True):
        assert words in line, line


async def test_without_nats_it_says_how_to_start_one(bus: Bus) -> None:
    urls = ("nats://127.0.0.1:1", "no such url")
    lines = await asyncio.gather(
        *(refused("services.scheduler", *bus.flags("scheduler", nats_url=url)) for url in urls)
    )
    for url, line in zip(urls, lines, strict=True):
        assert url in line and "--nats-url" in line and "python -m services" in line
