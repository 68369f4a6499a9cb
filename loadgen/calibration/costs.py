"""A costs file: what one kind of worker, its link and the way to it take, as learnt from a run.

{"format":"baton.costs/1","name":"run-…","step_s":…,"token_s":…,"pair_s":…,"decode_step_s":…,
 "decode_token_s":…,"decode_sequence_s":…,"setup_s":…,"bytes_per_s":…,"front_s":…,
 "kv_token_bytes":…,"kv_tokens":…,"chunk_tokens":…,"beside":…,"copy_beside":…,
 "copy_setup_s":…,"copy_bytes_per_s":…}
"""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Final

import orjson

from loadgen.sim.fleet.design import DesignError, Link
from loadgen.sim.fleet.prices import DecodePrice, Price

FORMAT: Final = "baton.costs/1"
_POSITIVE: Final = (
    "bytes_per_s",
    "kv_token_bytes",
    "kv_tokens",
    "chunk_tokens",
    "beside",
    "copy_beside",
)
_WHOLE: Final = ("kv_token_bytes", "kv_tokens", "chunk_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds, bytes, tokens. `step_s + token_s*n + pair_s*((n+p)^2 - p^2)` for a prompt chunk,
    `decode_step_s + decode_token_s*context + decode_sequence_s*sequences` for a decode step."""

    name: str
    step_s: float
    token_s: float
    pair_s: float
    decode_step_s: float
    decode_token_s: float
    decode_sequence_s: float
    setup_s: float
    bytes_per_s: float
    front_s: float
    """Of a first token: what is neither waiting in line nor computing."""
    kv_token_bytes: int
    kv_tokens: int
    chunk_tokens: int = 2_048
    """Of the longest chunk that was seen."""
    beside: float = 1.0
    """How many times as long a step takes while the other worker computes."""
    copy_beside: float = 1.0
    """The same while a pool node copies."""
    copy_setup_s: float = 0.0
    copy_bytes_per_s: float = 0.0
    """Of a pool node that copies a prompt's pages; 0: there was none."""

    def price(self) -> Price:
        """One worker on one device."""
        return Price(
            name=self.name,
            step_s=self.step_s,
            token_s=self.token_s,
            pair_s=self.pair_s,
            decode=DecodePrice(self.decode_step_s, self.decode_token_s, self.decode_sequence_s),
            kv_token_bytes=self.kv_token_bytes,
            kv_tokens=self.kv_tokens,
        )

    def link(self) -> Link:
        return Link(bytes_per_s=self.bytes_per_s, setup_s=self.setup_s)

    def pool_link(self) -> Link | None:
        """None where no pool node was seen."""
        if not self.copy_bytes_per_s:
            return None
        return Link(bytes_per_s=self.copy_bytes_per_s, setup_s=self.copy_setup_s)


def write(costs: Costs, path: Path) -> None:
    """Raises OSError."""
    text = orjson.dumps({"format": FORMAT} | asdict(costs), option=orjson.OPT_INDENT_2)
    path.write_bytes(text + b"\n")


def read(path: Path) -> Costs:
    """Raises DesignError that names the file and the field."""
    try:
        found = orjson.loads(path.read_bytes())
    except OSError as error:
        raise DesignError(f"{path}: {error.strerror or error}") from None
    except orjson.JSONDecodeError as error:
        raise DesignError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise DesignError(f'{path}: expected {{"format": "{FORMAT}", …}}')
    names = {field.name for field in fields(Costs)}
    usual = {field.name for field in fields(Costs) if field.default is not MISSING}
    for name in sorted((names ^ found.keys()) - usual):
        raise DesignError(f"{path}: {name} is {'missing' if name in names else 'unknown'}")
    for name, value in found.items():
        _check(f"{path}: {name}", name, value)
    return Costs(**found)


def _check(where: str, name: str, value: object) -> None:
    if name == "name":
        if not isinstance(value, str):
            raise DesignError(f"{where} is {value!r}; expected text")
        return
    whole = name in _WHOLE
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise DesignError(f"{where} is {value!r}; expected a number")
    if not math.isfinite(value) or value < 0 or (name in _POSITIVE and value == 0):
        raise DesignError(f"{where} is {value!r}; expected a positive number")
