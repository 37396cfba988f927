"""Session IDs never stand whole in the access log, and its line says which route the request took.

The host's own access log prints the path and query, where an ID may be. A filter on its loggers replaces the IDs that
the router found by their masks. The host logs inside ``send``, in the context of the request's task (the hop steps
replies into ``send`` in that context too), so the router leaves the IDs there and they are only looked at to log.
"""

from __future__ import annotations

import contextvars
import logging
from urllib.parse import quote

from sessionworkers.affinity.found import Found
from sessionworkers.affinity.ids import mask
from sessionworkers.ledger.current import visit_now

_route: contextvars.ContextVar[tuple[Found, str] | None] = contextvars.ContextVar("sessionworkers_route", default=None)

LOGGERS = ("uvicorn.access", "uvicorn.error")
"""HTTP requests are logged by the first, WebSocket handshakes by the second."""


def note_route(found: Found, route: str) -> None:
    """Say which session the running request names and which way it takes, for the log lines of its task."""
    _route.set((found, route))


class MaskIDs(logging.Filter):
    """Masks the IDs of the request that is being logged and names its route in ``record.route``."""

    def filter(self, record: logging.LogRecord) -> bool:
        route = _route.get()
        if route is None:
            visit = visit_now()
            if visit is not None and visit.found is not None:
                route = (visit.found, "here")  # it took the short way, on which nothing is noted
        record.route = route[1] if route is not None else "-"
        if route is not None and isinstance(record.args, tuple):
            ids = _values(route[0])
            record.args = tuple(_masked(arg, ids) if isinstance(arg, str) else arg for arg in record.args)
        return True


def _values(found: Found) -> set[str]:
    named = [found.primary, *found.also, *found.candidates, *(each for _, each in found.joins)]
    return {each.value for each in named}


def _masked(text: str, ids: set[str]) -> str:
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
