"""The owner's side of raw frames: uvicorn's own request cycle on a stream that looks like its transport.

It is counted where uvicorn counts its own requests: in ``server_state.tasks`` (``limit_concurrency``, the wait of a
graceful shutdown) and ``total_requests`` (``limit_max_requests``), once, here. The access log is the acceptor's.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from sessionworkers.errors import NotMine
from sessionworkers.hop.codec import ASK, COMPLETE, KEEP, TUNNEL, OpenRaw
from sessionworkers.hop.raw import ServedRaw
from sessionworkers.hop.steps import Step
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
        request = OwnedRequest(self, stream, head)
        stream.request = request
        return self.task(request.run())

    def task(self, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that uvicorn counts as its own."""
        if not self.config.reset_contextvars:
            task = self.loop.create_task(run)
        elif sys.version_info >= (3, 11):
            task = self.loop.create_task(run, context=contextvars.Context())
        else:
            task = contextvars.Context().run(self.loop.create_task, run)
        tasks = self.server_state.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def full(self) -> bool:
        """``limit_concurrency`` is reached."""
        limit, state = self.limit, self.server_state
        return limit is not None and (len(state.connections) >= limit or len(state.tasks) >= limit)


class OwnedRequest:
    """One request of another worker's client."""

    __slots__ = ("cycle", "owner", "paused", "stream")

    def __init__(self, owner: RawOwner, stream: ServedRaw, head: OpenRaw) -> None:
        self.owner = owner
        self.stream = stream
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
            DECIDED: Carried(head.meta),
        }
        self.cycle = cycle = RequestResponseCycle(
            scope=scope,  # type: ignore[arg-type]
            transport=stream,  # type: ignore[arg-type]
            flow=stream,  # type: ignore[arg-type]
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=owner.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=bool(flags & ASK),
            keep_alive=bool(flags & KEEP),
            on_response=self._complete,
        )
        if flags & COMPLETE:
            cycle.body += head.body
            cycle.more_body = False
            cycle.message_event.set()

    async def run(self) -> None:
        """The request's task."""
        stream = self.stream
        step = Step(self.cycle.run_asgi(service_unavailable if self.owner.full() else self._app))
        stream.first = False
        stream.settle()
        if not step.done:
            try:
                await step.rest()
            finally:
                stream.settle()
        if not stream.ended and not stream.is_closing() and not self.cycle.response_complete:
            stream.close()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.owner.app(scope, receive, send)
        except NotMine as error:
            if self.cycle.response_started:
                raise
            self.cycle.disconnected = True  # nothing is answered here
            self.stream.refuse(error.owner)

    def _complete(self) -> None:
        self.owner.server_state.total_requests += 1
        self.stream.done()

    def body(self, data: bytes, last: bool) -> None:
        cycle = self.cycle
        cycle.body += data
        if last:
            cycle.more_body = False
        cycle.message_event.set()

    def gone(self) -> None:
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.disconnected = True
        cycle.message_event.set()

    def shut(self) -> None:
        self.gone()

    def closed(self) -> None:
        """The cycle closed by itself."""

    def pause(self) -> None:
        """The cycle looks at ``write_paused`` itself."""

    def resume(self) -> None:
        """The same."""
