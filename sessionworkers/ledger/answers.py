"""The answers of our own: refusals and *gone*, for HTTP and for a WebSocket that has not been accepted.

A refusal is JSON, ``{"error": …, "detail": …}``, so that a client that expects JSON can read it, and never holds an ID.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sessionworkers.affinity.rules import Gone
from sessionworkers.affinity.views import RequestView
from sessionworkers.errors import SessionworkersError

Send = Callable[[Any], Awaitable[None]]


class Refused(SessionworkersError):
    """A request that is answered by us and not by the app. ``retry_after`` is seconds."""

    def __init__(self, status: int, error: str, detail: str, *, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.error = error
        self.detail = detail
        self.retry_after = retry_after


async def refuse(scope: Mapping[str, Any], send: Send, refused: Refused) -> None:
    """Answer with the refusal's status and a JSON body."""
    body = json.dumps({"error": refused.error, "detail": refused.detail}).encode()
    headers = [(b"content-type", b"application/json")]
    if refused.retry_after is not None:
        headers.append((b"retry-after", str(refused.retry_after).encode()))
    await answer(scope, send, refused.status, headers, body)


async def gone(scope: Mapping[str, Any], send: Send, answer_with: Gone, request: RequestView) -> None:
    """The rule's gone answer: the worker that held the session lives no more."""
    body = answer_with.body
    if answer_with.jsonrpc:
        document = request.json if request.body is not None else None
        rpc_id = document.get("id") if isinstance(document, dict) else None
        body = json.dumps(
            {"jsonrpc": "2.0", "id": rpc_id, "error": {"code": -32600, "message": "Session not found"}}
        ).encode()
    await answer(scope, send, answer_with.status, [(b"content-type", answer_with.content_type.encode())], body)


async def app_failed(scope: Mapping[str, Any], send: Send) -> None:
    """The reply to a request whose app raised before its reply, word for word uvicorn's own."""
    await answer(
        scope,
        send,
        500,
        [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")],
        b"Internal Server Error",
    )


async def answer(
    scope: Mapping[str, Any], send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Send a whole reply. A WebSocket's handshake is refused with it, or with a bare 403 where the server can't."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
