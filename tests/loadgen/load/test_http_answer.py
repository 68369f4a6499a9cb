"""HTTP as it may be cut: every answer byte by byte is the same answer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from loadgen.load.http_answer import HttpAnswer, NotHttpError

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n"
    b"3;note=x\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: y\r\n\r\n"
)
COUNTED = b"HTTP/1.1 503 No\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"
CLOSED = b"HTTP/1.0 200 OK\r\n\r\nuntil the end"


class Heard:
    def __init__(self) -> None:
        self.heads: list[tuple[int, dict[str, str]]] = []
        self.body = b""
        self.answer = HttpAnswer(self._head, self._body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.heads.append((status, dict(headers)))

    def _body(self, piece: bytes) -> None:
        self.body += piece


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize(
    ("content", "status", "body", "keeps"),
    [(CHUNKED, 200, b"abc0123456789", True), (COUNTED, 503, b"busy", False)],
)
def test_pieces_of_any_size(
    step: int, content: bytes, status: int, body: bytes, keeps: bool
) -> None:
    heard = Heard()
    for begin in range(0, len(content), step):
        assert not heard.answer.whole
        heard.answer.feed(content[begin : begin + step])
    assert heard.answer.whole and heard.body == body
    assert [head[0] for head in heard.heads] == [status] and heard.answer.keep_alive is keeps


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    heard = Heard()
    heard.answer.feed(CLOSED)
    assert not heard.answer.whole and heard.answer.end()
    assert heard.body == b"until the end" and not heard.answer.keep_alive


def test_a_counted_body_that_is_cut_is_not_whole() -> None:
    heard = Heard()
    heard.answer.feed(COUNTED[:-1])
    assert not heard.answer.end()


@pytest.mark.parametrize(
    "content",
    [
        b"SSH-2.0-x\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    ],
)
def test_what_is_not_http(content: bytes) -> None:
    with pytest.raises(NotHttpError):
        Heard().answer.feed(content)
