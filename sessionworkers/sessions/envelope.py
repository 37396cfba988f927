"""Finding the session in a request: the page's JSON envelope, or the X-Session-ID header. No I/O.

The envelope is ``{auth_data, session_id, payload}``, in this order from the clients that are known, so the beginning of
the body tells; ``payload`` may be megabytes. The scan reads whole values of the top level from the front and stops at
``payload``, once it knows the ID. What cannot be read so names no session: the app answers.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from sessionworkers.affinity.views import RequestView
from sessionworkers.sessions.table import minted

HEADER: Final = b"x-session-id"
PREFIX: Final = 64 * 1024
"""Bytes at the front of a body in which ``session_id`` must stand to be seen."""

MISSING: Final = object()

_SPACE = re.compile(r"[ \t\n\r]*")
_decoder = json.JSONDecoder()


@dataclass(frozen=True)
class Envelope:
    """What the front of a body holds. `MISSING` for what is not there; ``ambiguous``: an ID or credential twice."""

    session_id: Any = MISSING
    auth_data: Any = MISSING
    payload: bool = False
    ambiguous: bool = False

    @property
    def whole(self) -> bool:
        """True for the page's envelope; an app's own ``session_id`` stands without ``auth_data``."""
        return isinstance(self.auth_data, dict)

    @property
    def names_session(self) -> bool:
        """True if the request is meant for an explicit session, which may have ended or never been."""
        if self.session_id is MISSING or self.session_id is None or self.ambiguous:
            return False
        return minted(self.session_id) or self.whole


NOTHING: Final = Envelope()


def scan(body: bytes, complete: bool) -> Envelope:
    """Read the front of a body. Never raises. ``complete`` false: more of the body follows."""
    if b'"session_id"' not in body and b'"auth_data"' not in body:
        return NOTHING
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(body, final=complete)
    except UnicodeDecodeError:
        return NOTHING
    found: dict[str, Any] = {}
    payload = ambiguous = False
    position = _skip(text, 0)
    if text[position : position + 1] != "{":
        return NOTHING
    position = _skip(text, position + 1)
    try:
        while text[position : position + 1] == '"':
            name, position = _decoder.raw_decode(text, position)
            position = _skip(text, position)
            if text[position : position + 1] != ":":
                break
            position = _skip(text, position + 1)
            if name == "payload":
                payload = True
                if "session_id" in found or b'"session_id"' not in body:
                    break
            value, position = _decoder.raw_decode(text, position)
            if name in ("session_id", "auth_data"):
                ambiguous = ambiguous or name in found
                found[name] = value
            position = _skip(text, position)
            if text[position : position + 1] != ",":
                break
            position = _skip(text, position + 1)
    except (ValueError, RecursionError):
        pass  # cut off in the middle of a value, or no JSON
    return Envelope(found.get("session_id", MISSING), found.get("auth_data", MISSING), payload, ambiguous)


def header_id(request: RequestView) -> str | None:
    """The ID in X-Session-ID (for a WebSocket also as a query value of that name), if it is of our shape."""
    value = request.header(HEADER)
    if value is None and request.kind == "websocket" and request.query:
        value = next((text for name, text in request.param_list() if name.lower() == "x-session-id"), None)
    return value if minted(value) else None


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match is not None else position
