"""The two generating endpoints: from a read body to a whole answer or an event stream.

Owns the order of checks and what happens when client or cluster go away. Decides nothing about
workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import orjson
from aiohttp import web
from opentelemetry.trace import SpanKind

from services.gateway.config import GatewayConfig
from services.gateway.core.events import Opened
from services.gateway.courier import Courier
from services.gateway.headers import Wishes, answer_headers, read_wishes
from services.gateway.json_body import parse_object
from services.gateway.metrics import GatewayMetrics
from services.gateway.openai_answers import Answer, Usage
from services.gateway.openai_request import Generation, read_chat, read_completion
from services.gateway.refusals import Refusal, refusal_of
from services.gateway.routes import Exchange
from services.gateway.session import Session
from services.gateway.sse import ClientTooSlow, EventStream
from services.gateway.text import Text
from shared.clock import Clock
from shared.errors import BatonError, ClientError, Code, RefusedError
from shared.telemetry.trace import Span, Tracer, trace_id
from shared.wire.requests import Sampling

HOLD_STATUS_S: Final = 5.0
KEEPALIVE_S: Final = 10.0
WATCH_S: Final = 1.0
LARGE_BODY_BYTES: Final = 64 * 1024
