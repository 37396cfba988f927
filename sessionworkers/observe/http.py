"""The control sockets' HTTP, without I/O: one small request a connection, one JSON reply.

Enough for our own commands and for ``curl --unix-socket``: no chunked bodies, no continuation lines, no pipelining. The
paths begin with the version, ``/v1``; a path of a later version is 404 here, which a client can tell from a failure.
"""

from __future__ import annotations

import http
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

MAX_HEAD = 16_384
MAX_BODY = 65_536
VERSION = 1


class BadRequest(Exception):
    """What came is no request of this kind; ``status`` says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Request:
    """``body``: the JSON object that was sent, or {}."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)


class Exchange:
    """Takes bytes until the request is whole."""

    __slots__ = ("_data", "_length", "_start")

    def __init__(self) -> None:
        self._data = b""
        self._start: int | None = None
        self._length = 0

    def feed(self, data: bytes) -> Request | None:
        """The request once it is whole. Raises `BadRequest`."""
        self._data += data
        if self._start is None:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > MAX_HEAD:
                    raise BadRequest(431, "the head is too large")
                return None
            self._start = end + 4
            self._length = _length(self._data[:end])
        if len(self._data) < self._start + self._length:
            return None
        return _parse(self._data[: self._start - 4], self._data[self._start : self._start + self._length])


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"transfer-encoding":
            raise BadRequest(411, "a body needs a Content-Length")
        if name.strip().lower() == b"content-length":
            if not value.strip().isdigit():
                raise BadRequest(400, "the Content-Length is not a number")
            if int(value) > MAX_BODY:
                raise BadRequest(413, "the body is too large")
            return int(value)
    return 0


def _parse(head: bytes, body: bytes) -> Request:
    words = head.split(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400, "not an HTTP request")
    target = urlsplit(words[1])
    try:
        found = json.loads(body) if body else {}
    except ValueError:
        raise BadRequest(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise BadRequest(400, "the body is not a JSON object")
    return Request(words[0], target.path, dict(parse_qsl(target.query)), found)


def reply(status: int, value: dict[str, Any]) -> bytes:
    """A whole reply. The connection ends with it."""
    body = json.dumps(value).encode() + b"\n"
    phrase = http.HTTPStatus(status).phrase
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nconnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


def refusal(error: BadRequest) -> bytes:
    """The reply to what is no request."""
    return reply(error.status, {"error": str(error)})
