"""Session IDs never stand whole in the access log, and its line says which route the request took.

The host's own access log prints the path and query, where an ID may be. A filter on its loggers replaces the IDs that
the router found by their masks. The host logs inside ``send``, so the IDs are put into a context variable for just
that call: a reply that was hopped is sent from the link's callback, in another context than the request's.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from sessionworkers.affinity.ids import mask

Send = Callable[[Any], Awaitable[None]]

_route: contextvars.ContextVar[tuple[tuple[str, ...], str] | None] = contextvars.ContextVar(
    "sessionworkers_route", default=None
)

LOGGERS = ("uvicorn.access", "uvicorn.error")
"""HTTP requests are logged by the first, WebSocket handshakes by the second."""


class LoggedSend:
    """``send`` with the route known to the log while the reply's head is sent."""

    __slots__ = ("_route", "_send")

    def __init__(self, send: Send, ids: tuple[str, ...], route: str) -> None:
        self._send = send
        self._route = (ids, route)

    async def send(self, event: Any) -> None:
        """Pass ``event`` on."""
        if event["type"] in _HEADS:
            token = _route.set(self._route)
            try:
                await self._send(event)
            finally:
                _route.reset(token)
        else:
            await self._send(event)


_HEADS = frozenset({"http.response.start", "websocket.accept", "websocket.close", "websocket.http.response.start"})


class MaskIDs(logging.Filter):
    """Masks the IDs of the request that is being logged and names its route in ``record.route``."""

    def filter(self, record: logging.LogRecord) -> bool:
        route = _route.get()
        record.route = route[1] if route is not None else "-"
        if route is not None and isinstance(record.args, tuple):
            record.args = tuple(_masked(arg, route[0]) if isinstance(arg, str) else arg for arg in record.args)
        return True


def _masked(text: str, ids: tuple[str, ...]) -> str:
    for each in ids:
        for spelling in (each, quote(each), quote(each, safe="")):
            if spelling in text:
                text = text.replace(spelling, f"<{mask(each)}>")
    return text


def install() -> None:
    """Add the filter to the host's loggers, once."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, MaskIDs) for each in logger.filters):
            logger.addFilter(MaskIDs())
