"""A raw HTTP/1.1 request, as one pastes it, read into what rules look at."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from sessionworkers.affinity.views import RequestView

_FIRST_LINE = re.compile(r"([A-Z]+) (\S+)(?: HTTP/[0-9.]+)?")


def parse_request(raw: bytes, root_path: str = "") -> RequestView:
    """The request in ``raw``; its body is set. Lines may end with LF alone. ValueError says what is no request.

    A WebSocket handshake (``Upgrade: websocket``) is seen as such.
    """
    raw = raw.lstrip(b"\r\n")
    head, blank, body = _split(raw)
    lines = head.decode("latin-1").replace("\r\n", "\n").split("\n")
    first = _FIRST_LINE.fullmatch(lines[0].rstrip())
    if first is None:
        raise ValueError(f"the first line is no request line such as GET /path HTTP/1.1: {lines[0][:80]!r}")
    headers: list[tuple[bytes, bytes]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise ValueError(f"this line is no header: {line[:80]!r}")
        headers.append((name.lower().encode("latin-1"), value.strip().encode("latin-1")))
    target = urlsplit(first[2])
    named = dict(headers)
    upgrade = named.get(b"upgrade", b"").lower() == b"websocket"
    if not blank or not body.strip():
        body = b""
    elif b"content-length" in named and named[b"content-length"].isdigit():
        body = body[: int(named[b"content-length"])]
    elif b"transfer-encoding" not in named:
        headers.append((b"content-length", str(len(body)).encode()))  # meant to be there, or the body would be none
    return RequestView(
        "GET" if upgrade else first[1],
        unquote(target.path) or "/",
        target.query.encode("latin-1"),
        headers,
        kind="websocket" if upgrade else "http",
        root_path=root_path,
        body=body,
    )


def _split(raw: bytes) -> tuple[bytes, bytes, bytes]:
    found = re.search(rb"\r?\n\r?\n", raw)
    if found is None:
        return raw.rstrip(b"\r\n"), b"", b""
    return raw[: found.start()], found[0], raw[found.end() :]
