"""What is sent: prompts of a chosen length of which a chosen share is a common prefix.

Words are drawn from a fixed vocabulary of short English words, close to one token each; what
the server really counted is read from its usage, never assumed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

WORDS: Final = """
the of and to in is that it was for on are as with his they at be this from have or by one
had not but what all were when we there can an your which their said if do will each about
how up out them then she many some so these would other into has more her two like him see
time could no make than first been its who now people my made over did down only way find use
may water long little very after words called just where most know
"""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """`words` per prompt, of which `shared` belong to one of `groups` common prefixes."""

    words: int
    shared: int
    groups: int
    seed: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message and the group whose prefix it starts with."""

    text: str
    group: int
    max_tokens: int = 0
    """Of its answer; 0: what is asked of all."""


def build(plan: PromptPlan, count: int) -> list[Prompt]:
    """`count` prompts. The same plan gives the same texts."""
    if not 0 <= plan.shared <= plan.words or plan.groups < 1 or plan.words < 1:
        raise ValueError("shared words must be between 0 and the words of a prompt")
    prefixes = [
        _draw(random.Random(f"prefix:{plan.seed}:{group}"), plan.shared)
        for group in range(plan.groups)
    ]
    prompts = []
    for number in range(count):
        chance = random.Random(f"prompt:{plan.seed}:{number}")
        group = chance.randrange(plan.groups)
        own = _draw(chance, plan.words - plan.shared)
        prompts.append(Prompt(" ".join(prefixes[group] + own), group))
    return prompts


def _draw(chance: random.Random, words: int) -> list[str]:
    vocabulary = WORDS.split()
    return [chance.choice(vocabulary) for _ in range(words)]
