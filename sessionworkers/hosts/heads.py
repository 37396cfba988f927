"""Requests that were parsed before: a client sends the same head again and again, and the same bytes mean the same.

A packet that is one whole request, read between two requests, is looked up by its bytes before it is parsed. What is
kept comes from the parser alone, at the second sight of a head, so that heads which never come again cost two look-ups
and are not held. Nothing is kept whose meaning depends on more than its bytes: upgrades, ``Expect``, chunked bodies,
anything but HTTP/1.1, and connections that are to be closed. Of requests with a body only POSTs are looked up.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from sessionworkers.affinity.recall import Key
from sessionworkers.hop.codec import packed_head
from sessionworkers.hosts.cycle import QuickCycle

MOST: Final = 2_048
"""Heads kept; when they are as many all are forgotten: some 4 MB at the most."""
LONGEST: Final = 1_024
"""Longer heads are not kept, bytes."""
MOST_BODY: Final = 64 * 1024
"""A longer body is for the parser: uvicorn stops reading at this."""

_END: Final = b"\r\n\r\n"
_MORE: Final = (b"transfer-encoding", b"expect", b"upgrade")


class Head(NamedTuple):
    """A request's head, parsed. ``length``: of the body that follows; 0 if there is none.

    ``key`` is the router's for it, ``packed`` its part of a raw frame.
    """

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    length: int
    key: Key | None
    packed: bytes


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
        headers = tuple(scope["headers"])
        told = 0
        for name, value in headers:
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
        parts = (scope["method"], scope["path"], scope["raw_path"], scope["query_string"], headers)
        known[data[:end]] = Head(*parts, length, key, packed_head(*parts))


def cycle_of(protocol: Any, head: Head, body: bytes) -> QuickCycle:
    """uvicorn's scope and cycle for a request of ``protocol``'s client; all of it is here."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": protocol.asgi_version, "spec_version": "2.3"},
        "http_version": "1.1",
        "server": protocol.server,
        "client": protocol.client,
        "scheme": protocol.scheme,
        "root_path": protocol.root_path,
        "headers": list(head.headers),
        "state": protocol.app_state.copy(),
        "method": head.method,
        "path": head.path,
        "raw_path": head.raw_path,
        "query_string": head.query,
    }
    protocol.scope = scope
    complete = asyncio.Event()
    complete.set()
    cycle = QuickCycle(
        scope,  # type: ignore[arg-type]
        protocol.transport,
        protocol.flow,
        protocol.logger,
        protocol.access_logger,
        protocol.access_log,
        protocol.server_state.default_headers,
        complete,
        False,
        True,
        protocol.on_response_complete,
    )
    if body:
        cycle.body += body
    cycle.more_body = False
    protocol.cycle = cycle
    return cycle
