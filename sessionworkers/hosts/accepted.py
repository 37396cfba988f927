"""The protocol of connections that a `Listener` accepts: what all of a worker's have alike is copied, not made anew.

uvicorn looks up its loggers, makes a parser and sets two dozen names for every connection. A parser is made here when
there is something to parse; the first request of most connections came before (`hosts.heads`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl

from sessionworkers.hosts.first import FirstTransport
from sessionworkers.hosts.protocol import SessionHttpToolsProtocol


class Accepted(SessionHttpToolsProtocol):
    """`SessionHttpToolsProtocol`, quicker to make: ``names`` are those of one that was made as usual."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names.copy()
        self.pipeline = deque()
        config: Any = self.config
        self.accepting = config.accepting  # they are others while the worker drains
        self.app = config.loaded_app

    def accepted(self, first: FirstTransport, client: Any, server: tuple[str, int | None] | None) -> None:
        """`connection_made`; ``client`` is what ``accept`` says, ``server`` what uvicorn's `get_local_addr` does."""
        self.connections.add(self)
        self.transport = self.first = first
        self.flow = FlowControl(first)
        self.client = client[:2] if isinstance(client, tuple) else None
        self.server = server

    def _parse(self, data: bytes) -> None:
        if self.parser is None:
            self.parser = parser = httptools.HttpRequestParser(self)
            if hasattr(parser, "set_dangerous_leniencies"):  # as uvicorn's: what follows a close is not an error
                parser.set_dangerous_leniencies(lenient_data_after_close=True)
        super()._parse(data)


def alike(
    config: Any, server_state: Any, app_state: dict[str, Any], loop: asyncio.AbstractEventLoop
) -> Callable[[], Accepted]:
    """What makes the connections of a worker; the arguments are those of uvicorn's own."""
    one = SessionHttpToolsProtocol(config, server_state, app_state, loop)
    return partial(Accepted, {**vars(one), "parser": None, "scheme": "http"})
