"""The owner's side of raw frames: uvicorn's own request cycle on a stream that looks like its transport.

It is counted where uvicorn counts its own requests: in ``server_state.tasks`` (``limit_concurrency``, the wait of a
graceful shutdown) and ``total_requests`` (``limit_max_requests``), once, here. The access log is the acceptor's.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.server import ServerState

from sessionworkers.hop.codec import ASK, COMPLETE, KEEP, TUNNEL, OpenRaw
from sessionworkers.hop.raw import ServedRaw
from sessionworkers.hosts.cycle import Cycle
from sessionworkers.hosts.raw_tunnel import OwnedTunnel
from sessionworkers.worker.router import DECIDED, Carried

log = logging.getLogger("uvicorn.error")


class RawOwner:
    """Takes raw streams for one server. ``state``: the lifespan's state for one request."""

    def __init__(self, config: Any, server_state: ServerState, state: Callable[[], dict[str, Any]]) -> None:
        self.config = config
        self.server_state = server_state
        self.state = state
        self.loop = asyncio.get_running_loop()
        self.app = config.loaded_app
        self.asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        self.root_path: str = config.root_path
        self.limit: int | None = config.limit_concurrency

    def open(self, stream: ServedRaw, head: OpenRaw) -> asyncio.Task[None] | None:
        """A stream was opened."""
        if head.flags & TUNNEL:
            OwnedTunnel(self, stream, head)
            return None
        request = stream.request = OwnedRequest(self, stream, head)
        run = request.run_asgi(service_unavailable if self.limit is not None and self._full() else self.app)
        if not self.config.reset_contextvars:
            task = self.loop.create_task(run)
        elif sys.version_info >= (3, 11):
            task = self.loop.create_task(run, context=contextvars.Context())
        else:
            task = contextvars.Context().run(self.loop.create_task, run)
        self.server_state.tasks.add(task)
        task.add_done_callback(request.left)
        return task

    def _full(self) -> bool:
        """``limit_concurrency`` is reached with one request more."""
        limit, state = self.limit, self.server_state
        return limit is not None and (len(state.connections) >= limit or len(state.tasks) + 1 >= limit)


class OwnedRequest(Cycle, Carried):
    """One request of another worker's client."""

    def __init__(self, owner: RawOwner, stream: ServedRaw, head: OpenRaw) -> None:
        self.owner = owner
        self.stream = stream
        self.meta = head.meta
        flags = head.flags
        path = head.path
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": owner.asgi.copy(),
            "http_version": head.http_version,
            "server": head.server,
            "client": head.client,
            "scheme": head.scheme,
            "root_path": owner.root_path,
            "headers": head.headers,
            "state": owner.state(),
            "method": head.method,
            "path": path,
            "raw_path": path.encode("ascii") if head.raw_path is None else head.raw_path,
            "query_string": head.query,
            DECIDED: self,
        }
        super().__init__(
            scope=scope,  # type: ignore[arg-type]
            transport=stream,  # type: ignore[arg-type]
            flow=stream,  # type: ignore[arg-type]
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=owner.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=flags & ASK != 0,
            keep_alive=flags & KEEP != 0,
            on_response=self._complete,
        )
        if flags & COMPLETE:
            if head.body:
                self.body += head.body
            self.more_body = False
            self.message_event.set()

    def left(self, task: asyncio.Task[None]) -> None:
        """The request's task is done."""
        stream = self.stream
        self.owner.server_state.tasks.discard(task)
        if not stream.ended and not self.response_complete and not stream.is_closing():
            stream.close()
        stream.left_by(task)

    def refuse(self, owner: str | None) -> None:
        self.disconnected = True  # nothing is answered here
        self.stream.refuse(owner)

    def _complete(self) -> None:
        self.owner.server_state.total_requests += 1
        self.stream.done()

    # what the stream tells
    def more(self, data: bytes, last: bool) -> None:
        self.body += data
        if last:
            self.more_body = False
        self.message_event.set()

    def gone(self) -> None:
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()

    def shut(self) -> None:
        self.gone()

    def closed(self) -> None:
        """The cycle closed by itself."""

    def pause(self) -> None:
        """The cycle looks at ``write_paused`` itself."""

    def resume(self) -> None:
        """The same."""
