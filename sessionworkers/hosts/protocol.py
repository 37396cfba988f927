"""uvicorn's HTTP/1.1 protocol, with the routing in it and the one thing that affinity cannot live with taken out.

uvicorn with httptools appends chunked trailers to the very list that the app got as ``scope["headers"]``; when they
come in the packet of the request they are there before the app starts. A trailer could so name a session, or strip a
check that the headers had passed. Here a fresh list takes what comes after the head (0.07 µs a request).

Where a request belongs to another worker it is begun there as soon as its head is parsed (`sessionworkers.hosts.raw`).
Everything else, what is not understood included, runs as uvicorn runs it, and meets the router as an ASGI app.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sessionworkers.hosts import raw

HALF_CLOSED = 0.1
"""Seconds that an owner has to answer a client that has closed its half of the connection. uvicorn closes at once,
which an app on this very worker may outrun; a hop never could."""


class SessionHttpToolsProtocol(HttpToolsProtocol):
    """`HttpToolsProtocol` whose request headers end with the request's head."""

    remote: raw.Remote | None = None
    """The request that another worker answers, while it does."""
    accepting: raw.Accepting | None = None
    _half: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accepting = self.config.accepting  # type: ignore[attr-defined]

    # requests

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.parser.should_upgrade():  # an upgrade replays the headers into the WebSocket protocol
            self.headers = []

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        accepting = self.accepting
        if accepting is not None and app is self.app:
            self.remote = accepting.begin(self, cycle)
            if self.remote is not None:
                return
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        remote = self.remote
        if remote is not None and remote.cycle is self.cycle:
            remote.pump()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        remote = self.remote
        if remote is not None and remote.cycle is self.cycle:
            remote.pump()

    # what a remote request asks of its connection

    def bodiless(self) -> bool:
        """True if the request whose head was just parsed has no body: its end will follow at once."""
        return all(name != b"content-length" and name != b"transfer-encoding" for name, _ in self.scope["headers"])

    def half_closed(self) -> bool:
        """True if the client will send nothing more."""
        return self._half is not None

    def remote_complete(self) -> None:
        """The reply of another worker is complete; it counted the request."""
        self.server_state.total_requests -= 1
        self.on_response_complete()

    def run_here(self, cycle: RequestResponseCycle) -> None:
        """Run a request that its owner has refused."""
        super()._start_asgi_task(cycle, self.app)

    # the connection

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._half is not None:
            self._half.cancel()
        if self.remote is not None:
            self.remote.cancel()
            self.remote = None

    def eof_received(self) -> bool | None:  # type: ignore[override]
        if self.remote is None:
            return None
        self._half = self.loop.call_later(HALF_CLOSED, self.transport.close)
        return True

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.remote is not None:
            self.remote.resume()


def replacement(protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """Our class for uvicorn's own httptools protocol; any other (h11 drops trailers itself) stays as it is."""
    chosen: Any = SessionHttpToolsProtocol if protocol is HttpToolsProtocol else protocol
    return chosen  # type: ignore[no-any-return]
