"""Draining under uvicorn: what its `Server` does between the order to drain and its shutdown.

uvicorn's own shutdown is not a drain: it sends 1012 to every WebSocket at once, cuts idle kept-alive connections (and
with them a request that is on its way), and never tells an open stream. So, on each of the server's ticks:

1. The listeners are closed as soon as another worker serves; a server that stops keeps them, to say 503, until
   nothing holds this worker back, and then serves what was accepted last.
2. Every connection gets an app that adds ``Connection: close``. A request whose head is not answered yet will end its
   connection (not with h11); one in mid-reply leaves that to the next request, so that none is lost on the way. No
   connection of another worker is taken any more: its requests are forwarded here instead.
3. The worker's table (`worker.drain`) says whether anything holds it back. `should_exit` is not touched before that:
   sse-starlette, under the MCP SDK, ends its streams by it.
4. When nothing but idle connections is left they are handed to workers that serve, where connections can be. Not
   sooner: who has a session here would be sent back and forth.
5. At the deadline what is left is told: `handle_exit`, for sse-starlette; then ``http.disconnect``. WebSockets get 1012
   from uvicorn's shutdown, which follows.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sessionworkers.worker.drain import End, Held, Phase

if TYPE_CHECKING:
    from sessionworkers.hosts.handover import Handover
    from sessionworkers.hosts.uvicorn import SessionServer
    from sessionworkers.worker.worker import Worker

log = logging.getLogger("uvicorn.error")

LAST_WORDS = 0.5
"""Seconds that apps have to end their streams once they were told."""
SETTLED = 5
"""Seconds for requests of other workers that are still on their way when nothing holds this one back."""
ACCEPTED = 0.5
"""Seconds for connections that were accepted just before the listeners closed; cut, they would be reset."""
HANDING = 1.0
"""Seconds for handing idle connections over: the way to another worker may have to be opened first."""
SAID_EVERY = 30.0
"""Seconds between two log lines on what a drain waits for."""

Send = Callable[[Any], Awaitable[None]]


def closing(app: Any) -> Any:
    """``app`` whose replies end their connection."""

    def closed(scope: Any, receive: Any, send: Send) -> Any:
        if scope["type"] != "http":
            return app(scope, receive, send)

        def send_closing(event: Any) -> Awaitable[None]:
            if event["type"] == "http.response.start":
                headers = [pair for pair in event.get("headers") or () if pair[0].lower() != b"connection"]
                event = {**event, "headers": [*headers, (b"connection", b"close")]}
            return send(event)

        return app(scope, receive, send_closing)

    return closed


def busy(connection: Any) -> bool:
    """Whether a request of this connection, or its WebSocket, is open. ``connection`` is a protocol of uvicorn's."""
    if not hasattr(connection, "cycle"):
        return True  # a WebSocket, or a protocol that has several requests at a time: its tasks are counted too
    cycle = connection.cycle
    return cycle is not None and not cycle.response_complete


class Draining:
    """The drain of ``server``, which calls `tick` on each of its own ticks, and `cut` before its shutdown."""

    def __init__(self, server: SessionServer, worker: Worker) -> None:
        self._server = server
        self._worker = worker
        self._closed: float | None = None
        """When the listeners were closed."""
        self._going = False
        """Nothing held it back: it will be gone in a moment."""
        self._late = False
        self._handing: float | None = None
        """When the first idle connection was to be handed over."""
        self._said = 0.0
        self.ends_alone: Callable[[], bool] = lambda: False
        """Told by a host that cannot say why it stops a worker: nobody takes this one's place, so the server stops."""

    @property
    def begun(self) -> bool:
        """Whether this worker drains."""
        return self._worker.drain.phase in (Phase.DRAINING, Phase.ENDING)

    @property
    def _handover(self) -> Handover | None:
        handover: Handover | None = self._server.config.handover  # type: ignore[attr-defined]
        return handover

    def begin(self, timeout: float, *, all: bool = False, sessions: bool = True) -> None:
        """Serve what this worker holds for up to ``timeout`` seconds, ``inf`` for no limit."""
        if not self._worker.begin_drain(timeout, all=all, sessions=sessions):
            return
        self._said = time.monotonic()
        limit = "without a limit" if timeout == math.inf else f"for up to {timeout:g} s"
        log.info("Worker [%d] drains %s", os.getpid(), limit)
        config, app = self._server.config, self._server.config.loaded_app
        config.loaded_app = app_closing = closing(app)
        if getattr(config, "accepting", None) is not None:
            config.accepting = None  # type: ignore[attr-defined]
        if self._handover is not None:
            self._handover.take_no_more()
        for connection in self._server.server_state.connections:
            self._turn(connection, app, app_closing)
        if not all:
            self._close_listeners()

    def _turn(self, connection: Any, app: Any, app_closing: Any) -> None:
        """The replies of this connection end it from the next one on."""
        if getattr(connection, "accepting", None) is not None:
            connection.accepting = None
            connection.follow()
        if getattr(connection, "app", None) is app:
            connection.app = app_closing
        cycle = getattr(connection, "cycle", None)
        waits = getattr(connection, "pipeline", None)  # h11's has none: its cycle would close without a word before
        if cycle is not None and waits is not None and not waits and busy(connection) and not cycle.response_started:
            cycle.keep_alive = False

    def _close_listeners(self) -> None:
        """Once another worker accepts. The sockets are shared: what waits in their backlog is accepted there."""
        if self._worker.others():
            self._close()

    def _close(self) -> None:
        if self._closed is None:
            self._closed = time.monotonic()
            for server in self._server.servers:
                server.close()

    def tick(self) -> bool:
        """What is due; True when the server is to shut down."""
        if not self.begun:
            return False
        worker, drain = self._worker, self._worker.drain
        if not drain.all:
            if self.ends_alone():
                left = drain.deadline - time.monotonic()
                if not self._server.waits:  # uvicorn's shutdown: only requests in flight are waited for
                    self._server.config.timeout_graceful_shutdown = max(1, min(round(left), 3_600))
                    self._server.handle_exit(signal.SIGTERM, None)
                    return True
                worker.begin_drain(left, all=True)
            else:
                self._close_listeners()
        now = time.monotonic()
        requests, idle = self.count()
        held = worker.held(requests, idle)
        if idle and self._hand_over(held, now):
            return False
        if self._going:
            # Its listeners are closed for good: a session that comes to life in this moment does not bring it back.
            held = Held(held.requests, held.hopped)
        if now < drain.deadline and not drain.holding(held, now):
            self._going = True
            self._close()
            if self._closed is None or now - self._closed < ACCEPTED:
                return False  # what was accepted last has perhaps not been read yet
        end = drain.over(held, now)
        if end is None:
            if now - self._said > SAID_EVERY:
                self._said = now
                log.info("Worker [%d] drains, held back by %s", os.getpid(), ", ".join(drain.holding(held, now)))
            return False
        self._late = end is End.DEADLINE
        reasons = ", ".join(drain.holding(held, now))
        log.info(
            "Worker [%d] has drained: %s%s",
            os.getpid(),
            end.value,
            f"; left are {reasons}" if self._late and reasons else "",
        )
        return True

    def _hand_over(self, held: Held, now: float) -> bool:
        """Give the idle connections away shortly before this worker leaves; True while some are to follow."""
        drain, handover = self._worker.drain, self._handover
        leaving = not drain.holding(Held(held.requests, held.hopped, held.sessions), now)
        if drain.all or handover is None or not (leaving or drain.deadline - now < HANDING):
            return False
        others = self._worker.others()
        if not others:
            return False
        idle = [each for each in self._server.server_state.connections if hasattr(each, "hand_over") and not busy(each)]
        for connection, other in zip(idle, itertools.cycle(others), strict=False):
            connection.hand_over(handover, other)
        self._handing = now if self._handing is None else self._handing
        return now < min(self._handing + HANDING, drain.deadline) and self.count()[1] > 0

    def count(self) -> tuple[int, int]:
        """Open requests and idle connections of the public side."""
        state = self._server.server_state
        open_ = sum(map(busy, state.connections))
        return max(open_, len(state.tasks)), len(state.connections) - open_

    async def cut(self) -> None:
        """Before the shutdown: at the deadline tell what is left that it is over."""
        server = self._server
        if self._worker.drain.phase is not Phase.ENDING:
            return  # told to stop in the middle of it: uvicorn's shutdown does that
        if not self._late:
            server.config.timeout_graceful_shutdown = SETTLED
            return
        server.config.timeout_graceful_shutdown = 1
        server.handle_exit(signal.SIGTERM, None)
        for connection in list(server.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        tasks = [task for task in server.server_state.tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        for connection in list(server.server_state.connections):
            if hasattr(connection, "cycle") and getattr(connection, "transport", None) is not None:
                connection.transport.close()
