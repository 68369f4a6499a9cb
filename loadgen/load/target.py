"""Asks a server who it is before the load: its first model, and whether it is a Baton with a port
for operators. What it is not, is said in a way that tells what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import orjson

from loadgen.prompts import WORDS

_ASK_S: Final = 10.0
_ADMIN_S: Final = 2.0
_MOST_BYTES: Final = 4 << 20
_LEAST_ALPHABET: Final = 16


class TargetError(Exception):
    """A server that cannot be loaded, and why."""


async def first_model(base_url: str, headers: Mapping[str, str]) -> str:
    """Of /v1/models. Raises TargetError."""
    url = f"{base_url}/v1/models"
    try:
        status, body = await _get(url, headers, _ASK_S)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        told = str(error) or "it does not answer"
        raise TargetError(f"{base_url} cannot be reached: {told}") from None
    if status in (401, 403):
        raise TargetError(f"{base_url} wants another key ({status}): name it with --api-key-file")
    try:
        if status != 200:
            raise ValueError(f"status {status}")
        return str(orjson.loads(body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise TargetError(
            f"{url} does not list models as an OpenAI-compatible server does "
            f"({_short(error)}): is it one? Then name its model with --model"
        ) from None


async def ordinary_tokens(base_url: str, model: str, headers: Mapping[str, str]) -> tuple[int, ...]:
    """Ids of common words in this server's vocabulary, by its /tokenize (Baton's and vLLM's form);
    empty where there is none."""
    body = {"model": model, "prompt": " ".join(WORDS.split())}
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError, TypeError):
        async with (
            asyncio.timeout(_ASK_S),
            aiohttp.ClientSession() as session,
            session.post(f"{base_url}/tokenize", json=body, headers=headers) as answer,
        ):
            found = orjson.loads(await answer.content.read(_MOST_BYTES))
            if answer.status == 200 and isinstance(found, dict):
                # First and last may be marks of a text's ends, or a word without its space.
                ids = {one for one in found["tokens"][1:-1] if type(one) is int}
                return tuple(sorted(ids)) if len(ids) >= _LEAST_ALPHABET else ()
    return ()


async def admin_url(base_url: str, wanted: str) -> str:
    """Where operators ask: as told, or ('auto') the port after the API's, if a Baton is there."""
    if wanted != "auto":
        return wanted.rstrip("/")
    parts = urlsplit(base_url)
    if not parts.port:
        return ""
    host = parts.netloc.rpartition(":")[0]
    guess = urlunsplit((parts.scheme, f"{host}:{parts.port + 1}", "", "", ""))
    return guess if await ask(guess, "/admin/cluster") is not None else ""


async def ask(url: str, path: str) -> dict[str, Any] | None:
    """A JSON object, or None: nobody is there, or it is none."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        status, body = await _get(f"{url}{path}", {}, _ADMIN_S)
        found = orjson.loads(body) if status == 200 else None
        return found if isinstance(found, dict) else None
    return None


async def text(url: str, path: str) -> str:
    """A text; empty where nobody is there."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        status, body = await _get(f"{url}{path}", {}, _ADMIN_S)
        return body.decode("utf-8", "replace") if status == 200 else ""
    return ""


async def _get(url: str, headers: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    async with (
        asyncio.timeout(seconds),
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status, await answer.content.read(_MOST_BYTES)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]
