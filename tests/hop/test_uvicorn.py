"""Under uvicorn: what a client gets through the hop is what it gets from the app directly, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from tests.hop.ends import Pair, body, handler_of, pair, run, start, until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await websocket_app(scope, receive, send)
        return
    path = scope["path"]
    if path == "/raise":
        raise RuntimeError("on purpose")
    if path == "/nothing":
        return
    if path == "/413":
        await send(start(413, [(b"content-length", b"3"), (b"connection", b"close")]))
        await send(body(b"big"))
        return
    data = b""
    more = path != "/unread"
    while more:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)
    if path == "/204":
        await send(start(204))
        await send(body())
        return
    if path == "/stream":
        await send(start(200, [(b"x-a", b"1"), (b"x-a", b"2")]))
        for number in range(5):
            await send(body(b"%d\n" % number * 3000, True))
            await asyncio.sleep(0)
        await send(body())
        return
    if path == "/raise-late":
        await send(start(200, [(b"content-length", b"100")]))
        await send(body(b"some", True))
        raise RuntimeError("on purpose")
    if path == "/short":
        await send(start(200, [(b"content-length", b"10")]))
        await send(body(b"short"))
        return
    seen = {name: scope[name] for name in sorted(scope) if name not in ("client", "server", "headers")}
    text = repr((seen, [header for header in scope["headers"] if header[0] != b"host"], data)).encode()
    await send(start(200, [(b"content-length", b"%d" % len(text)), (b"X-\xc3", b"\xe4")][:1]))
    await send(body(text))


async def websocket_app(scope: Any, receive: Any, send: Any) -> None:
    path = scope["path"]
    await receive()
    if path == "/reject":
        await send({"type": "websocket.close"})
        return
    if path == "/response":
        await send({"type": "websocket.http.response.start", "status": 418, "headers": [(b"x-tea", b"pot")]})
        await send({"type": "websocket.http.response.body", "body": b"short and stout"})
        return
    if path == "/raise-first":
        raise RuntimeError("on purpose")
    await send(
        {"type": "websocket.accept", "subprotocol": (scope["subprotocols"] or [None])[-1], "headers": [(b"x-y", b"z")]}
    )
    if path == "/close":
        await send({"type": "websocket.close", "code": 4321, "reason": "bye"})
        return
    if path == "/raise":
        await send({"type": "websocket.send", "text": "now"})
        raise RuntimeError("on purpose")
    if path == "/return":
        await send({"type": "websocket.send", "text": "now"})
        return
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            ends.append((message.get("code"), message.get("reason")))
            return
        await send({**message, "type": "websocket.send"})


ends: list[Any] = []


@contextlib.asynccontextmanager
async def serving(application: Any, http: str = "httptools", ws: str = "websockets-sansio") -> AsyncIterator[int]:
    config = uvicorn.Config(
        application,
        port=0,
        http=http,
        ws=ws,
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,  # type: ignore[arg-type]
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


def hopping(joined: Pair) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await joined.links.carry("owner", scope, receive, send, {})

    return application


REQUESTS = {
    "get": b"GET /a/../b%2fc?x=1&x=%zz HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a: \xe4\r\nCookie: a=b\r\n\r\n",
    "head": b"HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n",
    "1.0": b"GET /x HTTP/1.0\r\n\r\n",
    "post": b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
    "chunked": b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "expect": b"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    "expect, unread": b"POST /unread HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    "413": b"POST /413 HTTP/1.1\r\nHost: h\r\nContent-Length: 500000\r\n\r\nhello",
    "204": b"DELETE /204 HTTP/1.1\r\nHost: h\r\n\r\n",
    "stream": b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n",
    "raise": b"GET /raise HTTP/1.1\r\nHost: h\r\n\r\n",
    "raise late": b"GET /raise-late HTTP/1.1\r\nHost: h\r\n\r\n",
    "nothing": b"GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n",
    "short": b"GET /short HTTP/1.1\r\nHost: h\r\n\r\n",
    "pipelined": b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    "close": b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
}


async def talk(port: int, data: bytes) -> bytes:
    """All that the server says, until it closes or has said nothing for a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    got = b""
    try:
        while chunk := await asyncio.wait_for(reader.read(65536), 5 if not got else 0.15):
            got += chunk
        got += b"<FIN>"
    except (asyncio.TimeoutError, TimeoutError):
        got += b"<open>"
    except ConnectionResetError:
        got += b"<RST>"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return got


def dechunked(reply: bytes) -> bytes:
    """A reply whose chunks have no boundaries: they are not part of the contract."""
    if b"transfer-encoding: chunked" not in reply:
        return reply
    head, _, rest = reply.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + re.sub(rb"[0-9a-f]+\r\n|\r\n", b"", rest)


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_the_same_bytes(loop: str, http: str) -> None:
    async def main() -> None:
        async with pair(handler_of(app)) as joined:
            async with serving(app, http) as direct, serving(hopping(joined), http) as hopped:
                for name, data in REQUESTS.items():
                    expected, got = await asyncio.gather(talk(direct, data), talk(hopped, data))
                    assert dechunked(got) == dechunked(expected), name

    logging.disable(logging.CRITICAL)
    try:
        run(loop, main())
    finally:
        logging.disable(logging.NOTSET)


WEBSOCKETS = ["/echo", "/reject", "/response", "/raise-first", "/close", "/raise", "/return"]


async def websocket_talk(port: int, path: str) -> list[Any]:
    """What a client of the websockets library sees."""
    import websockets

    seen: list[Any] = []
    try:
        async with websockets.connect(
            f"ws://127.0.0.1:{port}{path}", subprotocols=["a", "b"], ping_interval=None
        ) as socket:  # type: ignore[list-item]
            assert socket.response is not None
            seen += [socket.subprotocol, socket.response.headers.get("x-y")]
            if path == "/echo":
                for data in ("text", b"bytes", "x" * 300_000, ""):
                    await socket.send(data)
                    seen.append(await socket.recv() == data)
                await socket.close(4999, "enough")
                seen.append(ends.pop() if ends else await until(lambda: ends) or ends.pop())
            else:
                async for message in socket:
                    seen.append(message)
            seen += [socket.close_code, socket.close_reason]
    except websockets.exceptions.InvalidStatus as refused:
        seen += [refused.response.status_code, refused.response.body]
    except websockets.exceptions.ConnectionClosed as closed:
        seen += ["closed", closed.rcvd]
    return seen


@pytest.mark.parametrize("ws", ["websockets-sansio", "wsproto"])
@pytest.mark.parametrize("path", WEBSOCKETS)
def test_the_same_websocket(loop: str, ws: str, path: str) -> None:
    pytest.importorskip("wsproto")

    async def main() -> None:
        async with pair(handler_of(app)) as joined:
            async with serving(app, ws=ws) as direct, serving(hopping(joined), ws=ws) as hopped:
                expected = await websocket_talk(direct, path)
                assert await websocket_talk(hopped, path) == expected

    logging.disable(logging.CRITICAL)
    try:
        run(loop, main())
    finally:
        logging.disable(logging.NOTSET)


def test_a_client_that_leaves_is_noticed(loop: str) -> None:
    seen: list[str] = []

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/begun":
            await send(start(200))
            await send(body(b"x", True))
        seen.append((await receive())["type"])

    async def main() -> None:
        async with pair(handler_of(waiting)) as joined, serving(hopping(joined)) as port:
            for path in (b"/quiet", b"/begun"):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" % path)
                await until(lambda: joined.server.streams)
                await asyncio.sleep(0.01)
                writer.close()
                await until(lambda: not joined.server.streams, 1)
            assert seen == ["http.disconnect"] * 2

    run(loop, main())
