"""What things take in virtual time. Slower than life where that lets a fault strike between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from shared.engine.batch import StepItem
from shared.wire.workers import CostModel

TICK_S: Final = 0.25
GATEWAY_TICK_S: Final = 0.1
HEARTBEAT_S: Final = 0.5
LOST_AFTER_S: Final = 1.6
ANSWER_S: Final = 1.0
GRACE_S: Final = 1.0
FETCH_S: Final = 1.0
PULL_S: Final = 1.5
OFFER_SHARE: Final = 0.8
PAGES_S: Final = 600.0
NOTICE_S: Final = 4.0
RELEASE_S: Final = 2.0
KEEPALIVE_S: Final = 2.0
"""Until a host notices that a silent link is dead."""

MODEL: Final = CostModel(
    step_s=0.02, token_s=0.004, pair_s=1e-6, decode_step_s=0.024, decode_sequence_s=0.004
)
"""What workers report, and what a step takes."""

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
