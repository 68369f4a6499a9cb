"""The four classes of request parameters: honoured, unsupported, internal, and the rest.

An unsupported one may be present with the value that changes nothing; an internal one never;
the rest is accepted, changes nothing and is named in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from services.gateway.fields import Body, refuse
from shared.errors import Code

MAX_IGNORED: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")

HONOURED: Final = frozenset(
    {
        "model",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "min_tokens",
        "stream",
        "stream_options",
        "n",
        "logprobs",
        "ignore_eos",
        "return_token_ids",
        "priority",
        "service_tier",
        "prompt_cache_key",
        "session_id",
        "nvext",
    }
)
CHAT: Final = HONOURED | {"messages", "max_completion_tokens", "top_logprobs"}
COMPLETIONS: Final = HONOURED | {"prompt", "max_completion_tokens"}

NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "top_logprobs": (0,),
    "typical_p": (1,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "tools": (),
    "tool_choice": ("none",),
    "functions": (),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "grammar": (),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "documents": ([],),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (True,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "return_tokens_as_token_ids": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "lora": (),
}
"""Could change the answer, and is not built: only these values (or null) pass."""

INTERNAL: Final = frozenset(
    {
        "kv_transfer_params",
        "prompt_embeds",
        "chat_template",
        "data_parallel_rank",
        "dp_rank",
        "disagg_prefill_dp_rank",
        "disaggregated_params",
        "worker_id",
        "prefill_worker",
        "decode_worker",
        "kv_hints",
        "return_hidden_states",
    }
)
_INTERNAL_START: Final = ("bootstrap_",)


def check(body: Body, honoured: frozenset[str], strict: bool) -> tuple[str, ...]:
    """Names that were accepted and ignored. Raises ClientError for the other two classes; with
    `strict` also for what would be ignored."""
    ignored: list[str] = []
    for name, value in body.items():
        if name in honoured:
            continue
        if name in INTERNAL or name.startswith(_INTERNAL_START):
            shown = name if _NAME.match(name) else _INTERNAL_START[0]
            refuse(shown, "cannot be set by a request", Code.FORBIDDEN_PARAMETER)
        if name in NEUTRAL:
            _require_neutral(name, value)
        elif value is not None:
            ignored.append(name)
    if strict and ignored:
        shown = next((name for name in ignored if _NAME.match(name)), "unknown")
        refuse(shown, "is not known (x-baton-strict)", Code.UNSUPPORTED_PARAMETER)
    return tuple(name for name in ignored if _NAME.match(name))[:MAX_IGNORED]


def _require_neutral(name: str, value: object) -> None:
    if value is None or any(_same(value, neutral) for neutral in NEUTRAL[name]):
        return
    refuse(name, "is not supported with this value", Code.UNSUPPORTED_PARAMETER)


def _same(value: object, neutral: object) -> bool:
    """Equal in JSON's eyes: 1.0 is 1, but true is not 1."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return value == neutral
