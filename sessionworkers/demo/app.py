"""The demo's app: counters kept in a dict in memory, as plain ASGI. It knows nothing of workers.

``POST /sessions`` makes a session and names it in its reply, ``{"session_id": "<32 hex>", "pid": 123}``.
``POST /sessions/<id>/add`` counts one up, ``{"count": 1, "pid": 123}``; 404 where nobody knows the ID.
``DELETE /sessions/<id>`` ends it, ``{"count": 5, "pid": 123}``.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]

sessions: dict[str, int] = {}


def answer(method: str, path: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON for one request."""
    match method, path.strip("/").split("/"):
        case "POST", ["sessions"]:
            session_id = uuid.uuid4().hex
            sessions[session_id] = 0
            return 200, {"session_id": session_id}
        case "POST", ["sessions", session_id, "add"] if session_id in sessions:
            sessions[session_id] += 1
            return 200, {"count": sessions[session_id]}
        case "DELETE", ["sessions", session_id] if session_id in sessions:
            return 200, {"count": sessions.pop(session_id)}
        case _, ["sessions", _, *_]:
            return 404, {"error": "no such session"}
        case _:
            return 404, {"error": "not found"}


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["type"] != "http":
        return
    status, content = answer(scope["method"], scope["path"])
    body = json.dumps({**content, "pid": os.getpid()}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
