"""Log-probabilities that the scripted workers tell."""

from __future__ import annotations

from collections.abc import Sequence

from shared.wire.sampling import TokenLogprobs


def logprobs(part: Sequence[int], count: int | None) -> tuple[TokenLogprobs, ...]:
    """A token's own id says how likely it was; its successors follow."""
    if count is None:
        return ()
    return tuple(
        TokenLogprobs(
            -token / 64,
            tuple(range(token, token + count)),
            tuple(-token / 64 - at for at in range(count)),
        )
        for token in part
    )
