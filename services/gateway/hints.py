"""What a client says about its request beyond the request itself, in the dialects that say it.

Hints change where and when it runs, never the answer. Two that name one thing must agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from services.gateway.core.events import Hints
from services.gateway.fields import Body, refuse
from services.gateway.sampling import MAX_TOKENS_FIELD
from shared.errors import ClientError, Code
from shared.wire.sampling import Sampling

MAX_OBJECTIVE_MS: Final = 600_000
_AFFINITY_HEADERS: Final = ("x-baton-affinity", "x-session-affinity", "x-session-id")
_AFFINITY_FIELDS: Final = ("prompt_cache_key", "session_id")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")
_WHOLE: Final = re.compile(r"[0-9]{1,6}\Z")


def read_headers(headers: Mapping[str, str]) -> Hints:
    """A key that is none is dropped, like any label; an objective must be one. Raises ClientError
    naming the header."""
    keys = [headers[name] for name in _AFFINITY_HEADERS if _KEY.match(headers.get(name, ""))]
    return Hints(
        affinity_key=_agreed(keys, _AFFINITY_HEADERS[0]),
        ttft_slo_s=_objective_s(headers, "x-baton-ttft-slo-ms"),
        tpot_slo_s=_objective_s(headers, "x-baton-tpot-slo-ms"),
    )


def read_body(body: Body) -> Hints:
    """OpenAI's cache key, vLLM's session, Dynamo's `nvext`. Raises ClientError naming the field."""
    keys = [_key(body, name, name) for name in _AFFINITY_FIELDS]
    extension = _object(body, "nvext", "nvext")
    control = _object(extension, "session_control", "nvext.session_control")
    keys.append(_key(control, "session_id", "nvext.session_control.session_id"))
    hints = _object(extension, "agent_hints", "nvext.agent_hints")
    length = hints.get("osl")
    if length is not None and (type(length) is not int or not 1 <= length <= MAX_TOKENS_FIELD):
        refuse("nvext.agent_hints.osl", f"must be an integer from 1 to {MAX_TOKENS_FIELD}")
    return Hints(
        affinity_key=_agreed([key for key in keys if key], "prompt_cache_key"),
        expected_tokens=length if type(length) is int else 0,
    )


def joined(header: Hints, body: Hints, sampling: Sampling, max_tokens: int) -> Hints:
    """All that is known. Where nothing but the limit can end an answer its length is no forecast.
    A limit alone says little: answers end long before it, and the scheduler learns when."""
    keys = [hints.affinity_key for hints in (header, body) if hints.affinity_key]
    until_the_limit = sampling.ignore_eos or sampling.min_tokens >= max_tokens
    expected = max_tokens if until_the_limit else min(body.expected_tokens, max_tokens)
    return Hints(
        affinity_key=_agreed(keys, "prompt_cache_key"),
        expected_tokens=expected,
        ttft_slo_s=header.ttft_slo_s,
        tpot_slo_s=header.tpot_slo_s,
    )


def _agreed(keys: list[str], param: str) -> str:
    if len(set(keys)) > 1:
        refuse(param, "contradicts another name of the same session", Code.CONFLICTING_HINTS)
    return keys[0] if keys else ""


def _key(body: Body, name: str, param: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not _KEY.match(value):
        refuse(param, "must be 1 to 256 printable ASCII characters")
    return value


def _object(body: Body, name: str, param: str) -> Body:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        refuse(param, "must be an object")
    return value


def _objective_s(headers: Mapping[str, str], name: str) -> float:
    value = headers.get(name)
    if value is None:
        return 0.0
    if not _WHOLE.match(value) or not 1 <= int(value) <= MAX_OBJECTIVE_MS:
        message = f"'{name}' must be an integer from 1 to {MAX_OBJECTIVE_MS}"
        raise ClientError(message, param=name)
    return int(value) / 1000
