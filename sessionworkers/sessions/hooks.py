"""Close hooks: one POST when a session is over, in the background, bounded in time and number.

A relative route goes to this app itself (called here, on the owner, without a socket) or below a base URL; an absolute
one to what the operator allows (`targets`). The name is resolved once and that address is connected to. Redirects are
not followed, proxies of the environment not used, replies not shown to anyone. A connection that could not be made is
tried again a few times; a request that may have arrived never is.
"""

from __future__ import annotations

import asyncio
import contextvars
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import h11

from sessionworkers.affinity.ids import mask
from sessionworkers.sessions.targets import HookAllow, Target, parse_target

log = logging.getLogger("sessionworkers")

TRIES: Final = 3
PAUSE: Final = 0.5
"""Seconds before the second try; twice that before the third."""
MOST_REPLY: Final = 64 * 1024

App = Callable[[Any, Any, Any], Awaitable[None]]


class NotConnected(OSError):
    """Nothing was sent."""


class Hooks:
    """Posts hooks for one worker. ``app``: this app itself, ``state``: its lifespan state for one request."""

    def __init__(
        self,
        app: App,
        *,
        base: str | None = None,
        allow: HookAllow | None = None,
        timeout: float = 10.0,
        concurrency: int = 64,
        state: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.app = app
        self.base = base
        self.allow = allow if allow is not None else HookAllow(())
        self.timeout = timeout
        self.state = state
        self.tasks: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(concurrency)

    def target(self, route: str) -> Target:
        """Where ``route`` leads; ValueError if it must not be posted to."""
        return parse_target(route, self.base, self.allow)

    def post(self, route: str, body: bytes, session_id: str) -> asyncio.Task[None]:
        """Post ``body`` in the background, once. Failures are logged, never raised."""
        context = contextvars.Context()  # not the request that happened to end the session
        task = context.run(asyncio.get_running_loop().create_task, self._run(route, body, session_id))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _run(self, route: str, body: bytes, session_id: str) -> None:
        try:
            target = self.target(route)
            async with self._gate:
                status = await asyncio.wait_for(self._deliver(target, body), self.timeout)
            if not 200 <= status < 300:
                log.warning("the close hook of session %s was answered %d", mask(session_id), status)
        except asyncio.TimeoutError:
            log.warning("the close hook of session %s took more than %g s", mask(session_id), self.timeout)
        except (OSError, ValueError, h11.ProtocolError) as error:
            log.warning("the close hook of session %s failed: %s", mask(session_id), error)
        except Exception:  # the app's own handler raised
            log.exception("the close hook of session %s raised", mask(session_id))

    async def _deliver(self, target: Target, body: bytes) -> int:
        if target.host is None:
            return await self._call(target.path, body)
        for attempt in range(1, TRIES + 1):
            try:
                return await self._send(target, body)
            except NotConnected:
                if attempt == TRIES:
                    raise
                await asyncio.sleep(PAUSE * attempt)
        raise AssertionError("the last try returns or raises")

    # this app itself

    async def _call(self, path: str, body: bytes) -> int:
        plain, _, query = path.partition("?")
        status = 500
        sent = False
        over = asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await over.wait()
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: Any) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
            elif event["type"] == "http.response.body" and not event.get("more_body", False):
                over.set()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": plain,
            "raw_path": plain.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
            "state": self.state(),
        }
        await self.app(scope, receive, send)
        return status

    # another server

    async def _send(self, target: Target, body: bytes) -> int:
        assert target.host is not None
        address = await self._address(target)
        tls = ssl.create_default_context() if target.tls else None
        try:
            reader, writer = await asyncio.open_connection(
                address, target.port, ssl=tls, server_hostname=target.host if tls is not None else None
            )
        except OSError as error:
            raise NotConnected(error.errno, error.strerror or str(error)) from error
        try:
            return await self._exchange(target, body, reader, writer)
        finally:
            writer.transport.abort() if target.tls else writer.close()

    async def _exchange(
        self, target: Target, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> int:
        host = f"[{target.host}]" if ":" in (target.host or "") else target.host
        connection = h11.Connection(h11.CLIENT)
        request = h11.Request(
            method="POST",
            target=target.path,
            headers=[
                ("Host", f"{host}:{target.port}"),
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ],
        )
        for event in (request, h11.Data(body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        size = 0
        while True:
            answer = connection.next_event()
            if isinstance(answer, h11.Response):
                return answer.status_code
            if answer is h11.NEED_DATA:
                data = await reader.read(4096)
                size += len(data)
                if size > MOST_REPLY:
                    raise OSError("the reply's head is too large")
                connection.receive_data(data)
            elif isinstance(answer, h11.ConnectionClosed):
                raise OSError("the connection ended without a reply")

    async def _address(self, target: Target) -> str:
        """One address of the host, checked: the one that is then connected to."""
        assert target.host is not None
        try:
            literal = str(ipaddress.ip_address(target.host))
        except ValueError:
            pass
        else:
            if not target.named and not self.allow.covers([literal]):
                raise ValueError("the address is not allowed (--hook-allow)")
            return literal
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NotConnected(error.errno, f"the host cannot be resolved: {error}") from error
        addresses = [str(entry[4][0]) for entry in found]
        if not target.named and not self.allow.covers(addresses):
            raise ValueError("the host's address is not allowed (--hook-allow)")
        return addresses[0]
