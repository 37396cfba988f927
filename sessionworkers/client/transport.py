"""HTTP and WebSockets by aiohttp, which is imported here alone. Faults come out as this package's own errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sessionworkers.errors import Rejected, SessionClosed, TimedOut, Unreachable

try:
    import aiohttp
except ImportError as error:  # an extra
    raise ImportError("sessionworkers.client needs aiohttp: pip install 'sessionworkers[client]'") from error

KEEP_ALIVE = 15.0
"""Seconds that an idle connection is kept: well below the server's 75, so that none dies as it is used."""


WebSocket = Any
"""aiohttp's ``ClientWebSocketResponse``, whose type parameters differ between its releases."""


@dataclass
class Answer:
    """A reply that was read whole, or (``stream``) one whose body is still to come."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str
    stream: aiohttp.ClientResponse | None = field(default=None, repr=False)

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Transport:
    """One connection pool. ``ssl``: what aiohttp takes for it (None: its own checks)."""

    def __init__(self, *, ssl: Any = None, headers: Mapping[str, str] | None = None) -> None:
        self._ssl = ssl
        self._headers = dict(headers or {})
        self._http: aiohttp.ClientSession | None = None

    def _pool(self) -> aiohttp.ClientSession:
        if self._http is None or self._http.closed:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEP_ALIVE, ssl=self._ssl if self._ssl is not None else True
            )
            # Cookies would name other sessions: none are kept.
            jar = aiohttp.DummyCookieJar()
            self._http = aiohttp.ClientSession(connector=connector, cookie_jar=jar, headers=self._headers)
        return self._http

    async def post(self, url: str, document: Any, *, timeout: float | None, stream: bool = False) -> Answer:
        """POST JSON. `Unreachable` (``sent`` tells whether it may have run) or `TimedOut`."""
        limit = aiohttp.ClientTimeout(total=None if stream else timeout, sock_connect=10.0, connect=None)
        try:
            response = await self._pool().post(url, json=document, timeout=limit, allow_redirects=False)
            if stream and response.ok:
                return Answer(response.status, response.headers, b"", url, response)
            async with response:
                return Answer(response.status, response.headers, await response.read(), url)
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"no connection to {url}: {error}") from error
        except aiohttp.ConnectionTimeoutError as error:
            raise Unreachable(f"no connection to {url} in time") from error
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise TimedOut(f"no reply from {url} within {timeout:g} s") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Unreachable(f"the connection to {url} broke: {error}", sent=True) from error

    async def lines(self, answer: Answer) -> AsyncIterator[bytes]:
        """The lines of a streamed body. `Unreachable` if it breaks off."""
        response = answer.stream
        assert response is not None
        try:
            async with response:
                rest = b""
                async for chunk in response.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line
                if rest:
                    yield rest
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Unreachable(f"the stream of {answer.url} broke off: {error}", sent=True) from error

    async def websocket(self, url: str, headers: Mapping[str, str]) -> WebSocket:
        """Open a WebSocket. `SessionClosed`, `Rejected`, `Unreachable`."""
        try:
            return await self._pool().ws_connect(url, headers=headers)
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 410:
                raise SessionClosed("the session has ended") from error
            raise Rejected(error.status, error.message) from error
        except (aiohttp.ClientError, ConnectionError, asyncio.TimeoutError) as error:
            raise Unreachable(f"no WebSocket to {url}: {error}") from error

    async def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        if self._http is not None:
            await self._http.close()
            self._http = None
