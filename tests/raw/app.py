"""The app behind the hop's contract: says what it sees, and does what the path names."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
from collections import Counter
from typing import Any
from urllib.parse import parse_qs

WORKER = os.environ.get("TEST_WORKER", "?")
seen: list[str] = []
asked: Counter[bytes] = Counter()
sent = 0


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            scope["state"]["mine"] = WORKER
            await send({"type": message["type"] + ".complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["type"] == "websocket":
        await websocket(scope, receive, send)
        return
    query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
    await ROUTES.get(scope["path"], what)(scope, receive, send, query)


async def reply(send: Any, body: bytes, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    pairs = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode()), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def whole(receive: Any) -> bytes:
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            seen.append("disconnect in body")
            return body
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def what(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    body = await whole(receive)
    told = {
        name: value.decode("latin-1") if isinstance(value, bytes) else value
        for name, value in scope.items()
        if name not in ("headers", "state")
    }
    told["headers"] = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
    told |= {"worker": WORKER, "pid": os.getpid(), "mine": scope["state"].get("mine"), "keys": sorted(scope)}
    told |= {"size": len(body), "hash": hashlib.sha256(body).hexdigest()}
    await reply(send, json.dumps(told).encode(), int(query.get("status", "200")))


async def seen_so_far(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    await reply(send, json.dumps({"seen": seen, "sent": sent}).encode())


async def empty(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    await send({"type": "http.response.start", "status": int(query.get("status", "204")), "headers": []})
    await send({"type": "http.response.body"})


async def big(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    await reply(send, os.urandom(1) + b"x" * (int(query["n"]) - 1))


async def noise(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    """Bytes of which no two stretches are alike."""
    await reply(send, hashlib.shake_128(query["seed"].encode()).digest(int(query["n"])))


async def flood(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    """Chunks of 64 KB without end; counts them."""
    global sent
    sent = 0
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(int(query["n"])):
        await send({"type": "http.response.body", "body": b"y" * 65536, "more_body": True})
        sent += 1
    await send({"type": "http.response.body", "body": b""})


async def stream(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    kind = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": kind})
    for number in range(int(query.get("n", "3"))):
        await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": f"data: {number} {WORKER}\n\n".encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def hang(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    """Answers only when the client is gone."""
    if "started" in query:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    seen.append(f"waiting {query['name']}")
    while (await receive())["type"] != "http.disconnect":
        pass
    seen.append(f"gone {query['name']}")


async def deaf(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    """Asks for a first piece of the body, and for no more."""
    await receive()
    seen.append(f"deaf {query['name']}")
    await asyncio.sleep(60)


async def slow(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    seen.append(f"slow {query.get('name', '')}")
    await asyncio.sleep(float(query.get("s", "0.5")))
    await reply(send, f"slow {WORKER}".encode())


async def crash(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    if "late" in query:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    raise RuntimeError("as told")


async def early(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    """Answers without reading the body."""
    await reply(send, b"early " + WORKER.encode(), 200)


async def closing(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    await reply(send, b"bye", headers=[(b"connection", b"close")])


async def die(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    if "late" in query:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await asyncio.sleep(0.1)
    os._exit(9)


async def nth(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    """Says what it sees, but for the n-th request of the same words, which does as `do` says."""
    asked[scope["query_string"]] += 1
    if asked[scope["query_string"]] == int(query["n"]):
        await ROUTES["/" + query["do"]](scope, receive, send, query)
    else:
        await what(scope, receive, send, query)


async def garbage(scope: Any, receive: Any, send: Any, query: dict[str, str]) -> None:
    """How many objects only the garbage collector finds, since the last time."""
    found = gc.collect()
    (gc.disable if "watch" in query else gc.enable)()
    await reply(send, json.dumps(found).encode())


async def websocket(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    if scope["path"] == "/ws/no":
        await send({"type": "websocket.close", "code": 4000})
        return
    await send({"type": "websocket.accept", "subprotocol": (scope["subprotocols"] or [None])[0]})
    await send({"type": "websocket.send", "text": json.dumps([WORKER, os.getpid(), scope["client"], scope["scheme"]])})
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            seen.append(f"ws {message['code']} {message.get('reason', '')}".strip())
            return
        text = message.get("text")
        if text == "close":
            await send({"type": "websocket.close", "code": 4321, "reason": "bye"})
            return
        if text == "boom":
            raise RuntimeError("as told")
        if text is not None:
            await send({"type": "websocket.send", "text": text})
        else:
            await send({"type": "websocket.send", "bytes": message["bytes"]})


ROUTES = {
    "/seen": seen_so_far, "/empty": empty, "/big": big, "/flood": flood, "/stream": stream, "/hang": hang,
    "/slow": slow, "/crash": crash, "/early": early, "/closing": closing, "/die": die,
    "/nth": nth, "/garbage": garbage, "/deaf": deaf, "/noise": noise,
}  # fmt: skip
