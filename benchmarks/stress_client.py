"""A small HTTP/1.1 client for load: one TCP connection per request, a bound on how many are open, and cut replies."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Reply:
    """Status, JSON and the cookie pair (``name=value``) that the reply set, if any."""

    __slots__ = ("cookie", "json", "status")

    def __init__(self, raw: bytes) -> None:
        head, _, body = raw.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        if not status.startswith(b"HTTP/1.1 "):
            raise ConnectionError("the connection ended without a reply")
        self.status = int(status[9:12])
        self.cookie: str | None = None
        length = None
        for line in lines:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == b"set-cookie":
                self.cookie = value.split(b";", 1)[0].strip().decode("latin-1")
            elif name == b"content-length":
                length = int(value)
        if length is not None and len(body) != length:
            raise ConnectionError("the reply was cut off")
        self.json: dict[str, Any] = json.loads(body) if body.startswith(b"{") else {}


class _Exchange(asyncio.Protocol):
    """Sends ``request`` and collects until the server closes; ``cut``: hangs up once so many bytes came."""

    def __init__(self, request: bytes, cut: int | None, done: asyncio.Future[bytes]) -> None:
        self.request, self.cut, self.done = request, cut, done
        self.parts = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.request)
        if self.cut == 0:
            transport.close()

    def data_received(self, data: bytes) -> None:
        self.parts += data
        if self.cut is not None and len(self.parts) >= self.cut and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if exc is not None and not self.parts:
            self.done.set_exception(exc)
        else:
            self.done.set_result(bytes(self.parts))


class Client:
    """Requests to one server on loopback, ``connections`` in flight at most."""

    def __init__(self, port: int, *, connections: int = 300, timeout: float = 60.0) -> None:
        self.port, self.timeout = port, timeout
        self._gate = asyncio.Semaphore(connections)
        self.requests = 0

    async def post(self, path: str, body: Any = None, *, cookie: str | None = None, token: str | None = None) -> Reply:
        """One POST with a JSON body. OSError or TimeoutError if no whole reply comes."""
        return Reply(await self._send("POST", path, body, cookie, token, None))

    async def get(self, path: str) -> Reply:
        return Reply(await self._send("GET", path, None, None, None, None))

    async def hang_up(self, path: str, body: Any, after: int) -> None:
        """One POST whose reply is not read: the client hangs up after ``after`` bytes of it (0: before the first)."""
        await self._send("POST", path, body, None, None, after)

    async def _send(
        self, method: str, path: str, body: Any, cookie: str | None, token: str | None, cut: int | None
    ) -> bytes:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nconnection: close\r\n"
        if data:
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
        if cookie:
            head += f"cookie: {cookie}\r\n"
        if token:
            head += f"x-session-token: {token}\r\n"
        request = head.encode("latin-1") + b"\r\n" + data
        loop = asyncio.get_running_loop()
        async with self._gate:
            self.requests += 1
            done: asyncio.Future[bytes] = loop.create_future()
            transport, _ = await loop.create_connection(lambda: _Exchange(request, cut, done), "127.0.0.1", self.port)
            try:
                return await asyncio.wait_for(done, self.timeout)
            finally:
                transport.abort()
