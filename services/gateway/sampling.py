"""The fields of a body that say how tokens are chosen: exact types, closed ranges, one value.

Everything that passes here is in the range that engines accept.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
from dataclasses import replace
from typing import Final

from services.gateway import fields
from services.gateway.fields import Body, refuse
from shared.wire.sampling import Sampling

MAX_CHOICES: Final = 8
MAX_LOGPROBS: Final = 20
MAX_BIASES: Final = 300
MAX_BIAS: Final = 100.0
MAX_STOP_TOKENS: Final = 16
MAX_TOKENS_FIELD: Final = 2**31 - 1
_SEED_LIMIT: Final = 2**63
_TOKEN: Final = re.compile(r"(?:0|[1-9][0-9]{0,9})\Z")
_CHOICE: Final = b"baton-choice"


def read_sampling(body: Body, vocabulary_tokens: int, *, chat: bool) -> Sampling:
    """The first choice's sampling; its token limit is not known yet (0). Raises ClientError naming
    the first field that is wrong."""
    seed = fields.integer(body, "seed", -_SEED_LIMIT, _SEED_LIMIT - 1)
    bias_ids, biases = _biases(body, vocabulary_tokens)
    return Sampling(
        temperature=fields.number(body, "temperature", 0, 2, 1.0),
        top_p=fields.number(body, "top_p", 0, 1, 1.0, above=True),
        seed=secrets.randbits(63) if seed is None else seed,
        max_tokens=0,
        stop_token_ids=_stop_tokens(body, vocabulary_tokens),
        ignore_eos=fields.boolean(body, "ignore_eos"),
        min_tokens=fields.integer(body, "min_tokens", 0, MAX_TOKENS_FIELD) or 0,
        top_k=max(0, fields.integer(body, "top_k", -1, vocabulary_tokens) or 0),
        min_p=fields.number(body, "min_p", 0, 1, 0.0),
        repetition_penalty=fields.number(body, "repetition_penalty", 0, 2, 1.0, above=True),
        presence_penalty=fields.number(body, "presence_penalty", -2, 2, 0.0),
        frequency_penalty=fields.number(body, "frequency_penalty", -2, 2, 0.0),
        bias_ids=bias_ids,
        biases=biases,
        logprobs=_chat_logprobs(body) if chat else _completion_logprobs(body),
    )


def sampling_of_choice(
    first: Sampling, choice: int, max_tokens: int, eos_ids: tuple[int, ...]
) -> Sampling:
    """What the workers are told for one choice: the limit, the model's own end, a seed of its
    own. Choice 0 keeps the request's seed, so that it is the answer to the same request with
    n = 1."""
    ends = first.stop_token_ids
    if not first.ignore_eos:
        ends += tuple(token for token in eos_ids if token not in ends)
    return replace(
        first, seed=_seed(first.seed, choice), max_tokens=max_tokens, stop_token_ids=ends
    )


def _seed(seed: int, choice: int) -> int:
    if choice == 0:
        return seed
    packed = struct.pack("<QI", seed % (1 << 64), choice)
    digest = hashlib.blake2b(packed, digest_size=8, key=_CHOICE).digest()
    return int.from_bytes(digest, "little", signed=True)


def _chat_logprobs(body: Body) -> int | None:
    count = fields.integer(body, "top_logprobs", 0, MAX_LOGPROBS)
    if fields.boolean(body, "logprobs"):
        return count or 0
    if count:
        refuse("top_logprobs", "needs 'logprobs': true")
    return None


def _completion_logprobs(body: Body) -> int | None:
    if body.get("logprobs") is False:
        return None
    return fields.integer(body, "logprobs", 0, MAX_LOGPROBS)


def _stop_tokens(body: Body, vocabulary_tokens: int) -> tuple[int, ...]:
    value = body.get("stop_token_ids")
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_STOP_TOKENS:
        refuse("stop_token_ids", f"must be a list of at most {MAX_STOP_TOKENS} token ids")
    for entry in value:
        if type(entry) is not int or not 0 <= entry < vocabulary_tokens:
            rule = f"must hold token ids from 0 to {vocabulary_tokens - 1}"
            refuse("stop_token_ids", rule)
    return tuple(dict.fromkeys(value))


def _biases(body: Body, vocabulary_tokens: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """`logit_bias`: token ids, written as JSON's keys must be, to numbers."""
    value = body.get("logit_bias")
    if value is None:
        return (), ()
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        refuse("logit_bias", f"must be an object with at most {MAX_BIASES} token ids")
    ids, biases = [], []
    for key, bias in value.items():
        if not _TOKEN.match(key) or int(key) >= vocabulary_tokens:
            refuse("logit_bias", f"must have token ids from 0 to {vocabulary_tokens - 1} as keys")
        if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
            refuse("logit_bias", f"must hold numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}")
        ids.append(int(key))
        biases.append(float(bias))
    return tuple(ids), tuple(biases)
