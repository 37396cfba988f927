"""Running under uvicorn: its `Config` and `Server` with a `Worker` composed around the app.

Order (uvicorn's seams, 0.50 and later): ``config.load()`` imports the app and makes its worker; the lifespan class is
wrapped so that the worker starts after the app did and stops before it does, with lifespan on, auto and off alike; the
proxy headers are read once, outside the router, so that an owner sees the client as the accepting worker did.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.logging import AccessFormatter
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import HANDLED_SIGNALS, ServerState

from sessionworkers.errors import SessionworkersError
from sessionworkers.hosts import raw
from sessionworkers.hosts.handover import Handover
from sessionworkers.hosts.protocol import replacement
from sessionworkers.hosts.raw_owner import RawOwner
from sessionworkers.manager.protocol import ManagerLink
from sessionworkers.members.identity import Roster
from sessionworkers.worker.router import Router
from sessionworkers.worker.worker import Worker

if TYPE_CHECKING:
    from sessionworkers.settings import Settings

log = logging.getLogger("uvicorn.error")

STARTUP_FAILURE = 3
"""uvicorn's exit code for a worker that could not start; whoever sees it does not start another."""

GRACEFUL_TIMEOUT = 30
"""Seconds, gunicorn's default. uvicorn's own is none, and one endless stream then holds its shutdown up for ever."""


class SessionConfig(uvicorn.Config):
    """uvicorn's configuration; loading it composes the `Worker`. ``worker`` is there once loaded."""

    worker: Worker
    accepting: raw.Accepting | None = None
    """Carries requests to their owners as raw frames, where uvicorn's protocol allows it."""
    handover: Handover | None = None
    server: SessionServer
    """The server that was made for this configuration, and its state."""
    server_state: ServerState

    def __init__(
        self,
        app: Any,
        *,
        settings: Settings,
        runtime_dir: str | None,
        local: socket.socket | None = None,
        **options: Any,
    ) -> None:
        self._settings = settings
        self._runtime_dir = runtime_dir
        self._local = local
        self._adopting: set[asyncio.Task[None]] = set()
        super().__init__(app, **options)

    def load(self) -> None:
        """Import the app and put the router around it, inside the proxy headers."""
        proxy_headers, self.proxy_headers = self.proxy_headers, False
        try:
            super().load()
        finally:
            self.proxy_headers = proxy_headers
        self.worker = Worker(self.loaded_app, self._settings, self._runtime_dir)
        self.loaded_app = self.worker.app
        if proxy_headers:
            self.loaded_app = ProxyHeadersMiddleware(self.loaded_app, trusted_hosts=self.forwarded_allow_ips)
        if isinstance(self.worker.app, Router) and self.worker.member is not None:
            why_not = raw.fits(self.http_protocol_class)
            if why_not:
                log.info("Requests of other workers' sessions go by ASGI frames: %s", why_not)
            else:
                self.accepting = raw.Accepting(self.worker.app, self)
        self.http_protocol_class = replacement(self.http_protocol_class)
        self.lifespan_class = _lifespan(self.lifespan_class, self, self._local)

    def before_start(self, state: Callable[[], dict[str, Any]]) -> None:
        """On the worker's loop, before other workers can reach it."""
        member = self.worker.member
        if self.accepting is None or member is None or self.worker.runtime is None:
            return
        self.worker.open_raw = RawOwner(self, self.server_state, state).open
        if self._settings.handover and raw.HANDOVER and not self.is_ssl:
            roster = Roster(self.worker.runtime)
            self.handover = Handover(member.uid, roster.socket_path, self._adopt)
            self.accepting.handover = self.handover
            self.worker.take_sockets = self.handover.take

    def _adopt(self, sock: socket.socket, data: bytes, acknowledge: Callable[[], None] | None) -> None:
        """Serve a connection that another worker accepted, or one that could not be handed over."""
        loop = asyncio.get_running_loop()
        protocol: Any = self.http_protocol_class(
            config=self,  # type: ignore[call-arg]
            server_state=self.server_state,
            app_state=self.server.lifespan.state,
            _loop=loop,
        )
        protocol.arrive(data, acknowledge)

        async def serve() -> None:
            try:
                await loop.connect_accepted_socket(lambda: protocol, sock)
            except OSError:  # the client is gone meanwhile
                sock.close()
                if acknowledge is not None:
                    acknowledge()
                return
            if self.server.should_exit and protocol in self.server_state.connections:
                protocol.shutdown()  # all others have been told so already

        task = loop.create_task(serve())
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)


def _lifespan(base: Any, config: SessionConfig, local: socket.socket | None) -> Any:
    """``base`` (uvicorn's lifespan, on, auto or off) with the worker started inside it."""
    worker, grace = config.worker, config.timeout_graceful_shutdown

    class SessionLifespan(base):  # type: ignore[misc]
        should_exit: bool

        async def startup(self) -> None:
            await super().startup()
            if self.should_exit:
                worker.release()
                return
            state: dict[str, Any] = getattr(self, "state", {})
            try:
                config.before_start(state.copy)
                await worker.start(state.copy, local)
            except (SessionworkersError, OSError) as error:
                log.error("The private server could not start: %s", error)
                worker.release()
                self.should_exit = True

        async def shutdown(self) -> None:
            if config.handover is not None:
                await config.handover.close()
            await worker.stop(grace)
            await super().shutdown()

    return SessionLifespan


class SessionServer(uvicorn.Server):
    """uvicorn's server; a signal ends it, and what follows `serve` still runs.

    uvicorn raises a captured signal again when it is done, so that code after ``serve()`` never runs on TERM. Here the
    signals are only noted in ``captured``. `handle_exit` stays uvicorn's: sse-starlette, under the MCP SDK, patches it.
    """

    def __init__(self, config: SessionConfig) -> None:
        super().__init__(config)
        config.server, config.server_state = self, self.server_state
        self.captured: list[int] = self._captured_signals

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


class RouteFormatter(AccessFormatter):
    """uvicorn's access log with the route at the end of the line: ``(here)``, ``(hop 1f3a9c02)``, ``(gone)``."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        route = getattr(record, "route", "-")
        return line if route == "-" else f"{line} ({route})"


def log_config(given: Any) -> Any:
    """uvicorn's own logging with the route added to the access log, unless the user brought a configuration."""
    if given is not None and given is not LOGGING_CONFIG:
        return given
    config = copy.deepcopy(LOGGING_CONFIG)
    config["loggers"]["sessionworkers"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    config["formatters"]["access"]["()"] = "sessionworkers.hosts.uvicorn.RouteFormatter"
    return config


def run_worker(
    config_kwargs: Mapping[str, Any],
    settings: Settings,
    sockets: list[socket.socket] | None,
    runtime_dir: str | None,
    *,
    parent_fd: int | None = None,
    local: socket.socket | None = None,
) -> int:
    """Serve until a signal or the manager says stop; the exit code.

    ``local`` listens on 127.0.0.1 for ends of explicit sessions.
    ``config_kwargs`` are `uvicorn.Config`'s, ``app`` included. ``sockets`` None: uvicorn binds by itself (one worker).
    """
    options = dict(config_kwargs)
    app = options.pop("app")
    options["log_config"] = log_config(options.get("log_config"))
    if options.get("timeout_graceful_shutdown") is None:
        options["timeout_graceful_shutdown"] = GRACEFUL_TIMEOUT
    config = SessionConfig(app, settings=settings, runtime_dir=runtime_dir, local=local, **options)
    link = ManagerLink(parent_fd) if parent_fd is not None else None
    server = SessionServer(config)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        if link is not None:
            await link.start(loop, lambda: _parent_gone(server))
        startup = server.startup

        async def started(sockets: list[socket.socket] | None = None) -> None:
            await startup(sockets)
            if server.started:
                rules = "Session rules: " + (", ".join(config.worker.names) or "none")
                if link is not None:
                    link.serving([rules])
                else:
                    log.info(rules)

        server.startup = started  # type: ignore[method-assign]
        await server.serve(sockets=sockets)

    try:
        asyncio_run(serve(), config.get_loop_factory())
    except SessionworkersError as error:
        log.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt:
        pass
    finally:
        worker = getattr(config, "worker", None)
        if worker is not None:
            worker.release()
    if not server.started:
        return STARTUP_FAILURE
    if runtime_dir is None and signal.SIGTERM in server.captured and parent_fd is None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)  # as uvicorn ends with one worker: killed by the signal it got
    return 0


def _parent_gone(server: SessionServer) -> None:
    """Stop; the link ends the process hard if that takes longer than it may."""
    log.warning("The parent process is gone; this worker stops")
    server.should_exit = True


def asyncio_run(main: Any, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> Any:
    """`asyncio.run` with a loop factory on every Python that is supported."""
    from uvicorn._compat import asyncio_run as run

    return run(main, loop_factory=loop_factory)


if sys.platform == "win32":  # pragma: no cover
    raise ImportError("sessionworkers needs Unix sockets with peer credentials: Linux")
