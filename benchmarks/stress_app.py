"""The app of `benchmarks.stress`: sessions in memory as an RL environment server keeps them, as plain ASGI.

A session is named by a typed ID in the body of its start and close, by a signed cookie as Starlette's
``SessionMiddleware`` writes it (and, as in NeMo Gym, on every reply), and by a signed token at ``/mcp``. The app knows
nothing of workers: what reaches the wrong one finds no state there.

========================  ==========================================================================================
``POST /seed_session``    typed (``resources_session_id``) or by the cookie's ID; ``fail``: leave partial state, 500
``POST /seed_quiet``      a start whose handler never looks at the session
``POST /increment``       tool call by cookie, ``{"count": n}``; makes the session's state on first use
``POST /value``           tool call by cookie
``POST /mcp``             the same tools as JSON-RPC, by the token alone
``POST /verify``          ``{"expected": n}`` to ``{"reward": 1.0 or 0.0}``; ends the session
``POST /close_session``   ends the session; recorded, so that a late start is refused with 409
``GET /debug``            this worker's live sessions and all it ever made; no cookie
========================  ==========================================================================================
"""

from __future__ import annotations

import json
import os
import uuid
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from itsdangerous import BadSignature, TimestampSigner, URLSafeSerializer

SECRET = "stress-secret"
COOKIE = "session"
TOKEN = "x-session-token"

Message = MutableMapping[str, Any]
Result = tuple[int, dict[str, Any]]

signer = TimestampSigner(SECRET)
tokens = URLSafeSerializer(SECRET)

live: dict[str, dict[str, Any]] = {}
made: list[str] = []
closed: set[str] = set()


def make(sid: str) -> dict[str, Any]:
    """The state of session ``sid``, made here if there is none."""
    if sid not in live:
        live[sid] = {"count": 0, "starts": 0}
        made.append(sid)
    return live[sid]


def seed(sid: str, body: dict[str, Any]) -> Result:
    if sid in closed:
        return 409, {"error": "closed"}
    state = make(sid)
    state["starts"] += 1
    if body.get("fail") and state["starts"] == 1:
        state["partial"] = True
        return 500, {"error": "the environment broke half way"}
    if state["starts"] == 1:  # one that is sent again changes nothing, however late the first one arrives
        state["count"] = body.get("count", 0)
    return 200, {"resources_session_id": sid, "starts": state["starts"], "headers": {TOKEN: tokens.dumps({"sid": sid})}}


def close(sid: str) -> Result:
    state = live.pop(sid, None)
    closed.add(sid)
    return 200, {"resources_session_id": sid, "held": state is not None, "partial": bool(state and "partial" in state)}


def tool(name: str, sid: str, arguments: dict[str, Any]) -> dict[str, Any]:
    state = make(sid)
    if name == "increment":
        state["count"] += arguments.get("count", 1)
    return {"count": state["count"]}


def rpc(token: str, body: dict[str, Any]) -> Result:
    """One JSON-RPC call. A token that does not verify is an error in a 200, as MCP has it."""
    try:
        sid = tokens.loads(token)["sid"]
    except BadSignature:
        return 200, {"jsonrpc": "2.0", "id": body.get("id"), "result": {"isError": True, "content": []}}
    params = body["params"]
    result = tool(params["name"], sid, params.get("arguments", {}))
    return 200, {"jsonrpc": "2.0", "id": body.get("id"), "result": {"structuredContent": result, "isError": False}}


def handle(path: str, sid: str, body: dict[str, Any], token: str) -> Result:
    """Status and JSON. ``sid``: the cookie's ID, or one made up for this request."""
    match path:
        case "/seed_session":
            return seed(sid, body)
        case "/seed_quiet":
            return 200, {}
        case "/close_session":
            return close(sid)
        case "/increment" | "/value":
            return 200, tool(path[1:], sid, body)
        case "/mcp":
            return rpc(token, body)
        case "/verify":
            state = live.get(sid) if body.get("keep") else live.pop(sid, None)
            return 200, {"reward": float(state is not None and state["count"] == body.get("expected"))}
        case _:
            return 404, {"error": "not found"}


def cookie_id(headers: dict[bytes, bytes]) -> str | None:
    """The ID in a cookie whose signature holds."""
    try:
        morsel = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).get(COOKIE)
        data = json.loads(b64decode(signer.unsign(morsel.value, max_age=14 * 86400))) if morsel else {}
    except (BadSignature, CookieError, ValueError):
        return None
    sid = data.get("session_id")
    return sid if isinstance(sid, str) else None


def set_cookie(sid: str) -> bytes:
    value = signer.sign(b64encode(json.dumps({"session_id": sid}).encode())).decode()
    return f"{COOKIE}={value}; path=/; Max-Age=1209600; httponly; samesite=lax".encode()


async def read_body(receive: Callable[[], Awaitable[Message]]) -> bytes | None:
    """The body; None if the client went away before it was here, which frameworks do not take for an empty one."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


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
    headers = [(b"content-type", b"application/json")]
    if scope["path"] == "/debug":
        status, content = 200, {"live": list(live), "made": made}
    else:
        received = dict(scope["headers"])
        raw = await read_body(receive)
        if raw is None:
            return
        body = json.loads(raw) if raw else {}
        sid = body.get("resources_session_id") or cookie_id(received) or str(uuid.uuid4())
        status, content = handle(scope["path"], sid, body, received.get(TOKEN.encode(), b"").decode("latin-1"))
        if status < 500:  # a handler that raised gets past the middleware that would set the cookie
            headers += [(b"vary", b"Cookie"), (b"set-cookie", set_cookie(sid))]
    reply = json.dumps({**content, "pid": os.getpid()}).encode()
    headers.append((b"content-length", str(len(reply)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reply})
