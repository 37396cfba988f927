"""An ASGI scope as it travels, and made whole again at the owner. No I/O.

The owner's app sees what the acceptor's would have seen: the same keys, bytes and tuples. Only ``state`` is the owner's
own, keys that msgpack cannot carry (objects that an outer middleware put there) are left out, and so are extensions
that need the client's connection itself (path send, zero copy send) or that this package does not know.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from sessionworkers.errors import FrameError, HopRefused
from sessionworkers.hop.codec import (
    OPEN,
    STATE,
    WEBSOCKET,
    Open,
    Setting,
    can_travel,
    encode,
    packed,
    read_setting,
)

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


_KNOWN: Final = 64  # settings that are kept; a worker has one for each listening socket, scheme and protocol
_settings: dict[object, bytes] = {}
_templates: dict[bytes, tuple[dict[str, Any], dict[str, Any] | None]] = {}


def _setting_of(scope: Scope) -> bytes:
    """The encoded `Setting` of ``scope``, from memory if there was one like it."""
    get = scope.get
    extensions = get("extensions")
    key: object = (
        get("scheme"),
        get("http_version"),
        get("root_path"),
        get("server"),
        tuple(scope["asgi"].items()),
        None if extensions is None else tuple(extensions),
    )
    try:
        known = None if extensions and any(extensions.values()) else _settings.get(key)
    except TypeError:  # a server that is a list, say
        known = key = None
    if known is None:
        if extensions:
            extensions = {name: value for name, value in extensions.items() if name in EXTENSIONS and can_travel(value)}
        setting = Setting(
            get("scheme", "http"),
            get("http_version", "1.1"),
            get("root_path", ""),
            get("server"),
            scope["asgi"],
            extensions,
        )
        known = encode(setting)
        if key is not None and not (extensions and any(extensions.values())):
            if len(_settings) >= _KNOWN:
                _settings.clear()
            _settings[key] = known
    return known


def open_frame(stream: int, scope: Scope, meta: dict[str, Any], flags: int, body: bytes) -> bytes:
    """The OPEN frame of a request. ``flags``: COMPLETE, ASK; the others are found here.

    HopRefused: the head is too large for a frame, or holds what cannot be text.
    """
    get = scope.get
    if "state" in scope:
        flags |= STATE
    subprotocols = None
    if scope["type"] == "websocket":
        flags |= WEBSOCKET
        subprotocols = get("subprotocols")
    extra = None
    if not scope.keys() <= _CARRIED:
        extra = {name: value for name, value in scope.items() if name not in _CARRIED and can_travel(value)}
    try:
        return packed(
            OPEN,
            stream,
            (  # as the fields of Open
                flags,
                _setting_of(scope),
                get("method", ""),
                scope["path"],
                get("raw_path"),
                get("query_string", b""),
                scope["headers"],
                get("client"),
                meta,
                body,
                subprotocols,
                extra,
            ),
        )
    except (FrameError, TypeError, ValueError, OverflowError) as error:
        raise HopRefused(f"the request's head cannot travel: {error}") from error


def _template_of(setting: bytes) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The part of a scope that is the same for all requests with this setting, and its extensions."""
    known = _templates.get(setting)
    if known is None:
        read = read_setting(setting)
        template = {
            "type": "http",
            "asgi": read.asgi,
            "http_version": read.http_version,
            "server": read.server,
            "scheme": read.scheme,
            "root_path": read.root_path,
        }
        known = (template, read.extensions)
        if len(_templates) >= _KNOWN:
            _templates.clear()
        _templates[setting] = known
    return known


def scope_of(head: Open, state: dict[str, Any]) -> dict[str, Any]:
    """The scope for the owner's app; ``state`` becomes its state if the acceptor's scope had one.

    One of codec.Unreadable: its setting is not as it should be.
    """
    template, extensions = _template_of(head.setting)
    scope = template.copy()
    scope["asgi"] = template["asgi"].copy()
    scope["headers"] = head.headers
    scope["client"] = head.client
    scope["path"] = head.path
    scope["query_string"] = head.query
    flags = head.flags
    if flags & WEBSOCKET:
        scope["type"] = "websocket"
        scope["subprotocols"] = head.subprotocols or []
    else:
        scope["method"] = head.method
    if head.raw_path is not None:
        scope["raw_path"] = head.raw_path
    if flags & STATE:
        scope["state"] = state
    if extensions is not None:
        scope["extensions"] = {name: value.copy() for name, value in extensions.items()}
    if head.extra is not None:
        scope.update(head.extra)
    return scope
