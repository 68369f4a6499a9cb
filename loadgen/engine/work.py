"""What each engine is asked to do, and how its time is counted. Values only."""

from __future__ import annotations

from dataclasses import dataclass

PROMPT_TOKENS = 64
"""Of each sequence before decoding starts."""


@dataclass(frozen=True, slots=True)
class Work:
    """'decode': `batch` sequences take `tokens` steps each; 'prefill': one prompt of `tokens`."""

    kind: str
    batch: int
    tokens: int

    @property
    def name(self) -> str:
        if self.kind == "decode":
            return f"decode_b{self.batch}"
        return f"prefill_{self.tokens >> 10}k" if self.tokens >= 1024 else f"prefill_{self.tokens}"

    @property
    def counted(self) -> int:
        """Tokens whose time is measured."""
        return self.batch * self.tokens

    def fields(self, round_number: int) -> dict[str, object]:
        """As a contender's process reads it; each round has prompts of its own."""
        return {
            "kind": self.kind,
            "batch": self.batch,
            "tokens": self.tokens,
            "prompt_tokens": self.tokens if self.kind == "prefill" else PROMPT_TOKENS,
            "seed": round_number,
        }


FULL = (
    Work("decode", 1, 64),
    Work("decode", 8, 48),
    Work("decode", 32, 24),
    Work("prefill", 1, 1024),
    Work("prefill", 1, 4096),
)
QUICK = (
    Work("decode", 1, 12),
    Work("decode", 8, 6),
    Work("decode", 32, 4),
    Work("prefill", 1, 512),
)
