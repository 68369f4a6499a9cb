"""A model that can be served: its shape, its text side and, read only on demand, its weights.

Opening one reads headers and vocabulary, never tensors. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer

from shared.checkpoint.spec import ModelSpec
from shared.checkpoint.tensors import TensorSource
from shared.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSide:
    """Everything about turning text into token ids and back."""

    build: Callable[[], Tokenizer]
    digest: str
    """Of vocabulary, merges, special tokens and template: part of every cache key."""
    chat_template: str
    """Jinja source; empty if the model brings none."""
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special_tokens: Mapping[str, int]
    """Control tokens by text: the ones that content must never become."""
    add_bos: bool
    """A plain completion prompt starts with BOS (chat templates write their own)."""


class Checkpoint:
    """An opened model. Cheap to hold; `digest` and `tokenizer()` are computed once."""

    def __init__(
        self,
        *,
        name: str,
        backend: str,
        spec: ModelSpec,
        text: TextSide,
        tensors: TensorSource,
        fingerprint: Callable[[], str],
        path: str = "",
    ) -> None:
        self.name = name
        self.path = path
        """What `open_checkpoint` was given, where another process can open it too."""
        self.backend = backend
        """The engine that runs it: 'torch' or 'hashchain'."""
        self.spec = spec
        self.text = text
        self.tensors = tensors
        self._fingerprint = fingerprint

    @cached_property
    def digest(self) -> str:
        """64 hex characters naming the content of the weights and configuration."""
        return self._fingerprint()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        try:
            return self.text.build()
        except CheckpointError as error:
            raise CheckpointError(f"{self.path or self.name}: {error.message}") from error

    def tokenizer(self) -> Tokenizer:
        """The one shared tokenizer of this checkpoint. Raises CheckpointError."""
        return self._tokenizer

    @property
    def tokenizer_digest(self) -> str:
        return self.text.digest

    @property
    def chat_template(self) -> str:
        return self.text.chat_template

    @property
    def bos_id(self) -> int | None:
        return self.text.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.text.eos_ids

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self.text.special_tokens

    @property
    def bos_token(self) -> str:
        """Text of the BOS token for templates; empty if there is none."""
        return self._special_text(self.bos_id)

    @property
    def eos_token(self) -> str:
        """Text of the first EOS token for templates; empty if there is none."""
        return self._special_text(self.eos_ids[0] if self.eos_ids else None)

    def _special_text(self, wanted: int | None) -> str:
        return next((text for text, id_ in self.special_tokens.items() if id_ == wanted), "")
