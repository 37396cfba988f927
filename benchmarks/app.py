"""The app that is measured: sessions in a dict, a short JSON reply; large bodies, events and WebSocket echo besides.

``/`` JSON of about 175 bytes · ``/big`` 500 KB · ``/upload`` counts a body · ``/events`` 200 server-sent events ·
WebSocket ``/echo``. The session's ID is in the cookie ``sid``; its second character is the worker that owns it. Every
JSON reply names the session and the worker that answered, which the load generator checks.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

WORKER = os.environ.get("BENCH_WORKER", "0")
"""This worker's number; "-" where no worker owns a session (plain uvicorn with several workers)."""

_SID = re.compile(rb"(?:^|;)\s*sid=([^;]*)")
BIG = b"x" * 500_000
EVENTS = 200

sessions: dict[str, dict[str, int]] = {}


def _session(scope: Any) -> tuple[str, dict[str, int]]:
    sid = ""
    for name, value in scope["headers"]:
        if name == b"cookie":
            found = _SID.search(value)
            if found is not None:
                sid = found[1].decode()
    session = sessions.get(sid)
    if session is None:
        session = sessions[sid] = {"n": 0}
    session["n"] += 1
    return sid, session


def _reply(sid: str, session: dict[str, int]) -> dict[str, Any]:
    reply: dict[str, Any] = {"sid": sid, "n": session["n"], "text": "lorem ipsum dolor sit amet " * 3}
    if WORKER != "-":
        reply["worker"] = int(WORKER)
    return reply


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Plain ASGI: nothing between the server and the measurement."""
    if scope["type"] == "websocket":
        await _echo(scope, receive, send)
        return
    if scope["type"] != "http":
        return
    sid, session = _session(scope)
    path = scope["path"]
    if path == "/events":
        await _events(send, sid)
        return
    kind = b"application/json"
    if path == "/big":
        body, kind = BIG, b"application/octet-stream"
    else:
        if path == "/upload":
            more = True
            while more:
                more = (await receive()).get("more_body", False)
        body = json.dumps(_reply(sid, session)).encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _events(send: Any, sid: str) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(EVENTS):
        body = f'data: {{"sid": "{sid}", "n": {number}, "worker": {WORKER if WORKER != "-" else 0}}}\n\n'.encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    _session(scope)
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


def starlette() -> Any:
    """The same reply from a Starlette route; imported only where it is measured."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def home(request: Request) -> JSONResponse:
        return JSONResponse(_reply(*_session(request.scope)))

    return Starlette(routes=[Route("/", home)])
