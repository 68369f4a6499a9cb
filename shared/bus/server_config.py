"""The text of nats-server's configuration, derived from the subject grants. Pure.

Knows who may say what; starts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from shared.wire.codec import MAX_BYTES
from shared.wire.subjects import (
    BLOCK_EVENTS,
    BUCKETS,
    CLIENT_GONE,
    GRANTS,
    HEARTBEATS,
    LOST,
    SERVING,
)

ANSWER_WITHIN: Final = "10m"
"""How long a responder may take; a pool answers an offer only when it has pulled the pages."""

_SYSTEM: Final = "SYSTEM"
"""The server's own account. Nobody logs in to it; it lets ours know who disconnected."""
_ACCOUNT: Final = "BATON"
_DISCONNECTED: Final = f"$SYS.ACCOUNT.{_ACCOUNT}.DISCONNECT"

_EVENTS: Final = frozenset({HEARTBEATS, BLOCK_EVENTS, LOST, SERVING, "baton.gateway.*.tokens"})
"""Subjects that carry facts only: nobody answers there."""


def render_server_config(
    users: Mapping[str, str],
    *,
    port: int,
    store_dir: str,
    max_payload_bytes: int = MAX_BYTES,
    monitor_port: int,
    host: str = "127.0.0.1",
    ports_dir: str = "",
) -> str:
    """A complete configuration. `users` maps each role to its password; a role outside the grants
    is a KeyError. Port -1 takes any free one, told in a file under `ports_dir`. The monitor always
    stays on loopback."""
    server: dict[str, object] = {
        "server_name": "baton",
        "listen": f"{host}:{port}",
        "http": f"127.0.0.1:{monitor_port}",
        "max_payload": max_payload_bytes,
        "max_pending": 16 * max_payload_bytes,
        "ping_interval": "5s",
        "ping_max": 2,
        "write_deadline": "5s",
        "jetstream": {
            "store_dir": store_dir,
            "max_memory_store": 1024 * 1024,
            "max_file_store": 64 * 1024 * 1024,
            "sync_interval": "always",
        },
        "authorization": {"timeout": 5},
        "system_account": _SYSTEM,
        "accounts": {
            _SYSTEM: {"exports": [{"stream": _DISCONNECTED, "accounts": [_ACCOUNT]}]},
            _ACCOUNT: {
                "jetstream": "enabled",
                "imports": [
                    {
                        "stream": {"account": _SYSTEM, "subject": _DISCONNECTED},
                        "to": CLIENT_GONE,
                    }
                ],
                "users": [
                    {"user": role, "password": password, "permissions": permissions(role)}
                    for role, password in users.items()
                ],
            },
        },
    }
    if ports_dir:
        server["ports_file_dir"] = ports_dir
    return json.dumps(server, indent=2) + "\n"


def permissions(role: str) -> dict[str, object]:
    """What one role may publish, subscribe and answer. Everything else is denied."""
    grants = GRANTS[role]
    publish = list(grants["publish"])
    if role == "scheduler":
        for bucket in BUCKETS:
            publish += _bucket_subjects(bucket)
    allowed: dict[str, object] = {
        "publish": {"allow": publish},
        "subscribe": {"allow": [*grants["subscribe"], f"_INBOX_{role}.>"]},
    }
    if not _EVENTS.issuperset(grants["subscribe"]):
        allowed["allow_responses"] = {"max": 1, "expires": ANSWER_WITHIN}
    return allowed


def _bucket_subjects(bucket: str) -> list[str]:
    """Make, inspect, read and write this one bucket; nothing else of JetStream."""
    stream = f"KV_{bucket}"
    return [
        f"$JS.API.STREAM.CREATE.{stream}",
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
        f"$KV.{bucket}.>",
    ]
