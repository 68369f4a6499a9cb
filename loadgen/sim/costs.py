"""What things take in virtual time: the pauses of the shells, and the price of a fault run's work.

Fault runs are slower than life where that lets a fault strike between.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shared.engine.batch import StepItem
from shared.wire.workers import CostModel

KEEPALIVE_S: Final = 2.0
"""Until a host notices that a silent link is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often the shells tick and beat, and how long they wait for each other, in seconds."""

    tick_s: float = 0.25
    gateway_tick_s: float = 0.1
    heartbeat_s: float = 0.5
    lost_after_s: float = 1.6
    answer_s: float = 1.0
    grace_s: float = 1.0
    fetch_s: float = 1.0
    pull_s: float = 1.5
    pages_s: float = 600.0
    notice_s: float = 4.0
    release_s: float = 2.0
    offer_share: float = 0.8
    """Of a lease: how long an offer may take."""
    place_patience_s: float = 2.0
    queue_patience_s: float = 4.0
    resume_patience_s: float = 4.0
    reconnect_grace_s: float = 2.0
    handoff_grace_s: float = 1.5


MODEL: Final = CostModel(
    step_s=0.02, token_s=0.004, pair_s=1e-6, decode_step_s=0.024, decode_sequence_s=0.004
)
"""What the workers of a fault run report, and what a step takes."""

_MESSAGE_S: Final = 0.0004
_PIECE_S: Final = 0.005
_SUM_S: Final = 0.001


def step_s(items: Sequence[StepItem], chance: random.Random) -> float:
    tokens = sum(len(item.tokens) for item in items)
    usual_s = MODEL.step_s + tokens * MODEL.token_s
    return usual_s * (0.5 + chance.random())


def sum_s(pages: int, chance: random.Random) -> float:
    return _SUM_S * (1 + pages) * (0.5 + chance.random())


def message_s(luck: float) -> float:
    """One hop: to the message server, or from it; between hosts for the data plane."""
    return _MESSAGE_S * (0.5 + luck)


def piece_s(chance: random.Random) -> float:
    """Half a page over a link."""
    return _PIECE_S * (0.3 + chance.random())
