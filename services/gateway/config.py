"""The gateway's settings."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from shared.config import ProcessSettings, setting
from shared.errors import StartupError

LISTENERS: Final = ("public", "admin", "traces")
ALIASES: Final = ("vllm",)
MAX_DEADLINE_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(ProcessSettings):
    """Listeners, limits and patience."""

    port: int = setting(8000, "port of the API")
    admin_port: int = setting(8001, "port for operators: /metrics and /admin, loopback only")
    traces_port: int = setting(4318, "port that takes spans (OTLP over HTTP)")
    traces_host: str = setting("127.0.0.1", "address of that port, for services on other hosts")
    serve: tuple[str, ...] = setting(LISTENERS, "listeners to open: public,admin,traces")
    allow_anonymous: bool = setting(False, "serve without keys on an address beyond loopback")
    namespace: str = setting("public", "whose cached blocks requests share")
    route: str = setting(
        "auto",
        "where prompts are computed, unless a request says so",
        choices=("auto", "disaggregated", "colocated"),
    )
    queue_limit: int = setting(1_024, "open requests")
    queue_tokens_limit: int = setting(2_000_000, "prompt tokens waiting for their first token")
    queue_s: float = setting(60.0, "seconds that a request may wait for free pages")
    attempts: int = setting(3, "attempts at a request that may fail")
    deadline_s: float = setting(600.0, "seconds that a request may take in all")
    stall_s: float = setting(1.0, "seconds without a token after which workers are asked")
    body_bytes: int = setting(8 * 1024 * 1024, "largest request body")
    store_path: str = setting("", "file of the trace store (<run_dir>/traces.sqlite)")
    store_bytes: int = setting(512 * 1024 * 1024, "largest size of the trace store")
    store_hours: float = setting(48.0, "hours that a trace is kept")
    trace_share: float = setting(
        1.0, "share of traces kept of requests that went well; all others are always kept"
    )
    slo_ttft_ms: float = setting(
        0.0, "first tokens later than this miss it, unless a request says its own; 0: none"
    )
    slo_tpot_ms: float = setting(0.0, "the same for each further token, on average; 0: none")
    metrics_alias: tuple[str, ...] = setting(
        (), "further names for the figures in /metrics, summed over the workers: vllm"
    )
    runs_dir: str = setting("", "folder with results of loadgen for the page 'runs'; empty: off")

    def __post_init__(self) -> None:
        ProcessSettings.__post_init__(self)
        for name in self.serve:
            if name not in LISTENERS:
                raise StartupError(f"serve: {name} is not one of {', '.join(LISTENERS)}")
        for name in self.metrics_alias:
            if name not in ALIASES:
                raise StartupError(f"metrics_alias: {name} is not one of {', '.join(ALIASES)}")
        for name in ("port", "admin_port", "traces_port"):
            if not 0 <= getattr(self, name) <= 65_535:
                raise StartupError(f"{name} must be 0..65535")
        for name in (
            "queue_limit",
            "queue_tokens_limit",
            "queue_s",
            "attempts",
            "stall_s",
            "body_bytes",
        ):
            if getattr(self, name) <= 0:
                raise StartupError(f"{name} must be above 0")
        for name in ("store_bytes", "store_hours", "slo_ttft_ms", "slo_tpot_ms"):
            if getattr(self, name) < 0:
                raise StartupError(f"{name} must not be below 0")
        if not 0 <= self.trace_share <= 1:
            raise StartupError("trace_share must be 0..1")
        if not 0 < self.deadline_s <= MAX_DEADLINE_S:
            raise StartupError(f"deadline_s must be above 0 and at most {MAX_DEADLINE_S:g}")
        if not self.allow_anonymous and not is_loopback(self.host):
            raise StartupError(
                f"host {self.host} is not loopback and there are no keys: "
                "bind 127.0.0.1, or set allow_anonymous if the network is trusted"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
