"""The topology file: what it says, and what it says wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.topology import DEFAULT, ROLES, read_topology
from shared.errors import StartupError
from tests.architecture.sources import ROOT


def written(folder: Path, text: str) -> str:
    path = folder / "topology.toml"
    path.write_text(text, "utf-8")
    return str(path)


def test_the_shipped_topology_is_one_of_each_and_a_standby() -> None:
    topology = read_topology(str(ROOT / "ops" / "topology.toml"))
    counts = {group.role: group.count for group in topology.groups}
    assert counts == dict.fromkeys(ROLES, 1) | {"scheduler": 2}
    assert topology.group("gateway").get("port", 0) == 8000


def test_an_empty_file_is_one_of_each(tmp_path: Path) -> None:
    assert read_topology(written(tmp_path, "")) == DEFAULT


def test_settings_become_flags(tmp_path: Path) -> None:
    text = 'lease_s = 5.0\n[decode]\ncount = 2\ndevices = ["a", "b"]\nkv_pages = 7\nhalt = false\n'
    topology = read_topology(written(tmp_path, text))
    decode = topology.group("decode")
    assert topology.shared_flags() == ("--lease-s=5.0",)
    assert decode.count == 2
    assert decode.flags(1) == ["--kv-pages=7", "--halt=false", "--device=b"]


def test_flags_change_counts_and_engines() -> None:
    changed = DEFAULT.with_count("prefill", 0).with_count("decode", 3).with_engine("hashchain")
    assert changed.group("prefill").count == 0
    assert changed.group("decode").count == 3
    assert changed.group("decode").flags(0) == ["--engine=hashchain"]
    assert changed.group("kvpool").flags(0) == []
    assert DEFAULT.with_count("decode", None) == DEFAULT


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[prefil]\n", "[prefil] is not a service"),
        ("[decode]\ncount = 0\n", "count must be a whole number, 1..64"),
        ("[decode]\ncount = true\n", "count must be"),
        ("[decode]\ncount = 1.0\n", "count must be"),
        ("[gateway]\ncount = 2\n", "1..1"),
        ("[decode]\ndevices = 3\n", "devices must be a list"),
        ("[decode]\nkv_pages = [1]\n", "kv_pages must be a text, a number"),
        ("= 3", "is not TOML"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(StartupError) as caught:
        read_topology(written(tmp_path, text))
    assert told in caught.value.message
    assert "topology.toml" in caught.value.message


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="No such file"):
        read_topology(str(tmp_path / "none.toml"))
