"""Reads a request body: media type, size and time are checked before the bytes are kept."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from services.gateway.routes import Route
from shared.errors import ClientError, Code

FIRST_S: Final = 10.0
BYTES_PER_SECOND: Final = 256 * 1024
_MAX_TOKEN: Final = 128


async def read_body(request: web.BaseRequest, route: Route, first_s: float = FIRST_S) -> bytes:
    """The whole body. Raises ClientError: 408 too slow, 413 too large, 415 another kind."""
    _check_head(request, route)
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    parts: list[bytes] = []
    size, began_s = 0, asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(first_s) as limit:
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > route.body_bytes:
                    raise _too_large(route)
                parts.append(chunk)
                limit.reschedule(began_s + first_s + size / BYTES_PER_SECOND)
    except TimeoutError:
        raise ClientError("the body did not arrive in time", Code.REQUEST_TIMEOUT) from None
    except (web.RequestPayloadError, HttpProcessingError):
        raise ClientError("the body is not complete", Code.INVALID_JSON) from None
    return b"".join(parts)


def _check_head(request: web.BaseRequest, route: Route) -> None:
    length = request.content_length
    if length is not None and length > route.body_bytes:
        raise _too_large(route)
    if request.content_type not in route.media:
        wanted = " or ".join(route.media)
        raise ClientError(f"the body must be {wanted}", Code.UNSUPPORTED_MEDIA_TYPE)
    charset = request.charset
    if charset is not None and charset.lower() not in ("utf-8", "utf8"):
        raise ClientError("the body must be UTF-8", Code.UNSUPPORTED_MEDIA_TYPE)
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding != "identity" and encoding not in route.encodings:
        raise ClientError("this content encoding is not taken", Code.UNSUPPORTED_MEDIA_TYPE)


def _too_large(route: Route) -> ClientError:
    message = f"the body is above {route.body_bytes} bytes"
    return ClientError(message, Code.BODY_TOO_LARGE)


def label(value: str | None) -> str:
    """A client's label if it is short printable ASCII without spaces, else nothing."""
    if value is None or not 0 < len(value) <= _MAX_TOKEN:
        return ""
    return value if value.isascii() and value.isprintable() and " " not in value else ""
