"""Clients that keep sessions while their server restarts, and count whatever goes wrong.

Each session is a client of its own: it starts, is used every now and then, on a kept-alive connection or a new one by
turns, and ends by itself. Some hold an event stream or a WebSocket open meanwhile. A reply must come from the worker
that holds the session and count on by exactly one: nothing lost, nothing doubled, nothing served by another.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

TIMEOUT = 30.0
REUSE = 5.0
"""Seconds that a client keeps an idle connection, as pools do (httpx)."""


class Broken(Exception):
    """A reply that is not what it must be; ``kind`` is counted."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind} {detail}")
        self.kind = kind


@dataclass
class Count:
    """What happened. ``wrong``: kind → how often; ``first``: an example of each."""

    requests: int = 0
    begun: int = 0
    ended: int = 0
    lost: int = 0
    wrong: collections.Counter[str] = field(default_factory=collections.Counter)
    first: dict[str, str] = field(default_factory=dict)
    releases: dict[str, float] = field(default_factory=dict)
    """Release → when the first session began on it."""
    late: dict[str, float] = field(default_factory=dict)
    """Release → when the last session began on it."""

    def broke(self, error: Broken) -> None:
        self.wrong[error.kind] += 1
        self.first.setdefault(error.kind, str(error))


class Connection:
    """HTTP/1.1, one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def ask(self, method: str, path: str, *, keep: bool) -> tuple[int, dict[str, Any]]:
        """Status and JSON of the reply. Raises `Broken`; nothing is ever sent twice."""
        try:
            return await asyncio.wait_for(self._ask(method, path, keep), TIMEOUT)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise Broken("connection", f"{method} {type(error).__name__}") from error
        except (asyncio.TimeoutError, TimeoutError) as error:
            self.close()
            raise Broken("timeout", method) from error

    async def _ask(self, method: str, path: str, keep: bool) -> tuple[int, dict[str, Any]]:
        if self._ends is not None and (self._ends[0].at_eof() or time.monotonic() - self._used > REUSE):
            self.close()
        if self._ends is None:
            self._ends = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._ends
        connection = "keep-alive" if keep else "close"
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        lines = dict(line.partition(": ")[::2] for line in head.split("\r\n")[1:])
        body = await reader.readexactly(int(lines["content-length"]))
        self._used = time.monotonic()
        if not keep or lines.get("connection") == "close":
            self.close()
        value = json.loads(body) if lines.get("content-type", "").startswith("application/json") else {}
        return int(head.split(" ", 2)[1]), value

    def close(self) -> None:
        if self._ends is not None:
            self._ends[1].close()
            self._ends = None


class Load:
    """``sessions`` clients, of which ``streams`` hold a stream and ``websockets`` a WebSocket; ``rate`` requests a
    second in all; a session lives ``life`` seconds on average."""

    def __init__(self, port: int, *, sessions: int, streams: int, websockets: int, rate: float, life: float) -> None:
        self.port = port
        self.count = Count()
        self.open = 0
        self._pause = sessions / rate
        self._life = life
        self._kinds = ["stream"] * streams + ["websocket"] * websockets + [""] * max(0, sessions - streams - websockets)
        self._going = True

    async def run(self) -> None:
        """Until `stop`; then every session ends by itself."""
        await asyncio.gather(*(self._client(kind) for kind in self._kinds))

    def stop(self) -> None:
        self._going = False

    async def _client(self, kind: str) -> None:
        await asyncio.sleep(random.random() * self._pause)
        while self._going:
            connection = Connection(self.port)
            try:
                await self._session(kind, connection)
            except Broken as error:
                self.count.broke(error)
                self.count.lost += 1
                await asyncio.sleep(self._pause)
            finally:
                connection.close()

    async def _session(self, kind: str, connection: Connection) -> None:
        count = self.count
        _, made = await self._ask(connection, "POST", "/s", 201)
        sid, pid = made["sid"], made["pid"]
        count.begun += 1
        now = time.monotonic()
        count.releases.setdefault(made["release"], now)
        count.late[made["release"]] = now
        until = now + random.expovariate(1 / self._life)
        opened: asyncio.Event = asyncio.Event()
        held = asyncio.create_task(self._hold(kind, sid, pid, opened)) if kind else None
        self.open += 1
        try:
            if held is not None:
                waiting = asyncio.create_task(opened.wait())
                await asyncio.wait([waiting, held], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            expected = 0
            while self._going and time.monotonic() < until:
                await asyncio.sleep(random.uniform(0.5, 1.5) * self._pause)
                _, got = await self._ask(connection, "GET", f"/s/{sid}/n", 200)
                expected += 1
                if got["pid"] != pid:
                    raise Broken("other worker", str(got))
                if got["n"] != expected:
                    raise Broken("lost or doubled", str(got))
                if held is not None and held.done():
                    held.result()
                    raise Broken(f"{kind} cut")
            await self._ask(connection, "POST", f"/s/{sid}/end", 200)
            count.ended += 1
        finally:
            self.open -= 1
            if held is not None:
                held.cancel()
                with contextlib.suppress(asyncio.CancelledError, Broken):
                    await held

    async def _ask(self, connection: Connection, method: str, path: str, wanted: int) -> tuple[int, dict[str, Any]]:
        self.count.requests += 1
        status, value = await connection.ask(method, path, keep=random.random() < 0.5)
        if status != wanted:
            raise Broken(f"status {status}", f"{method} {value}")
        return status, value

    async def _hold(self, kind: str, sid: str, pid: int, opened: asyncio.Event) -> None:
        """Keep a stream or WebSocket of the session open; it is to be cancelled. Raises `Broken`."""
        try:
            if kind == "stream":
                await self._stream(sid, pid, opened)
            else:
                await self._websocket(sid, pid, opened)
        except (OSError, asyncio.IncompleteReadError, WebSocketException) as error:
            raise Broken(f"{kind} broke", f"{type(error).__name__} {error}") from error

    async def _stream(self, sid: str, pid: int, opened: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"GET /s/{sid}/stream HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head.split(b"\r\n")[0]:
                raise Broken("stream status", head[:40].decode("latin-1"))
            opened.set()
            while line := await reader.readline():
                if line.startswith(b"data: ") and int(line[6:]) != pid:
                    raise Broken("other worker", "stream")
            raise Broken("stream cut")
        finally:
            writer.close()

    async def _websocket(self, sid: str, pid: int, opened: asyncio.Event) -> None:
        async with connect(f"ws://127.0.0.1:{self.port}/s/{sid}/ws", proxy=None, ping_interval=None) as socket:
            opened.set()
            number = 0
            while True:
                number += 1
                await socket.send(str(number))
                if await asyncio.wait_for(socket.recv(), TIMEOUT) != f"{pid} {number}":
                    raise Broken("other worker", "websocket")
                await asyncio.sleep(1.0)
