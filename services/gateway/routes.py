"""The one table of a listener: what is not in it does not exist.

Knows paths, methods, who may ask and how much may be sent; no handler's meaning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from aiohttp import web

from shared.errors import ClientError, Code
from shared.ids import RequestId


class Access(StrEnum):
    """Who may use a route."""

    OPEN = "open"
    """Anyone who reaches the listener: a status word only."""
    KEY = "key"
    """Clients."""
    ADMIN = "admin"
    """Operators, on the admin listener."""


@dataclass(slots=True)
class Exchange:
    """One HTTP request that found its route, its body read."""

    request: web.BaseRequest
    id: RequestId
    started_s: float
    """Monotonic instant at which the head had been parsed."""
    tail: str
    """What stands in place of '{id}' in the path."""
    headers: dict[str, str]
    """Headers that every answer to this request carries."""
    body: bytes = field(default=b"", repr=False)


Handler = Callable[[Exchange], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path ending with '/{id}' takes everything after the slash as `tail`."""

    method: str
    path: str
    access: Access
    handler: Handler
    body_bytes: int = 0
    """Cap of the body; 0: the route takes none."""
    media: tuple[str, ...] = ("application/json",)
    encodings: tuple[str, ...] = ()


class Table:
    """Looks a request up. The order of routes does not matter."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefixes: dict[str, dict[str, Route]] = {}
        for route in routes:
            prefix = route.path.removesuffix("{id}")
            table = self._exact if prefix == route.path else self._prefixes
            table.setdefault(prefix, {})[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, str]:
        """The route and its tail. Raises ClientError: not offered, or another method."""
        methods, tail = self._exact.get(path), ""
        if methods is None:
            for prefix, candidates in self._prefixes.items():
                if path.startswith(prefix) and len(path) > len(prefix):
                    methods, tail = candidates, path[len(prefix) :]
        if methods is None:
            offered = sorted({route.path for route in self.routes})
            raise ClientError(f"not offered here; there is: {', '.join(offered)}", Code.NOT_OFFERED)
        route = methods.get(method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            raise ClientError(f"this path takes {allowed}", Code.METHOD_NOT_ALLOWED)
        return route, tail

    def methods(self, path: str) -> str:
        """For the Allow header."""
        return ", ".join(sorted(self._exact.get(path, {"GET": None})))
