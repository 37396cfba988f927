"""An ASGI app that keeps sessions in a dict and shows what reached it. No framework: nothing helps by accident."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
import uuid
from typing import Any
from urllib.parse import parse_qs

SESSIONS: dict[str, dict[str, Any]] = {}
SEEN: list[str] = []


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "websocket":
        await websocket(scope, receive, send)
    else:
        await http(scope, receive, send)


async def lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        if os.environ.get("TEST_FAIL_STARTUP"):
            await send({"type": "lifespan.startup.failed", "message": "the app said no"})
            return
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            note = os.environ.get("TEST_SHUTDOWN_NOTE")
            if note:
                with open(note, "a", encoding="ascii") as file:  # noqa: ASYNC230
                    file.write(f"{os.getpid()}\n")
            return


async def reply(send: Any, value: Any, status: int = 200, headers: Any = ()) -> None:
    body = json.dumps(value).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def http(scope: Any, receive: Any, send: Any) -> None:
    path, query = scope["path"], parse_qs(scope["query_string"].decode())
    parts = path.strip("/").split("/")
    if path == "/pid":
        await reply(send, {"pid": os.getpid()})
    elif path == "/seen":
        await reply(send, {"pid": os.getpid(), "seen": SEEN})
    elif path == "/page":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": f"<p>{os.getpid()}</p>".encode()})
    elif path == "/s" and scope["method"] == "POST":
        sid = uuid.uuid4().hex
        SESSIONS[sid] = {"n": 0}
        await reply(send, {"sid": sid, "pid": os.getpid()}, 201)
    elif parts[0] != "s" or len(parts) < 3 or parts[1] not in SESSIONS:
        await reply(send, {"error": "unknown", "pid": os.getpid()}, 404)
    else:
        await in_session(SESSIONS[parts[1]], parts[2], query, scope, receive, send)


async def in_session(session: Any, what: str, query: Any, scope: Any, receive: Any, send: Any) -> None:
    session["n"] += 1
    if what == "n":
        await reply(send, {"n": session["n"], "pid": os.getpid()})
    elif what == "end":
        await reply(send, {"ended": True})
    elif what == "echo":
        body = await read(receive)
        shown = {key: value for key, value in scope.items() if key not in ("state", "app", "asgi", "extensions")}
        await reply(send, {"scope": repr(sorted(shown.items())), "body": body.hex(), "pid": os.getpid()})
    elif what == "upload":
        digest, size = hashlib.sha256(), 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                SEEN.append("upload cut")
                return
            digest.update(message["body"])
            size += len(message["body"])
            if not message.get("more_body"):
                break
        await reply(send, {"sha256": digest.hexdigest(), "size": size, "pid": os.getpid()})
    elif what == "refuse":
        await reply(send, {"error": "too large"}, 413)
    elif what == "download":
        size, piece = int(query["size"][0]), bytes(range(256)) * 256
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while size > 0:
            part = piece[:size]
            size -= len(part)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    elif what == "slow":
        await asyncio.sleep(float(query.get("seconds", ["30"])[0]))
        await reply(send, {"pid": os.getpid()})
    elif what == "block":
        time.sleep(float(query["seconds"][0]))  # noqa: ASYNC251  the test wants a blocked loop
        await reply(send, {"pid": os.getpid()})
    elif what == "stream":
        await stream(receive, send)
    elif what == "fork":
        pid = os.fork()
        if pid == 0:
            time.sleep(60)  # noqa: ASYNC251  the child of an app that forks
            os._exit(0)
        await reply(send, {"child": pid})
    else:
        raise RuntimeError("the app breaks")


async def stream(receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    gone = asyncio.create_task(until_disconnect(receive))
    number = 0
    while not gone.done():
        event = f"data: {number} {os.getpid()}\n\n".encode()
        await send({"type": "http.response.body", "body": event, "more_body": True})
        number += 1
        await asyncio.wait([gone], timeout=0.05)
    SEEN.append("stream closed")


async def until_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def websocket(scope: Any, receive: Any, send: Any) -> None:
    sid = scope["path"].strip("/").split("/")[1]
    await receive()
    if sid not in SESSIONS:
        await send({"type": "websocket.close", "code": 4404})
        return
    await send({"type": "websocket.accept"})
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            SEEN.append(f"websocket {message['code']}")
            return
        text = message.get("text")
        if text == "crash":
            raise RuntimeError("the app breaks")
        if text == "close":
            await send({"type": "websocket.close", "code": 4321, "reason": "bye"})
            return
        SESSIONS[sid]["n"] += 1
        await send({"type": "websocket.send", "text": json.dumps({"n": SESSIONS[sid]["n"], "pid": os.getpid()})})
