"""What must be refused: fast, with the error object naming the parameter, and with nothing sent."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.gateway.json_body import parse_object
from shared.errors import ClientError, Code
from tests.services.gateway.rig import MODEL, Rig, chat_body, rig

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made
        assert made.cluster.placed == [], "something was sent"
        assert not any(made.app.accounting().values())


def content(value: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": value}]}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", "invalid_parameter"),
    ({"model": ""}, "model", "invalid_parameter"),
    ({"model": 7}, "model", "invalid_parameter"),
    ({"messages": None}, "messages", "invalid_parameter"),
    ({"messages": []}, "messages", "invalid_parameter"),
    ({"messages": "hi"}, "messages", "invalid_parameter"),
    ({"messages": ["hi"]}, "messages[0]", "invalid_parameter"),
    ({"messages": USER * 2049}, "messages", "invalid_parameter"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_parameter"),
    ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role", "invalid_parameter"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "invalid_parameter"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_parameter"),
    (content(""), "messages[0].content", "invalid_parameter"),
    (content(5), "messages[0].content", "invalid_parameter"),
    (content([]), "messages[0].content", "invalid_parameter"),
    (content(["x"]), "messages[0].content[0]", "invalid_parameter"),
    (content([{"type": "text"}]), "messages[0].content[0].text", "invalid_parameter"),
    (
        content([{"type": "image_url", "image_url": {"url": "http://localhost"}}]),
        "messages[0].content[0]",
        "unsupported_parameter",
    ),
    (
        {"messages": [*USER, {"role": "tool", "content": "x", "tool_call_id": "a"}]},
        "messages[1].tool_call_id",
        "invalid_parameter",
    ),
    (
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "a"}]}]},
        "messages[0].tool_calls",
        "unsupported_parameter",
    ),
    ({"max_tokens": 0}, "max_tokens", "invalid_parameter"),
    ({"max_tokens": -1}, "max_tokens", "invalid_parameter"),
    ({"max_tokens": 1.0}, "max_tokens", "invalid_parameter"),
    ({"max_tokens": True}, "max_tokens", "invalid_parameter"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_parameter"),
    ({"max_tokens": 2**64 - 1}, "max_tokens", "invalid_parameter"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_parameter"),
    ({"max_tokens": 8192}, "max_tokens", "context_length_exceeded"),
    ({"max_completion_tokens": 9000}, "max_completion_tokens", "context_length_exceeded"),
    ({"temperature": -0.1}, "temperature", "invalid_parameter"),
    ({"temperature": 2.1}, "temperature", "invalid_parameter"),
    ({"temperature": 999999}, "temperature", "invalid_parameter"),
    ({"temperature": "hot"}, "temperature", "invalid_parameter"),
    ({"temperature": True}, "temperature", "invalid_parameter"),
    ({"top_p": 0}, "top_p", "invalid_parameter"),
    ({"top_p": -1}, "top_p", "invalid_parameter"),
    ({"top_p": 1.01}, "top_p", "invalid_parameter"),
    ({"seed": 1.5}, "seed", "invalid_parameter"),
    ({"seed": 2**63}, "seed", "invalid_parameter"),
    ({"seed": "x"}, "seed", "invalid_parameter"),
    ({"stop": ""}, "stop", "invalid_parameter"),
    ({"stop": ["a", ""]}, "stop", "invalid_parameter"),
    ({"stop": [1]}, "stop", "invalid_parameter"),
    ({"stop": ["a"] * 5}, "stop", "invalid_parameter"),
    ({"stop": "x" * 257}, "stop", "invalid_parameter"),
    ({"stop": {"a": 1}}, "stop", "invalid_parameter"),
    ({"stream": "true"}, "stream", "invalid_parameter"),
    ({"stream": 1}, "stream", "invalid_parameter"),
    ({"stream_options": {}}, "stream_options", "invalid_parameter"),
    ({"stream": True, "stream_options": 1}, "stream_options", "invalid_parameter"),
    (
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "invalid_parameter",
    ),
    ({"ignore_eos": "no"}, "ignore_eos", "invalid_parameter"),
    ({"n": 9}, "n", "invalid_parameter"),
    ({"n": 0}, "n", "invalid_parameter"),
    ({"n": True}, "n", "invalid_parameter"),
    ({"n": 2**63}, "n", "invalid_parameter"),
    ({"logprobs": 5}, "logprobs", "invalid_parameter"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_parameter"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_parameter"),
    ({"logit_bias": {"512": 5}}, "logit_bias", "invalid_parameter"),
    ({"frequency_penalty": 2.5}, "frequency_penalty", "invalid_parameter"),
    ({"top_k": -2}, "top_k", "invalid_parameter"),
    ({"min_tokens": 65}, "min_tokens", "invalid_parameter"),
    ({"tools": []}, "tools", "unsupported_parameter"),
    ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
    ({"kv_transfer_params": {}}, "kv_transfer_params", "forbidden_parameter"),
    ({"kv_transfer_params": None}, "kv_transfer_params", "forbidden_parameter"),
    ({"bootstrap_host": "x"}, "bootstrap_host", "forbidden_parameter"),
    ({"chat_template": "{{ x }}"}, "chat_template", "forbidden_parameter"),
    ({"prompt_embeds": "x"}, "prompt_embeds", "forbidden_parameter"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_wrong_field_is_named(gateway: Rig, stream: bool) -> None:
    for change, param, code in REFUSED:
        body = {"stream": True, **change} if stream and "stream_options" not in change else change
        status, answer, headers = await gateway.chat(**body)
        error = answer["error"]
        assert (status, error["param"], error["code"]) == (400, param, code), change
        assert error["type"] == "invalid_request_error" and error["message"]
        assert headers["x-baton-reason"] == code and headers["x-should-retry"] == "false"
        assert error["request_id"] == headers["x-baton-request-id"]


async def test_numbers_beyond_64_bits(gateway: Rig) -> None:
    for name in ("seed", "max_tokens"):
        body = orjson.dumps(chat_body())[:-1] + f',"{name}":-{2**70}}}'.encode()
        body = body.replace(b',"max_tokens":64', b"")
        status, answer, _ = await gateway.post("/v1/chat/completions", body)
        assert (status, answer["error"]["param"]) == (400, name)


PROMPTS: list[Any] = [None, "", [], 5, {}, [True], [1.5], [-1], [512], ["a", "b"], [[1], [2]], [""]]


async def test_wrong_prompts(gateway: Rig) -> None:
    for prompt in PROMPTS:
        ask = {"model": MODEL, "prompt": prompt}
        status, answer, _ = await gateway.post("/v1/completions", ask)
        assert (status, answer["error"]["param"]) == (400, "prompt"), prompt
    long = {"model": MODEL, "prompt": [1] * 8192}
    status, answer, _ = await gateway.post("/v1/completions", long)
    assert answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == "prompt"
    tight = {"model": MODEL, "prompt": [1] * 8190}
    status, answer, _ = await gateway.post("/v1/completions", tight)
    assert (answer["error"]["code"], answer["error"]["param"]) == (
        "context_length_exceeded",
        "prompt",
    )


async def test_neutral_values_pass(tmp_path: Path) -> None:
    neutral = {
        "n": 1,
        "logprobs": False,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "top_k": -1,
        "tools": None,
        "stop": None,
        "seed": None,
        "max_tokens": None,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "modalities": ["text"],
    }
    async with rig(tmp_path) as gateway:
        assert (await gateway.chat(**neutral))[0] == 200
        history = [
            {"role": "system", "content": ""},
            {"role": "developer", "content": [{"type": "text", "text": "be"}]},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": []},
            {"role": "user", "content": "b", "name": "me"},
        ]
        assert (await gateway.chat(messages=history))[0] == 200


NOT_JSON: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b"{'a': 1}",
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"temperature": 1e999}',
    b'{"a": 1,}',
    b'{"a": 1} x',
    b'\xef\xbb\xbf{"a": 1}',
    '{"a": 1}'.encode("utf-16"),
    b'{"model": "\xff"}',
    b'{"model": "\\ud800"}',
    b'{"model": "\\udc00\\ud800"}',
    b'{"model": "a\nb"}',
    b"[" * 100_000,
    b'{"a":' * 2000 + b"1" + b"}" * 2000,
    b'{"a":' * 40 + b"1" + b"}" * 40,
    b'{"model": "x", "model": "hashchain"}',
    b'{"messages": [{"role": "user", "role": "user", "content": "x"}]}',
    b'{"a": {"b": 1, "b" : 2}}',
    b'{"\\u0061": 1, "a": 2}',
    b'{"a": ":", "a": 1}',
    b'{"a:": 1, "a:": ":"}',
    b'{"a": "\\u003a", "a": 1}',
    b'{"b": {"a": 1, "a": 1}, "c": "\\u003A\\u003a"}',
]


async def test_what_is_no_strict_json(gateway: Rig) -> None:
    for body in NOT_JSON:
        status, answer, _ = await gateway.post("/v1/chat/completions", body)
        assert (status, answer["error"]["code"]) == (400, "invalid_json"), body[:60]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "b\\": \\"c", "d": ["x:", {"e": ":"}], "f\\\\": {}, "": 1}',
        '{"a":\t"x" , "b" \n:\r1, "c":"\\\\"}',
        '{"a": [["k", "v"], {"k": "k"}], "k": {"k": {"k": null}}}',
        '{"a:\\u003A": "::\\u003a:", ":": [":", {":": ":"}]}',
        '{"a": "\\\\u003a:"}',
    ],
)
def test_colons_and_quotes_inside_strings_are_no_keys(text: str) -> None:
    assert parse_object(text.encode()) == orjson.loads(text)


def test_a_valid_surrogate_pair_is_a_character() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_a_body_of_many_small_values_is_refused() -> None:
    with pytest.raises(ClientError) as caught:
        parse_object(b'{"prompt": [' + b"1," * 1_200_000 + b"1]}")
    assert caught.value.code is Code.INVALID_JSON


async def test_an_unknown_model(gateway: Rig) -> None:
    status, answer, _ = await gateway.chat(model="gpt-9")
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "gpt-9" not in error["message"]


async def test_the_context_error_names_all_numbers(gateway: Rig) -> None:
    _, answer, _ = await gateway.chat(max_tokens=9000)
    message = answer["error"]["message"]
    assert all(number in message for number in ("8192", "9000"))


async def test_huge_messages_are_refused_fast(gateway: Rig) -> None:
    for size in (100_000, 4_000_000, 8_000_000):
        began = time.monotonic()
        status, answer, _ = await gateway.chat(**content("a " * (size // 2)))
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert time.monotonic() - began < 2.0


async def test_strict_mode_refuses_what_would_be_ignored(gateway: Rig) -> None:
    status, answer, _ = await gateway.post(
        "/v1/chat/completions", chat_body(store=True), x_baton_strict="1"
    )
    assert (status, answer["error"]["param"]) == (400, "store")


@pytest.mark.parametrize("value", ["0", "-1", "x", "600001", "1.5", "9" * 30])
async def test_a_wrong_deadline_header(gateway: Rig, value: str) -> None:
    status, answer, _ = await gateway.post(
        "/v1/chat/completions", chat_body(), x_baton_deadline_ms=value
    )
    assert (status, answer["error"]["param"]) == (400, "x-baton-deadline-ms")


async def test_paths_and_methods_outside_the_table(gateway: Rig) -> None:
    for method, path, status, code in [
        ("GET", "/", 404, "not_offered"),
        ("POST", "/v1/embeddings", 404, "not_offered"),
        ("GET", "/v1/models/", 404, "not_offered"),
        ("GET", "/../etc/passwd", 404, "not_offered"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
    ]:
        async with gateway.http.request(method, gateway.url + path) as answer:
            body = await answer.json()
            assert (answer.status, body["error"]["code"]) == (status, code), path
            assert (status != 405) or answer.headers["Allow"]
