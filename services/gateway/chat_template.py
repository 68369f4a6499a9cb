"""Renders the model's chat template and turns the result into token ids.

The template comes from the operator's model folder and runs in an immutable sandbox. Control
tokens come from the template's own text only: what a message says stays plain text.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import jinja2
import orjson
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import ClientError, Code, StartupError

RENDER_LIMIT_S: Final = 2.0
_RENDER_ERRORS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
)
"""What a template raises over input it was not written for."""
REFUSED: Final = "the model's chat template refuses this sequence of messages"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message, its text parts already joined."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of rendered text: the template's own words, or a message's."""

    text: str
    from_message: bool


class ChatTemplate:
    """A compiled template. `control` are the texts of the control tokens."""

    def __init__(self, source: str, control: Sequence[str], tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise StartupError(f"the model's chat template cannot be read: {error}") from error
        self._control = control_pattern(control)
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[ChatMessage], limit_chars: int) -> list[Segment]:
        """The prompt as segments. Raises ClientError: refused by the template, too long, too
        slow, or a message imitates control tokens where the template rewrites messages."""
        plain = self._run([message.content for message in messages], messages, limit_chars)
        open_mark, close_mark = f"q{secrets.token_hex(8)}o", f"q{secrets.token_hex(8)}c"
        marked = [_mark(message.content, open_mark, close_mark) for message in messages]
        marks_chars = len(messages) * (len(open_mark) + len(close_mark))
        room_chars = limit_chars + 16 * marks_chars
        segments = _split(self._run(marked, messages, room_chars), open_mark, close_mark)
        if segments is not None and "".join(part.text for part in segments) == plain:
            return segments
        if any(self._control.search(message.content) for message in messages):
            raise ClientError("a message holds the text of a control token", param="messages")
        return [Segment(plain, False)]

    def _run(
        self, contents: Sequence[str], messages: Sequence[ChatMessage], limit_chars: int
    ) -> str:
        rendered: list[str] = []
        size, end_s = 0, time.monotonic() + RENDER_LIMIT_S
        turns = [
            {"role": message.role, "content": content}
            for message, content in zip(messages, contents, strict=True)
        ]
        try:
            for piece in self._template.generate(
                messages=turns, add_generation_prompt=True, tools=None, **self._tokens
            ):
                rendered.append(piece)
                size += len(piece)
                if size > limit_chars or time.monotonic() > end_s:
                    message, code = "messages are too long", Code.CONTEXT_LENGTH_EXCEEDED
                    raise ClientError(message, code, "messages")
        except _RENDER_ERRORS:
            raise ClientError(REFUSED, param="messages") from None
        return "".join(rendered)


def control_pattern(control: Sequence[str]) -> re.Pattern[str]:
    """Matches any control token's text, the longest first; never matches if there are none."""
    texts = sorted(control, key=len, reverse=True)
    return re.compile("|".join(re.escape(text) for text in texts) or r"(?!)")


def _mark(content: str, open_mark: str, close_mark: str) -> str:
    """Marks go inside the outer white space, so that a template may still trim it."""
    core = content.strip()
    if not core:
        return content
    start = content.index(core)
    return content[:start] + open_mark + core + close_mark + content[start + len(core) :]


def _split(marked: str, open_mark: str, close_mark: str) -> list[Segment] | None:
    """Segments of a marked rendering; None when the template took the marks apart."""
    first, *pieces = marked.split(open_mark)
    if close_mark in first:
        return None
    segments = [Segment(first, False)]
    for piece in pieces:
        inside, closed, after = piece.partition(close_mark)
        if not closed or close_mark in after:
            return None
        segments += [Segment(inside, True), Segment(after, False)]
    return segments


def _to_json(value: object, indent: int | None = None) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
