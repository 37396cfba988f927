"""Requests that were parsed before: a client sends the same head again and again, and the same bytes mean the same.

A packet that is one whole request, read between two requests, is looked up by its bytes before it is parsed: as a
whole, and else by all of its head but the first line, since the next request of a client often differs in that alone.
What is kept comes from the parser, at the second sight, so that heads which never come again cost a few look-ups and
are not held. Nothing is kept whose meaning depends on more than its bytes: upgrades, ``Expect``, chunked bodies,
anything but HTTP/1.1, and connections that are to be closed. Of requests with a body only POSTs are looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from sessionworkers.affinity.recall import UNKNOWN, Key
from sessionworkers.hop.codec import WINDOW, packed_fields, packed_line
from sessionworkers.hosts.cycle import KnownCycle, Told, direct, take
from sessionworkers.hosts.marks import Marks, put

Passes = Callable[[Mapping[str, Any]], bool]
"""What the router's app says of a scope: nothing in front of the router will act on it."""

MOST: Final = 2_048
"""Of each kind kept; when they are as many all are forgotten: some 4 MB at the most."""
LONGEST: Final = 1_024
"""Longer heads are not kept, bytes."""
MOST_BODY: Final = WINDOW
"""A longer body is for the parser, bytes: what is here goes to another worker without waiting for credit."""

_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_LINE: Final = re.compile(
    rb"(GET|POST|HEAD|PUT|DELETE|PATCH|OPTIONS) "
    rb"(/(?:[A-Za-z0-9._~!$&'()*+,;=:@%-][A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?)"
    rb"(?:\?([A-Za-z0-9._~!$&'()*+,;=:@%/-]*))? HTTP/1\.1"
).fullmatch
"""A first line that needs no parser: the characters that RFC 3986 has for a path and a query, and no more than one
question mark. A path that begins with two slashes is left to the parser, too."""
_MORE: Final = (b"transfer-encoding", b"expect", b"upgrade")
_EVENTS: Final = b"text/event-stream"


class Fields:
    """A request's head without its first line, parsed. ``length``: of the body that follows; 0 if there is none.

    ``key`` is what `affinity.recall.Recall.key` says of them, without the line; None where nothing is recalled.
    ``direct``: no proxy has written into them. ``events``: nothing but server-sent events is taken.
    """

    __slots__ = ("direct", "events", "headers", "key", "length", "packed")

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], length: int, key: Key | None) -> None:
        self.headers = tuple(headers)
        self.length = length
        self.key = None if key is None else key[3:]
        self.direct = direct({"headers": headers})
        self.events = takes_only_events(headers)
        self.packed: bytes | None = None


class Head:
    """A request's head, parsed. ``key``, ``found`` and ``revision`` are `affinity.recall.Kept`'s; ``line`` is the
    length of the first line in what `pack` gives; ``direct``: the router may have it without the layers in front."""

    __slots__ = (
        "direct", "events", "fields", "found", "key", "line", "method", "packed", "path", "query", "raw_path",
        "revision",
    )  # fmt: skip

    def __init__(self, method: str, path: str, raw_path: bytes, query: bytes, fields: Fields) -> None:
        self.method = method
        self.path = path
        self.raw_path = raw_path
        self.query = query
        self.fields = fields
        self.key: Key | None = None if fields.key is None else (method, path, query, *fields.key)
        self.found: Any = UNKNOWN
        self.revision = 0
        self.direct = fields.direct
        self.events = fields.events and method == "GET"
        self.packed: bytes | None = None
        self.line = 0

    def pack(self) -> bytes:
        """Its part of a raw frame."""
        packed = self.packed
        if packed is None:
            fields = self.fields
            rest = fields.packed
            if rest is None:
                rest = fields.packed = packed_fields(fields.headers)
            line = packed_line(self.method, self.path, self.raw_path, self.query)
            self.line = len(line)
            packed = self.packed = line + rest
        return packed


def only_events(scope: Mapping[str, Any]) -> bool:
    """A GET that takes nothing but server-sent events. (Every MCP POST takes them too.)"""
    return scope["method"] == "GET" and takes_only_events(scope["headers"])


def takes_only_events(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    accepts = b""
    for name, value in headers:
        if name == b"accept":
            if accepts:
                return False
            accepts = value
    return len(accepts) >= len(_EVENTS) and accepts.strip().lower() == _EVENTS


class Heads:
    """The heads of one worker."""

    __slots__ = ("_bodied", "_bodiless", "_fields", "_marks", "_passes", "_root", "_root_bytes", "get")

    def __init__(self, root_path: str = "", passes: Passes | None = None) -> None:
        self._bodiless: dict[bytes, Head] = {}
        self._bodied: dict[bytes, Head] = {}
        self._fields: dict[bytes, Fields] = {}
        self._marks = Marks(4 * MOST)
        self._passes = passes
        self._root, self._root_bytes = root_path, root_path.encode("ascii")
        self.get = self._bodiless.get
        """The head of a request without body that these bytes are, or None."""

    def __len__(self) -> int:
        return len(self._bodiless) + len(self._bodied)

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body that ``data`` is, to the last byte, if the head came before, or one like it but for an
        ordinary first line."""
        end = data.find(_END, 0, LONGEST) + 4
        if end < 4:
            return None
        size = len(data) - end
        whole = data[:end] if size else data
        if size:
            head = self._bodied.get(whole)
            if head is not None:
                return (head, data[end:]) if head.fields.length == size else None
        at = data.find(_LINE_END)
        fields = self._fields.get(whole[at:])
        if fields is None or fields.length != size:
            return None
        line = _LINE(data, 0, at)
        if line is None:
            return None
        method, raw_path, query = line.groups(b"")
        if size and method != b"POST":
            return None
        path = raw_path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        if self._root:
            path = self._root + path
            raw_path = self._root_bytes + raw_path
        head = self._head(method.decode("ascii"), path, raw_path, query, fields)
        if self._marks.again(whole):
            put(self._bodied if size else self._bodiless, whole, head, MOST)
        return head, data[end:]

    def _head(self, method: str, path: str, raw_path: bytes, query: bytes, fields: Fields) -> Head:
        head = Head(method, path, raw_path, query, fields)
        if self._passes is not None and head.direct:
            line = {"type": "http", "method": method, "path": path, "query_string": query, "root_path": self._root}
            head.direct = self._passes({**line, "headers": fields.headers})
        return head

    def seen(self, data: bytes) -> int:
        """What of the head of ``data`` is to be kept, as it came before: 1 its fields, 2 all of it, 3 both."""
        end = data.find(_END, 0, LONGEST) + 4
        if end < 4 or len(data) - end > MOST_BODY:
            return 0
        again = self._marks.again
        return again(data[data.find(_LINE_END) : end]) + 2 * again(data[:end])

    def keep(self, data: bytes, scope: Any, key: Key | None = None, what: int = 3) -> None:
        """``data`` is one request, which the parser made ``scope`` of; ``key`` is the router's for it, ``what`` as
        `seen` says."""
        end = data.find(_END) + 4
        length = len(data) - end
        told = 0
        for name, value in scope["headers"]:
            if name == b"content-length":
                told = int(value)
            elif name in _MORE or (name == b"connection" and value.lower() != b"keep-alive"):
                return
        if told != length or scope["http_version"] != "1.1" or (length and scope["method"] != "POST"):
            return
        fields = Fields(scope["headers"], length, key)
        if what & 1:
            put(self._fields, data[data.find(_LINE_END) : end], fields, MOST)
        if what & 2:
            head = self._head(scope["method"], scope["path"], scope["raw_path"], scope["query_string"], fields)
            put(self._bodied if length else self._bodiless, data[:end], head, MOST)


def scope_of(connection: Any, head: Head, state: dict[str, Any]) -> dict[str, Any]:
    """uvicorn's scope for a request on ``connection``: a protocol of its, or what has the same names."""
    return {
        "type": "http",
        "asgi": {"version": connection.asgi_version, "spec_version": "2.3"},
        "http_version": "1.1",
        "server": connection.server,
        "client": connection.client,
        "scheme": connection.scheme,
        "root_path": connection.root_path,
        "headers": list(head.fields.headers),
        "state": state,
        "method": head.method,
        "path": head.path,
        "raw_path": head.raw_path,
        "query_string": head.query,
    }


def cycle_of(protocol: Any, head: Head, body: bytes) -> KnownCycle:
    """uvicorn's cycle for a request of ``protocol``'s client, all of which is here; both are the protocol's now."""
    protocol.scope = scope = scope_of(protocol, head, protocol.app_state.copy())
    cycle = KnownCycle(
        scope,  # type: ignore[arg-type]
        protocol.transport,
        protocol.flow,
        protocol.logger,
        protocol.access_logger,
        protocol.access_log,
        protocol.server_state.default_headers,
        Told(True),  # type: ignore[arg-type]
        False,
        True,
        protocol.on_response_complete,
    )
    if body:
        take(cycle, body)
    cycle.more_body = False
    protocol.cycle = cycle
    return cycle
