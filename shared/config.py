"""The only reader of the environment: flags, variables and a TOML file become one dataclass.

Knows how a setting is written in each place; knows no service. Order: flag, environment, file,
default.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from shared.errors import StartupError

T = TypeVar("T")
_Field = dataclasses.Field[object]

SECTIONS: Final = ("gateway", "scheduler", "prefill", "decode", "kvpool", "loadgen")
"""Tables that may stand in a settings file; a service reads its own and the top level."""

STANDARD_OTLP: Final = "standard"
"""Value of `otlp_endpoint` that leaves the choice to the OTEL_EXPORTER_OTLP_* variables."""

_PREFIX: Final = "BATON_"
_WORKER_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")


def setting(
    default: T, help: str, *, choices: tuple[str, ...] = (), overruled_by: tuple[str, ...] = ()
) -> T:
    """A dataclass field with its help text. When one of the variables `overruled_by` is set, the
    value is STANDARD_OTLP: the library that owns those variables reads them itself. With
    `otlp_both` the value that it overruled follows after a comma."""
    metadata = {"help": help, "choices": choices, "overruled_by": overruled_by}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """What every service has. A service's `config.py` subclasses it."""

    worker_id: str = setting("", "name of this process; stable over restarts (<service>-0)")
    run_dir: str = setting("", "private folder for <worker>.json with the probe address")
    nats_url: str = setting("nats://127.0.0.1:4222", "address of the NATS server, no credentials")
    nats_credentials_file: str = setting("", 'JSON file {"user": …, "password": …} of this role')
    host: str = setting("127.0.0.1", "address that this service binds")
    probe_port: int = setting(0, "port of /livez /readyz /metrics /accounting; 0: any free one")
    log_level: str = setting("info", "least level", choices=("debug", "info", "warning", "error"))
    log_format: str = setting("json", "json lines, or text", choices=("json", "text"))
    heartbeat_s: float = setting(1.0, "seconds between heartbeats")
    lease_s: float = setting(30.0, "seconds that pages wait for their reader")
    drain_s: float = setting(60.0, "seconds that running work may take after SIGTERM")
    block_tokens: int = setting(16, "token positions per block")
    dtype: str = setting(
        "float32",
        "number type of KV pages and of what is multiplied, and part of every block's name; on a "
        "cpu without matrix tiles rows stay float32",
        choices=("float32", "bfloat16", "float16"),
    )
    model_path: str = setting("", "GGUF file, Hugging Face folder, or 'hashchain'")
    served_model_name: str = setting("", "name in the API (file name)")
    otlp_endpoint: str | None = setting(
        "http://127.0.0.1:4318/v1/traces",
        "where spans go (OTLP over HTTP, full URL); empty: nowhere",
        overruled_by=("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
    )

    otlp_both: bool = setting(
        False, "with OTEL_EXPORTER_OTLP_ENDPOINT set: send spans there and to otlp_endpoint too"
    )

    def __post_init__(self) -> None:
        """Refuse what cannot work. A subclass with a check of its own calls this one first."""
        for name in ("heartbeat_s", "lease_s", "drain_s", "block_tokens"):
            if getattr(self, name) <= 0:
                raise StartupError(f"{name} must be above 0")
        if self.lease_s < 2 * self.heartbeat_s:
            raise StartupError("lease_s must be at least two heartbeat_s")
        if self.worker_id and not _WORKER_ID.fullmatch(self.worker_id):
            raise StartupError("worker_id must be 1..64 letters, digits, '-' or '_'")
        if not 0 <= self.probe_port <= 65_535:
            raise StartupError("probe_port must be 0..65535")
        if "@" in self.nats_url:
            raise StartupError("nats_url must not hold a password; use nats_credentials_file")


def load(kind: type[T], section: str, argv: Sequence[str], environ: Mapping[str, str]) -> T:
    """Read the settings of one process. Raises StartupError naming the key and its nearest
    neighbour; `--help` and `--print-config` print and raise SystemExit(0)."""
    schema = _Schema(kind, section)
    flags = _Flags(schema).parse(argv)
    path = flags.pop("config", None) or environ.get(_PREFIX + "CONFIG", "")
    printing = flags.pop("print_config", None) is not None
    found: dict[str, tuple[object, str]] = schema.defaults()
    found |= {name: (value, "file") for name, value in schema.from_file(path).items()}
    found |= {name: (value, "environment") for name, value in schema.from_environ(environ).items()}
    for name in schema.overruled(environ):
        own = f",{found[name][0]}" if _is_true(found, flags, "otlp_both") and found[name][0] else ""
        found[name] = (STANDARD_OTLP + own, "environment")
    found |= {name: (schema.parse(name, text), "flag") for name, text in flags.items()}
    value = kind(**{name: entry[0] for name, entry in found.items()})
    if printing:
        lines = [f"{name} = {entry[0]!r}  # {entry[1]}\n" for name, entry in found.items()]
        sys.stdout.write("".join(lines))
        raise SystemExit(0)
    return value


def _is_true(found: Mapping[str, tuple[object, str]], flags: Mapping[str, str], name: str) -> bool:
    """A switch that is needed before all flags are read."""
    text = flags.get(name)
    return bool(found.get(name, (False, ""))[0]) if text is None else text.lower() in _TRUE


class _Schema:
    """The fields of one settings class, and how each is named and read."""

    def __init__(self, kind: type, section: str) -> None:
        self.kind = kind
        self.section = section
        self.fields: dict[str, _Field] = {field.name: field for field in dataclasses.fields(kind)}
        self._hints = typing.get_type_hints(kind)
        shared = {field.name for field in dataclasses.fields(ProcessSettings)}
        self._shared = shared if issubclass(kind, ProcessSettings) else set()

    def defaults(self) -> dict[str, tuple[object, str]]:
        found = {name: (field.default, "default") for name, field in self.fields.items()}
        if "worker_id" in self._shared and not self.fields["worker_id"].default:
            found["worker_id"] = (f"{self.section}-0", "default")
        return found

    def parse(self, name: str, text: str) -> object:
        """Text from a flag or variable. Raises StartupError."""
        try:
            return self._checked(name, _from_text(self._hints[name], text))
        except ValueError as error:
            raise StartupError(f"{name}: {error}") from None

    def from_environ(self, environ: Mapping[str, str]) -> dict[str, object]:
        names = {self._variable(name): name for name in self.fields}
        own, found = f"{_PREFIX}{self.section.upper()}_", dict[str, object]()
        for variable, text in environ.items():
            if variable in names:
                found[names[variable]] = self.parse(names[variable], text)
            elif variable.startswith(own):
                raise StartupError(f"{variable} is not a setting{_nearest(variable, names)}")
            elif variable.startswith(_PREFIX) and (near := _nearest(variable, names, 0.9)):
                raise StartupError(f"{variable} is not a setting{near}")
        return found

    def overruled(self, environ: Mapping[str, str]) -> list[str]:
        """Settings that a variable of another owner takes over."""
        return [
            name
            for name, field in self.fields.items()
            if any(environ.get(other) for other in field.metadata.get("overruled_by", ()))
        ]

    def from_file(self, path: str) -> dict[str, object]:
        """Top level: shared settings. Table [section]: all settings of that service."""
        if not path:
            return {}
        try:
            document = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise StartupError(f"cannot read settings file {path}: {error}") from None
        tables = {name for name, value in document.items() if isinstance(value, dict)}
        for name in tables - set(SECTIONS) - {self.section}:
            raise StartupError(f"{path}: [{name}] is not a service{_nearest(name, SECTIONS)}")
        top = {name: value for name, value in document.items() if name not in tables}
        own = document.get(self.section, {})
        found = self._entries(top, self._shared or set(self.fields), path)
        return found | self._entries(own, set(self.fields), f"{path} [{self.section}]")

    def _entries(
        self, entries: Mapping[str, object], allowed: set[str], place: str
    ) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, value in entries.items():
            if name not in allowed:
                raise StartupError(f"{place}: {name} is not a setting{_nearest(name, allowed)}")
            try:
                found[name] = self._checked(name, _from_toml(self._hints[name], value))
            except ValueError as error:
                raise StartupError(f"{place}: {name}: {error}") from None
        return found

    def _variable(self, name: str) -> str:
        part = "" if name in self._shared else f"{self.section.upper()}_"
        return f"{_PREFIX}{part}{name.upper()}"

    def _checked(self, name: str, value: object) -> object:
        choices = self.fields[name].metadata.get("choices", ())
        if choices and value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value


class _Flags(argparse.ArgumentParser):
    """Command-line flags as raw text; `--name value`, `--name=value`, `--switch`, `--no-switch`."""

    def __init__(self, schema: _Schema) -> None:
        super().__init__(
            prog=f"python -m services.{schema.section}",
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        self.add_argument("--config", metavar="FILE", help="settings file (TOML)")
        self.add_argument("--print-config", action="store_const", const="", help="show and exit")
        for name, field in schema.fields.items():
            self._add(name, field, schema)

    def _add(self, name: str, field: _Field, schema: _Schema) -> None:
        help_text = str(field.metadata.get("help", "")).replace("%", "%%")
        default = schema.defaults()[name][0]
        shown = f"{help_text} [{default}]".replace("[None]", "[]")
        flag = name.replace("_", "-")
        if isinstance(default, bool):
            self.add_argument(f"--{flag}", dest=name, nargs="?", const="true", help=shown)
            self.add_argument(
                f"--no-{flag}",
                dest=name,
                action="store_const",
                const="false",
                help=argparse.SUPPRESS,
            )
        else:
            self.add_argument(f"--{flag}", dest=name, metavar="VALUE", help=shown)

    def parse(self, argv: Sequence[str]) -> dict[str, str]:
        known, rest = self.parse_known_args(list(argv))
        if rest:
            flags = [option for action in self._actions for option in action.option_strings]
            raise StartupError(f"{rest[0]} is not a flag{_nearest(rest[0].split('=')[0], flags)}")
        return dict(vars(known))

    def error(self, message: str) -> NoReturn:
        raise StartupError(message)


def _nearest(name: str, names: typing.Iterable[str], cutoff: float = 0.5) -> str:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""


def _from_text(kind: object, text: str) -> object:
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if isinstance(kind, types.UnionType):
        return text or None
    readers: dict[object, Callable[[str], object]] = {
        str: str,
        bool: _truth,
        int: _whole,
        float: _finite,
    }
    return readers[kind](text)


def _from_toml(kind: object, value: object) -> object:
    if kind == tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise ValueError("must be a list of texts")
        return tuple(value)
    if isinstance(kind, types.UnionType):
        return _from_toml(str, value) or None
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"must be of type {getattr(kind, '__name__', 'text')}")
    return value


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("must be true or false")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value
