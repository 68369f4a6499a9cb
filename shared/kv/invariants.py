"""The error of a broken rule inside our own code, never of what a peer or client sent."""

from __future__ import annotations


class InvariantError(AssertionError):
    """A caller broke the rules of an owner, or an owner's own state contradicts itself."""


def require(condition: bool, story: str, *parts: object) -> None:
    """Raise InvariantError unless the condition holds. `parts` are shown after the story; they
    cost nothing while it holds."""
    if not condition:
        raise InvariantError(": ".join((story, *map(repr, parts))))
