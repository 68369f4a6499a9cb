"""The text side of the served model: prompts to token ids, in a small thread pool.

Text that looks like a control token inside a message never becomes one; all other text gets
exactly the ids of the tokenizer library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tokenizers import Tokenizer

from services.gateway.chat_template import ChatMessage, ChatTemplate, Segment, control_pattern
from services.gateway.logprobs import Spellings
from services.gateway.vocabulary import Detokeniser, token_bytes
from shared.checkpoint import Checkpoint
from shared.errors import ClientError, Code, RefusedError

T = TypeVar("T")

THREADS: Final = 2
MAX_WAITING: Final = 256
SMALL_CHARS: Final = 512
SMALL_MESSAGES: Final = 8
"""A prompt of at most so much is read in less time than another thread takes to wake up."""
_SAMPLE_CHARS_PER_TOKEN: Final = 8
_SLACK_TOKENS: Final = 256
_MAX_CHARS_PER_TOKEN: Final = 512


class Text:
    """Tokenises for one gateway. Its results are values; nothing is kept between requests."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.context_tokens = checkpoint.spec.context
        self.vocabulary_tokens = checkpoint.spec.vocab
        self._raw = checkpoint.text.build()
        self._plain = checkpoint.text.build()
        self._plain.encode_special_tokens = True
        self._bos = (checkpoint.bos_id,) if checkpoint.text.add_bos else ()
        self._control_ids = dict(checkpoint.special_tokens)
        self._control = control_pattern(tuple(self._control_ids))
        self._tokens = token_bytes(self._raw, checkpoint.special_tokens)
        self.spellings = Spellings(self._tokens.table, checkpoint.special_tokens)
        names = {"bos_token": checkpoint.bos_token, "eos_token": checkpoint.eos_token}
        source = checkpoint.chat_template
        control = tuple(self._control_ids)
        self._template = ChatTemplate(source, control, names) if source else None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gateway-text")
        self._bulk = ThreadPoolExecutor(1, thread_name_prefix="gateway-bulk")
        self._waiting = 0

    def detokeniser(self) -> Detokeniser:
        return Detokeniser(self._tokens)

    async def chat(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """The prompt of a conversation. Raises ClientError, RefusedError."""
        characters = sum(len(message.content) for message in messages)
        if characters <= SMALL_CHARS and len(messages) <= SMALL_MESSAGES:
            return self.chat_now(messages)
        return await self.run(lambda: self.chat_now(messages))

    async def plain(self, prompt: str) -> tuple[int, ...]:
        """The prompt of a completion: control tokens in it are meant. Raises ClientError."""
        if len(prompt) <= SMALL_CHARS:
            return self.plain_now(prompt)
        return await self.run(lambda: self.plain_now(prompt))

    async def run(self, work: Callable[[], T], *, bulk: bool = False) -> T:
        """Do CPU work in the pool; beyond a bounded number of waiting jobs it is refused. `bulk`
        is for work that lets nobody else run for long moments: one at a time."""
        if self._waiting >= MAX_WAITING:
            raise RefusedError("too many prompts are being read", Code.QUEUE_FULL, 1.0)
        self._waiting += 1
        try:
            threads = self._bulk if bulk else self._threads
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        finally:
            self._waiting -= 1

    def chat_now(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """As `chat`, in the calling thread."""
        if self._template is None:
            message = "the model has no chat template; use /v1/completions"
            raise ClientError(message, Code.UNSUPPORTED_PARAMETER, "messages")
        characters = sum(len(message.content) for message in messages)
        self._refuse_length("messages", characters)
        limit_chars = self.context_tokens * _MAX_CHARS_PER_TOKEN
        segments = self._template.render(messages, limit_chars)
        whole = "".join(segment.text for segment in segments)
        self._refuse_sample("messages", self._plain, whole)
        own = sum(self._count(part.text) for part in segments if not part.from_message)
        if self._count(whole) == own:
            return self._ids(self._raw, whole)
        return self._apart(segments)

    def plain_now(self, prompt: str) -> tuple[int, ...]:
        """As `plain`, in the calling thread."""
        self._refuse_length("prompt", len(prompt))
        self._refuse_sample("prompt", self._raw, prompt)
        ids = self._ids(self._raw, prompt)
        bos = tuple(id_ for id_ in self._bos if id_ is not None)
        return ids if ids[: len(bos)] == bos else bos + ids

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._bulk.shutdown(wait=False, cancel_futures=True)

    def _ids(self, tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
        """As a batch of one: the library lets other threads run during batches only, so that a
        long prompt does not hold up every stream."""
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return tuple(encoding.ids)

    def _count(self, text: str) -> int:
        return sum(1 for _ in self._control.finditer(text))

    def _apart(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """Control tokens are looked for in the template's own words alone; the text between two
        of them is encoded as one piece that knows no control tokens."""
        ids: list[int] = []
        plain = ""
        for segment in segments:
            text, start = segment.text, 0
            found = () if segment.from_message else tuple(self._control.finditer(text))
            for match in found:
                plain += text[start : match.start()]
                ids += self._ids(self._plain, plain)
                ids.append(self._control_ids[match[0]])
                plain, start = "", match.end()
            plain += text[start:]
        ids += self._ids(self._plain, plain)
        return tuple(ids)

    def _refuse_length(self, param: str, characters: int) -> None:
        """More characters than the longest tokens could cover: refused unread."""
        if characters > self.context_tokens * _MAX_CHARS_PER_TOKEN:
            raise self._too_long(param, characters // _MAX_CHARS_PER_TOKEN)

    def _refuse_sample(self, param: str, tokenizer: Tokenizer, text: str) -> None:
        """Read the beginning of a long text first: it alone usually proves the excess."""
        size = self.context_tokens * _SAMPLE_CHARS_PER_TOKEN
        while len(text) > size:
            tokens = len(self._ids(tokenizer, text[:size]))
            if tokens > self.context_tokens + _SLACK_TOKENS:
                raise self._too_long(param, tokens)
            size *= 4

    def _too_long(self, param: str, tokens: int) -> ClientError:
        message = f"the context is {self.context_tokens} tokens; the prompt has at least {tokens}"
        return ClientError(message, Code.CONTEXT_LENGTH_EXCEEDED, param)
