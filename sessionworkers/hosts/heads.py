"""Requests that were parsed before: a client sends the same head again and again, and the same bytes mean the same.

A packet that is one whole request, read between two requests, is looked up by its bytes before it is parsed. What is
kept comes from the parser alone, at the second sight of a head, so that heads which never come again cost two look-ups
and are not held. Nothing is kept whose meaning depends on more than its bytes: upgrades, ``Expect``, chunked bodies,
anything but HTTP/1.1, and connections that are to be closed. Of requests with a body only POSTs are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sessionworkers.affinity.recall import UNKNOWN, Key
from sessionworkers.hop.codec import WINDOW, packed_head
from sessionworkers.hosts.cycle import KnownCycle, Told, direct, take

MOST: Final = 2_048
"""Heads kept; when they are as many all are forgotten: some 4 MB at the most."""
LONGEST: Final = 1_024
"""Longer heads are not kept, bytes."""
MOST_BODY: Final = WINDOW
"""A longer body is for the parser, bytes: what is here goes to another worker without waiting for credit."""

_END: Final = b"\r\n\r\n"
_MORE: Final = (b"transfer-encoding", b"expect", b"upgrade")
_EVENTS: Final = b"text/event-stream"


class Head:
    """A request's head, parsed. ``length``: of the body that follows; 0 if there is none.

    ``key``, ``found`` and ``revision`` are `affinity.recall.Kept`'s; ``packed`` is its part of a raw frame, ``direct``
    and ``events`` are what the functions of that name say.
    """

    __slots__ = (
        "direct", "events", "found", "headers", "key", "length", "method", "packed", "path", "query", "raw_path",
        "revision",
    )  # fmt: skip

    def __init__(self, scope: Mapping[str, Any], length: int, key: Key | None, packed: bytes | None = None) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: bytes = scope["raw_path"]
        self.query: bytes = scope["query_string"]
        self.headers: tuple[tuple[bytes, bytes], ...] = tuple(scope["headers"])
        self.length = length
        self.key = key
        self.found: Any = UNKNOWN
        self.revision = 0
        self.events = only_events(scope)
        self.direct = direct(scope)
        if packed is None:
            packed = packed_head(self.method, self.path, self.raw_path, self.query, self.headers)
        self.packed = packed


def only_events(scope: Mapping[str, Any]) -> bool:
    """A GET that takes nothing but server-sent events. (Every MCP POST takes them too.)"""
    if scope["method"] != "GET":
        return False
    accepts = b""
    for name, value in scope["headers"]:
        if name == b"accept":
            if accepts:
                return False
            accepts = value
    return len(accepts) >= len(_EVENTS) and accepts.strip().lower() == _EVENTS


class Heads:
    """The heads of one worker. They depend on its ``root_path``, too."""

    __slots__ = ("_bodied", "_bodiless", "_once", "get")

    def __init__(self) -> None:
        self._bodiless: dict[bytes, Head] = {}
        self._bodied: dict[bytes, Head] = {}
        self._once: set[int] = set()
        self.get = self._bodiless.get
        """The head of a request without body that these bytes are, or None."""

    def __len__(self) -> int:
        return len(self._bodiless) + len(self._bodied)

    def with_body(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body that ``data`` is, to the last byte."""
        end = data.find(_END, 0, LONGEST) + 4
        if end < 4:
            return None
        head = self._bodied.get(data[:end])
        if head is None or head.length != len(data) - end:
            return None
        return head, data[end:]

    def seen(self, data: bytes) -> bool:
        """True if the head of ``data`` is to be kept: it came before, as it came now."""
        end = data.find(_END, 0, LONGEST) + 4
        if end < 4 or len(data) - end > MOST_BODY:
            return False
        mark = hash(data[:end] if end < len(data) else data)
        if mark in self._once:
            return True
        if len(self._once) >= 4 * MOST:
            self._once.clear()
        self._once.add(mark)
        return False

    def keep(self, data: bytes, scope: Any, key: Key | None = None) -> None:
        """``data`` is one request, which the parser made ``scope`` of; ``key`` is the router's for it."""
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
        if len(self) >= MOST:
            self._bodiless.clear()
            self._bodied.clear()
        known = self._bodied if length else self._bodiless
        known[data[:end]] = Head(scope, length, key)


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
        "headers": list(head.headers),
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
