"""How rules see a request and the head of a reply: names for what ASGI has, parsed on first use and then kept.

Everything here reads as Starlette does, so that a rule finds what the app finds: cookies (all ``Cookie`` lines, the
last of a name wins), query (the last of a name wins), header (the first line wins).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from sessionworkers.affinity.documents import MISSING, decode

_ESCAPE = re.compile(r"\\(?:([0-3][0-7][0-7])|(.))")
_MANY_PARAMS = 256
"""Query values that are looked at; more make a query that names no session."""


def unquote_cookie(value: str) -> str:
    """Undo the quotes that Python's cookie jars put around base64 padding; as ``http.cookies`` does."""
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    return _ESCAPE.sub(lambda m: chr(int(m[1], 8)) if m[1] else m[2], value[1:-1])


def parse_cookies(line: str, into: dict[str, str]) -> None:
    """Add the cookies of one ``Cookie`` header line, as Starlette's ``cookie_parser`` reads it."""
    for chunk in line.split(";"):
        name, found, value = chunk.partition("=")
        if not found:
            name, value = "", chunk
        name, value = name.strip(), value.strip()
        if name or value:
            into[name] = unquote_cookie(value)


class RequestView:
    """One HTTP request or WebSocket handshake. ``body`` is None until somebody has read it whole."""

    __slots__ = (
        "_cookies",
        "_json",
        "_params",
        "_type",
        "body",
        "headers",
        "kind",
        "method",
        "path",
        "query",
        "root_path",
    )

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        query: bytes = b"",
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        kind: str = "http",
        root_path: str = "",
        body: bytes | None = None,
    ) -> None:
        self.kind = kind
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers if isinstance(headers, list) else list(headers)
        self.root_path = root_path
        self.body = body
        self._cookies: dict[str, str] | None = None
        self._params: dict[str, str] | None = None
        self._json: object = MISSING
        self._type: str | None = None

    @classmethod
    def from_scope(cls, scope: Mapping[str, Any]) -> RequestView:
        """The view of an ASGI ``http`` or ``websocket`` scope."""
        return cls(
            scope.get("method", "GET"),
            scope["path"],
            scope.get("query_string", b""),
            scope["headers"],
            kind=scope["type"],
            root_path=scope.get("root_path", ""),
        )

    def header(self, name: bytes) -> str | None:
        """The first line of that lower-case name, or None."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return None

    def header_values(self, name: bytes) -> list[str]:
        """All lines of that lower-case name."""
        return [value.decode("latin-1") for key, value in self.headers if key == name]

    @property
    def cookies(self) -> dict[str, str]:
        """All cookies by name; equals ``request.cookies`` in Starlette."""
        if self._cookies is None:
            self._cookies = {}
            for name, value in self.headers:
                if name == b"cookie":
                    parse_cookies(value.decode("latin-1"), self._cookies)
        return self._cookies

    @property
    def params(self) -> dict[str, str]:
        """Query values by name, the last of a name wins; equals ``request.query_params`` in Starlette."""
        if self._params is None:
            self._params = dict(self.param_list())
        return self._params

    def param_list(self) -> list[tuple[str, str]]:
        """All query values in order; empty for a query with more than 256 of them."""
        if not self.query or self.query.count(b"&") >= _MANY_PARAMS:
            return []
        return parse_qsl(self.query.decode("latin-1"), keep_blank_values=True)

    @property
    def json(self) -> object:
        """The parsed body, or None if it is unread, no JSON or too deep. Of a repeated key the last one is seen."""
        if self._json is MISSING:
            if self.body is None:
                return None
            self._json = decode(self.body)
        return None if self._json is MISSING else self._json

    @property
    def content_type(self) -> str:
        """Lower case, without parameters; empty if absent."""
        if self._type is None:
            self._type = media_type((self.header(b"content-type") or "").encode("latin-1"))
        return self._type

    @property
    def route_path(self) -> str:
        """The path without ``root_path``, however the server wrote it (ASGI has it inside, some servers do not)."""
        root = self.root_path
        if root and self.path.startswith(root) and self.path[len(root) : len(root) + 1] in ("/", ""):
            return self.path[len(root) :] or "/"
        return self.path


@lru_cache(maxsize=256)
def media_type(value: bytes) -> str:
    """``Content-Type`` in lower case, without parameters."""
    return value.partition(b";")[0].strip().lower().decode("latin-1")


@lru_cache(maxsize=256)
def kind_of(value: bytes) -> str:
    """What a body of that ``Content-Type`` is to learners: ``json``, ``events``, ``text``, ``html`` or ``other``."""
    kind = media_type(value)
    if kind == "application/json" or kind.endswith(("+json", "/json")):
        return "json"
    return _KINDS.get(kind, "other")


_KINDS = {
    "text/event-stream": "events",
    "text/plain": "text",
    "application/octet-stream": "text",
    "text/html": "html",
    "application/xhtml+xml": "html",
}


class ReplyView:
    """The head of a reply; a WebSocket's accepted handshake has status 101."""

    __slots__ = ("_first", "headers", "status")

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.status = status
        self.headers = headers if isinstance(headers, list) else [(bytes(n), bytes(v)) for n, v in headers]
        self._first: dict[bytes, bytes] | None = None

    def raw(self, name: bytes) -> bytes | None:
        """The first line of that lower-case name, or None. Apps may write names in any case."""
        if self._first is None:
            self._first = {key.lower(): value for key, value in reversed(self.headers)}
        return self._first.get(name)

    def header(self, name: bytes) -> str | None:
        """As `raw`, decoded."""
        value = self.raw(name)
        return None if value is None else value.decode("latin-1")

    @property
    def content_type(self) -> str:
        """Lower case, without parameters; empty if absent."""
        return media_type(self.raw(b"content-type") or b"")

    @property
    def kind(self) -> str:
        """See `kind_of`."""
        return kind_of(self.raw(b"content-type") or b"")

    @property
    def set_cookies(self) -> list[tuple[str, str]]:
        """Name and unquoted value of every cookie that is set; deletions are left out."""
        return [(name, value) for name, value, _ in self.cookie_lines()]

    def cookie_lines(self) -> list[tuple[str, str, str]]:
        """As ``set_cookies``, with the attributes in lower case as third."""
        lines = []
        for key, raw in self.headers:
            if len(key) == 10 and key.lower() == b"set-cookie":
                pair, _, attributes = raw.decode("latin-1").partition(";")
                name, found, value = pair.partition("=")
                attributes = attributes.lower()
                value = unquote_cookie(value.strip())
                if found and value and value != "null" and not _deletes(attributes):
                    lines.append((name.strip(), value, attributes))
        return lines

    @property
    def vary_cookie(self) -> bool:
        """True if the reply says that it depends on the request's cookies: Starlette's sign of a session looked at."""
        return any(key.lower() == b"vary" and b"cookie" in value.lower() for key, value in self.headers)


def _deletes(attributes: str) -> bool:
    """``Max-Age`` of 0 or less, or an expiry in 1970 (Starlette and Werkzeug clear cookies so)."""
    for attribute in attributes.split(";"):
        name, _, value = attribute.strip().partition("=")
        value = value.strip().strip('"')
        if (name == "max-age" and (value == "0" or value.startswith("-"))) or (
            name == "expires" and " 1970 " in value.replace("-", " ")
        ):
            return True
    return False
