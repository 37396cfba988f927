"""The app of the rolling restart: sessions in a dict, a stream and a WebSocket in each, and the release that it is.

The release stands in the file that ``ROLLING_RELEASE`` names and is read once, at import, like any code.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import uuid
from typing import Any

RELEASE = pathlib.Path(os.environ["ROLLING_RELEASE"]).read_text().strip()
if RELEASE == "broken":
    raise RuntimeError("this release cannot be imported")

SESSIONS: dict[str, int] = {}
PID = os.getpid()


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    parts = scope["path"].strip("/").split("/")
    if scope["type"] == "websocket":
        await _websocket(parts[1], receive, send)
    elif parts == ["s"]:
        sid = uuid.uuid4().hex
        SESSIONS[sid] = 0
        await _reply(send, 201, {"sid": sid, "pid": PID, "release": RELEASE})
    elif len(parts) != 3 or parts[1] not in SESSIONS:
        await _reply(send, 404, {"error": "unknown", "pid": PID})
    elif parts[2] == "stream":
        await _stream(receive, send)
    elif parts[2] == "end":
        del SESSIONS[parts[1]]
        await _reply(send, 200, {"ended": True})
    else:
        SESSIONS[parts[1]] += 1
        await _reply(send, 200, {"n": SESSIONS[parts[1]], "pid": PID, "release": RELEASE})


async def _reply(send: Any, status: int, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    gone = asyncio.create_task(_until_gone(receive))
    while not gone.done():
        await send({"type": "http.response.body", "body": b"data: %d\n\n" % PID, "more_body": True})
        await asyncio.wait([gone], timeout=0.5)


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _websocket(sid: str, receive: Any, send: Any) -> None:
    await receive()
    if sid not in SESSIONS:
        await send({"type": "websocket.close", "code": 4404})
        return
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": f"{PID} {message.get('text')}"})
