"""The loopback end server: ``POST /session/end`` in plain HTTP on 127.0.0.1, for what runs on this very machine.

A job's completion webhook ends its session here without TLS. The listening socket is bound by the launcher and shared
by all workers; whichever accepts forwards to the owner. Nothing but that one route is served.

No secret is asked for besides the session's own credential, so what a browser could be made to send is refused: a Host
that is not this address (DNS rebinding, 421), an Origin or a cross-site Sec-Fetch-Site (403). Bodies have 64 KiB,
a request has 5 seconds, a worker 64 connections at once; each connection serves one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import h11

log = logging.getLogger("sessionworkers")

MOST_BODY: Final = 64 * 1024
MOST_CONNECTIONS: Final = 64
TIME_LIMIT: Final = 5.0
"""Seconds for a request to arrive."""
LINGER: Final = 1.0
"""Seconds in which the rest of a refused request is read, so that its sender sees the answer and not a reset."""
HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")

Send = Callable[[Any], Awaitable[None]]
Ending = Callable[[Any, Any, Send], Awaitable[None]]


class Rejected(Exception):
    """A request that is answered with ``status`` and goes no further."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error


class EndServer:
    """Serves ``sock`` (bound to 127.0.0.1). ``end``: an ASGI app for the one route, ``path``."""

    def __init__(self, sock: socket.socket, path: str, end: Ending) -> None:
        self._sock = sock
        self._path = path
        self._end = end
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port: int = sock.getsockname()[1]

    async def start(self) -> None:
        """Begin to accept. OSError."""
        self._sock.setblocking(False)
        self._server = await asyncio.start_server(self._connected, sock=self._sock, limit=MOST_BODY)

    async def close(self) -> None:
        """Accept no more; requests under way are cut off."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # closing
        except (OSError, h11.ProtocolError) as error:
            log.debug("a request on the loopback port broke off: %s", error)
        except Exception:
            log.exception("a request on the loopback port failed")
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=16 * 1024)
        try:
            body = await asyncio.wait_for(self._read(connection, reader), TIME_LIMIT)
        except asyncio.TimeoutError:
            self._refuse(connection, writer, 408, "request timeout")
        except Rejected as rejected:
            self._refuse(connection, writer, rejected.status, rejected.error)
        except h11.RemoteProtocolError as error:
            self._refuse(connection, writer, error.error_status_hint, "bad request")
        else:
            if body is None:
                return
            await self._forward(connection, writer, body)
        await writer.drain()
        with contextlib.suppress(asyncio.TimeoutError, OSError):
            if writer.can_write_eof():
                writer.write_eof()
            await asyncio.wait_for(_rest(reader), LINGER)

    async def _read(self, connection: h11.Connection, reader: asyncio.StreamReader) -> bytes | None:
        """The body of a request that may end a session; None if nobody asked anything. Raises `Rejected`."""
        request: h11.Request | None = None
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(16 * 1024))
            elif isinstance(event, h11.Request):
                request = event
                self._check(request)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_BODY:
                    raise Rejected(413, "body too large")
            elif isinstance(event, h11.EndOfMessage):
                return body
            else:  # closed
                return None

    def _check(self, request: h11.Request) -> None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in request.headers:
            headers.setdefault(bytes(name), []).append(bytes(value))
        hosts = headers.get(b"host", [])
        allowed = {f"{name}:{self.port}" for name in HOSTS} | (set(HOSTS) if self.port == 80 else set())
        if len(hosts) != 1 or hosts[0].decode("latin-1").lower() not in allowed:
            raise Rejected(421, "this host is not served here")
        if b"origin" in headers or any(value != b"none" for value in headers.get(b"sec-fetch-site", [])):
            raise Rejected(403, "not for web pages")
        if bytes(request.target).partition(b"?")[0] != self._path.encode():
            raise Rejected(404, "not found")
        if request.method != b"POST":
            raise Rejected(405, "method not allowed")
        for value in headers.get(b"content-length", []):
            if int(value) > MOST_BODY:
                raise Rejected(413, "body too large")

    def _refuse(self, connection: h11.Connection, writer: asyncio.StreamWriter, status: int, error: str) -> None:
        if connection.our_state is h11.IDLE or connection.our_state is h11.SEND_RESPONSE:
            self._write(connection, writer, status, json.dumps({"error": error}).encode())

    def _write(self, connection: h11.Connection, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        if status == 405:
            headers.append(("Allow", "POST"))
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")

    async def _forward(self, connection: h11.Connection, writer: asyncio.StreamWriter, body: bytes) -> None:
        status = 500
        answer = b""
        given = False
        forever = asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                await forever.wait()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: Any) -> None:
            nonlocal status, answer
            if event["type"] == "http.response.start":
                status = event["status"]
            elif event["type"] == "http.response.body":
                answer += event.get("body", b"")

        host = f"127.0.0.1:{self.port}".encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", host),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", self.port),
        }
        await self._end(scope, receive, send)
        self._write(connection, writer, status, answer)


async def _rest(reader: asyncio.StreamReader) -> None:
    while await reader.read(64 * 1024):
        pass
