"""An ASGI scope as it travels, and made whole again at the owner. No I/O.

The owner's app sees what the acceptor's would have seen: the same keys, bytes and tuples. Only ``state`` is the owner's
own, keys that msgpack cannot carry (objects that an outer middleware put there) are left out, and so are extensions
that need the client's connection itself (path send, zero copy send) or that this package does not know.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from sessionworkers.errors import FrameError, HopRefused
from sessionworkers.hop.codec import OPEN, STATE, WEBSOCKET, Open, can_travel, packed

Scope = MutableMapping[str, Any]

# Extensions of the ASGI specification whose events the hop carries ("tls" has none, it is data).
EXTENSIONS: Final = frozenset(
    {
        "http.response.early_hint",
        "http.response.push",
        "http.response.trailers",
        "tls",
        "websocket.http.response",
    }
)
_CARRIED: Final = frozenset(
    {
        "asgi",
        "client",
        "extensions",
        "headers",
        "http_version",
        "method",
        "path",
        "query_string",
        "raw_path",
        "root_path",
        "scheme",
        "server",
        "state",
        "subprotocols",
        "type",
    }
)


def open_frame(stream: int, scope: Scope, meta: dict[str, Any], flags: int, body: bytes) -> bytes:
    """The OPEN frame of a request. ``flags``: COMPLETE, ASK; the others are found here.

    HopRefused: the head is too large for a frame, or holds what cannot be text.
    """
    get = scope.get
    if scope["type"] == "websocket":
        flags |= WEBSOCKET
    if "state" in scope:
        flags |= STATE
    extensions = get("extensions")
    if extensions:
        extensions = {name: value for name, value in extensions.items() if name in EXTENSIONS and can_travel(value)}
    extra = None
    if not scope.keys() <= _CARRIED:
        extra = {name: value for name, value in scope.items() if name not in _CARRIED and can_travel(value)}
    head = Open(
        flags,
        get("method", ""),
        scope["path"],
        get("raw_path"),
        get("query_string", b""),
        scope["headers"],
        get("client"),
        get("server"),
        get("scheme", "http"),
        get("http_version", "1.1"),
        get("root_path", ""),
        scope["asgi"],
        extensions,
        get("subprotocols"),
        extra,
        meta,
        body,
    )
    try:
        return packed(OPEN, stream, head)
    except (FrameError, TypeError, ValueError, OverflowError) as error:
        raise HopRefused(f"the request's head cannot travel: {error}") from error


def scope_of(head: Open, state: dict[str, Any]) -> dict[str, Any]:
    """The scope for the owner's app; ``state`` becomes its state if the acceptor's scope had one."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": head.asgi,
        "http_version": head.http_version,
        "server": head.server,
        "client": head.client,
        "scheme": head.scheme,
        "root_path": head.root_path,
        "headers": head.headers,
        "path": head.path,
        "query_string": head.query,
    }
    if head.raw_path is not None:
        scope["raw_path"] = head.raw_path
    if head.flags & WEBSOCKET:
        scope["type"] = "websocket"
        scope["subprotocols"] = head.subprotocols or []
    else:
        scope["method"] = head.method
    if head.flags & STATE:
        scope["state"] = state
    if head.extensions is not None:
        scope["extensions"] = head.extensions
    if head.extra:
        scope.update(head.extra)
    return scope
