"""The protocol of connections that a `Listener` accepts: what those of a worker have alike stands in their class.

uvicorn looks up its loggers, makes a parser and sets two dozen names for every connection. A parser is made here when
there is something to parse; the first request of most connections came before (`hosts.heads`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import httptools
from uvicorn.protocols.http.flow_control import FlowControl

from sessionworkers.hosts.first import FirstTransport
from sessionworkers.hosts.protocol import SessionHttpToolsProtocol

OWN: Final = ("accepting", "app", "parser", "pipeline")
"""What is not alike, or not for long. All else is None until a connection has it, or set once for all of them."""
OFTEN: Final = (
    "_heads_known", "access_log", "access_logger", "app_state", "asgi_version", "config", "loop", "logger", "root_path",
    "scheme", "server_state", "tasks", "timeout_keep_alive",
)  # fmt: skip
"""What every request asks for: quicker where a connection has it itself."""


class Accepted(SessionHttpToolsProtocol):
    """`SessionHttpToolsProtocol`, quicker to make. One is of a subclass that `alike` has made."""

    often: tuple[tuple[str, Any], ...]

    def __init__(self) -> None:
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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """There are many packets, or there may be."""
        for name, value in self.often:
            setattr(self, name, value)
        super().connection_made(transport)

    def _parse(self, data: bytes) -> None:
        if self.parser is None:
            self.parser = parser = httptools.HttpRequestParser(self)
            if hasattr(parser, "set_dangerous_leniencies"):  # as uvicorn's: what follows a close is not an error
                parser.set_dangerous_leniencies(lenient_data_after_close=True)
        super()._parse(data)


def alike(config: Any, server_state: Any, app_state: dict[str, Any], loop: asyncio.AbstractEventLoop) -> type[Accepted]:
    """The class of all connections of a worker; the arguments are those of uvicorn's own."""
    one = SessionHttpToolsProtocol(config, server_state, app_state, loop)
    names = {name: value for name, value in vars(one).items() if name not in OWN}
    names |= {"parser": None, "scheme": "http"}
    return type("Accepted", (Accepted,), {**names, "often": tuple((name, names[name]) for name in OFTEN)})
