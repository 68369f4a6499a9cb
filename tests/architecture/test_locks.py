"""The lock files: every entry pinned and hashed, nothing about where it came from."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.architecture.sources import ROOT

PROFILES = ("cpu", "gpu", "dev", "nixl")


def pins(profile: str) -> dict[str, str]:
    lines = (ROOT / f"requirements-{profile}.lock").read_text("utf-8").splitlines()
    entries = [line.rstrip(" \\") for line in lines if line and line[0] not in " #"]
    return dict(entry.split("==") for entry in entries)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_entry_has_hashes(profile: str) -> None:
    text = (ROOT / f"requirements-{profile}.lock").read_text("utf-8")
    body = "".join(line + "\n" for line in text.splitlines() if line and line[0] != "#")
    entry = r"[a-z0-9.-]+==[^ \n]+(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"(?:{entry})+", body)


def test_tools_stand_on_top_of_either_profile() -> None:
    tools, cpu, gpu = pins("dev"), pins("cpu"), pins("gpu")
    assert tools.keys().isdisjoint(cpu)
    assert {name: gpu[name] for name in tools.keys() & gpu} == {}


def test_profiles_agree_where_they_can() -> None:
    cpu, gpu = pins("cpu"), pins("gpu")
    apart = {name for name in cpu.keys() & gpu if cpu[name] != gpu[name]}
    assert apart <= {"cuda-bindings"}
    assert cpu["torch"] == gpu["torch"] == "2.13.0"
    assert cpu["triton"] == gpu["triton"] == "3.7.1"
    assert "ucxx-cu12" in cpu
    assert "ucxx-cu13" in gpu


def test_direct_dependencies_are_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for profile in ("cpu", "gpu"):
        wanted = [*project["dependencies"], *project["optional-dependencies"][profile]]
        names = {re.split(r"[=<>~! ]", entry, maxsplit=1)[0] for entry in wanted}
        assert names - pins(profile).keys() == set()


def test_the_nixl_extra_is_one_wheel_for_the_gpu_profile() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (entry,) = project["optional-dependencies"]["nixl"]
    assert pins("nixl") == dict([entry.split("==")])
    assert pins("nixl").keys().isdisjoint(pins("gpu"))
