"""``/-/ready`` and ``/-/live`` on the public port, for load balancers and container probes.

*Live*: this process answers. *Ready*: the server takes new sessions, on this worker or on another one; so a draining
worker's kept-alive probes see a restart as ready and only the end of the whole server as not (503).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

READY, LIVE = "/-/ready", "/-/live"


class Probes:
    """An ASGI app in front of ``app``; ``ready()`` is asked on each probe."""

    __slots__ = ("app", "ready")

    def __init__(self, app: App, ready: Callable[[], bool]) -> None:
        self.app = app
        self.ready = ready

    def __call__(self, scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and "/-/" in scope["path"] and self._asked(scope):
            return self._answer(scope, send)
        return self.app(scope, receive, send)

    def _asked(self, scope: Any) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path") or "")
        return path in (READY, LIVE) and scope["method"] in ("GET", "HEAD")

    async def _answer(self, scope: Any, send: Send) -> None:
        good = scope["path"].endswith(LIVE) or self.ready()
        body = b'{"ok":true}' if good else b'{"ok":false}'
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200 if good else 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})
