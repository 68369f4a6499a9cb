"""Reads the topology file: how many processes of which service, with which settings.

Knows no service's settings; each service refuses what it does not know.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from shared.errors import StartupError

ROLES: Final = ("scheduler", "kvpool", "prefill", "decode", "gateway")
"""In the order in which the supervisor lists them."""
SINGLE: Final = ("gateway",)
ENGINES: Final = ("prefill", "decode")
MAX_COUNT: Final = 64

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The processes of one service."""

    role: str
    count: int = 1
    devices: tuple[str, ...] = ()
    settings: tuple[tuple[str, Value], ...] = ()

    def get(self, name: str, default: Value) -> Value:
        return dict(self.settings).get(name, default)

    def device(self, index: int) -> Value | None:
        """Where process `index` computes; None: nothing was said."""
        if self.devices:
            return self.devices[index % len(self.devices)]
        return dict(self.settings).get("device")

    def on(self, device: Value | None) -> Group:
        """The same group, all of it on one device."""
        fixed = replace(self, devices=())
        return fixed if device is None else fixed.changed(device=device)

    def flags(self, index: int) -> list[str]:
        """Command-line flags of process `index`."""
        device = self.device(index)
        return _flags(dict(self.settings) | ({} if device is None else {"device": device}))

    def changed(self, **settings: Value) -> Group:
        return replace(self, settings=tuple((dict(self.settings) | settings).items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All groups, and the settings that every service gets."""

    groups: tuple[Group, ...]
    shared: tuple[tuple[str, Value], ...] = ()

    def group(self, role: str) -> Group:
        return next(group for group in self.groups if group.role == role)

    def shared_flags(self) -> tuple[str, ...]:
        """Command-line flags of every process."""
        return tuple(_flags(dict(self.shared)))

    def changed(self, group: Group) -> Topology:
        """The same cluster with one group replaced."""
        groups = tuple(group if old.role == group.role else old for old in self.groups)
        return replace(self, groups=groups)

    def with_count(self, role: str, count: int | None) -> Topology:
        if count is None:
            return self
        return self.changed(replace(self.group(role), count=_counted(role, count, "--" + role)))

    def with_engine(self, engine: str) -> Topology:
        """Every engine process uses this backend."""
        changed = self
        for role in ENGINES:
            changed = changed.changed(changed.group(role).changed(engine=engine))
        return changed


DEFAULT: Final = Topology(groups=tuple(Group(role=role) for role in ROLES))


def read_topology(path: str) -> Topology:
    """Raises StartupError naming the file and the entry."""
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"cannot read topology {path}: {error.strerror}") from None
    except ValueError as error:
        raise StartupError(f"topology {path} is not TOML: {error}") from None
    tables = {name: table for name, table in document.items() if isinstance(table, dict)}
    for name in tables:
        if name not in ROLES:
            raise StartupError(f"{path}: [{name}] is not a service ({', '.join(ROLES)})")
    shared = {name: entry for name, entry in document.items() if name not in tables}
    groups = tuple(_group(role, tables.get(role, {}), path) for role in ROLES)
    return Topology(groups=groups, shared=tuple(_settings(shared, path).items()))


def _group(role: str, table: Mapping[str, object], path: str) -> Group:
    place = f"{path} [{role}]"
    entries = dict(table)
    count = _counted(role, entries.pop("count", 1), place)
    devices = entries.pop("devices", [])
    if not isinstance(devices, list) or not all(isinstance(entry, str) for entry in devices):
        raise StartupError(f"{place}: devices must be a list of texts")
    settings = tuple(_settings(entries, place).items())
    return Group(role=role, count=count, devices=tuple(devices), settings=settings)


def _counted(role: str, count: object, place: str) -> int:
    least = 0 if role in ("prefill", "kvpool") else 1
    most = 1 if role in SINGLE else MAX_COUNT
    if type(count) is not int or not least <= count <= most:
        raise StartupError(f"{place}: count must be a whole number, {least}..{most}")
    return count


def _settings(entries: Mapping[str, object], place: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, entry in entries.items():
        if not isinstance(entry, str | int | float | bool):
            raise StartupError(f"{place}: {name} must be a text, a number or a truth value")
        found[name] = entry
    return found


def _flags(settings: Mapping[str, Value]) -> list[str]:
    return [f"--{name.replace('_', '-')}={_text(value)}" for name, value in settings.items()]


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
