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
import math
import os
import random
import reprlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.logging import TRACE_LOG_LEVEL, AccessFormatter
from uvicorn.server import HANDLED_SIGNALS, ServerState

from sessionworkers.errors import SessionworkersError, StartupError
from sessionworkers.hosts import cycle, listener, raw
from sessionworkers.hosts.accepted import alike
from sessionworkers.hosts.cycle import QuickProxyHeaders
from sessionworkers.hosts.drain import Draining
from sessionworkers.hosts.handover import Handover
from sessionworkers.hosts.heads import Heads
from sessionworkers.hosts.listener import Listener
from sessionworkers.hosts.protocol import replacement
from sessionworkers.hosts.raw_owner import RawOwner
from sessionworkers.manager.protocol import ManagerLink
from sessionworkers.members.identity import Roster
from sessionworkers.worker.worker import Worker

if TYPE_CHECKING:
    from sessionworkers.settings import Settings

log = logging.getLogger("uvicorn.error")

STARTUP_FAILURE = 3
"""uvicorn's exit code for a worker that could not start; whoever sees it does not start another."""

INTERRUPTED = 130
"""The exit code after a second INT, as the manager's."""

GRACEFUL_TIMEOUT = 30
"""Seconds, gunicorn's default. uvicorn's own is none, and one endless stream then holds its shutdown up for ever."""


class SessionConfig(uvicorn.Config):
    """uvicorn's configuration; loading it composes the `Worker`. ``worker`` is there once loaded."""

    worker: Worker
    accepting: raw.Accepting | None = None
    """Carries requests to their owners as raw frames, where uvicorn's protocol allows it."""
    handover: Handover | None = None
    heads: Heads | None = None
    """Heads of requests that were parsed before, where uvicorn's code is known."""
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
        self.settings = settings
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
        refuse_what_cannot_be_called(self)
        self.worker = Worker(self.loaded_app, self.settings, self._runtime_dir)
        self.loaded_app = self.worker.app
        if proxy_headers:
            self.loaded_app = QuickProxyHeaders(self.loaded_app, trusted_hosts=self.forwarded_allow_ips)
        why_not = raw.fits(self.http_protocol_class)
        router, explicit = self.worker.router, self.worker.explicit
        passes = explicit.app.passes if explicit is not None else None
        if router is not None and self.worker.member is not None:
            if why_not:
                log.info("Requests of other workers' sessions go by ASGI frames: %s", why_not)
            else:
                self.accepting = raw.Accepting(router, self, passes)
        if not why_not and cycle.KNOWN_HERE and self.limit_concurrency is None:
            self.heads = Heads(self.root_path, passes)
        self.http_protocol_class = replacement(self.http_protocol_class, known=not why_not)
        self.lifespan_class = _lifespan(self.lifespan_class, self, self._local)

    @property
    def accepts(self) -> bool:
        """Whether connections may be accepted by a `Listener`."""
        traced = log.isEnabledFor(TRACE_LOG_LEVEL)  # uvicorn's own then tell of every connection
        return listener.ENABLED and self.heads is not None and not self.is_ssl and not traced

    def before_start(self, state: Callable[[], dict[str, Any]]) -> None:
        """On the worker's loop, before other workers can reach it."""
        member = self.worker.member
        if self.accepting is None or member is None or self.worker.runtime is None:
            return
        self.worker.opens_raw = RawOwner(self, self.server_state, state)
        if self.settings.handover and raw.HANDOVER and not self.is_ssl:
            roster = Roster(self.worker.runtime)
            self.handover = Handover(member.uid, roster.socket_path, self._adopt)
            self.accepting.handover = self.handover
            self.worker.take_sockets = self.handover.take
            self.worker.hands_over(self.handover.channel)

    def _adopt(self, sock: socket.socket, data: bytes, moves: int, acknowledge: Callable[[], None] | None) -> None:
        """Serve a connection that another worker accepted, or one that could not be handed over."""
        loop = asyncio.get_running_loop()
        protocol: Any = self.http_protocol_class(
            config=self,  # type: ignore[call-arg]
            server_state=self.server_state,
            app_state=self.server.lifespan.state,
            _loop=loop,
        )
        protocol.arrive(data, moves, acknowledge)

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


def refuse_what_cannot_be_called(config: uvicorn.Config) -> None:
    """uvicorn starts it and answers 500 to every request. StartupError."""
    app: Any = config.loaded_app
    while type(app).__module__.startswith("uvicorn.middleware.") and hasattr(app, "app"):
        app = app.app
    if not callable(app):
        name = config.app if isinstance(config.app, str) else "it"
        raise StartupError(f"The app cannot be loaded: {name} gives {reprlib.repr(app)}, which cannot be called")


def _lifespan(base: Any, config: SessionConfig, local: socket.socket | None) -> Any:
    """``base`` (uvicorn's lifespan, on, auto or off) with the worker started inside it."""
    worker = config.worker

    class SessionLifespan(base):  # type: ignore[misc]
        should_exit: bool
        _closing: asyncio.Task[None] | None = None
        _hurried = False

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
            if not self._hurried:
                self._closing = asyncio.create_task(self._close(), name="sessionworkers-closing")
                await asyncio.wait([self._closing])
                if not self._closing.cancelled():
                    self._closing.result()
            if self._hurried:
                await worker.cut()
            await super().shutdown()

        async def _close(self) -> None:
            if config.handover is not None:
                await config.handover.close()
            await worker.stop(config.timeout_graceful_shutdown)

        def hurry(self, seconds: float) -> None:
            """From now on wait for nothing but the app's own shutdown, and for that so long."""
            self._hurried = True
            if self._closing is not None:
                self._closing.cancel()
            asyncio.get_running_loop().call_later(seconds, self._give_up, seconds)

        def _give_up(self, seconds: float) -> None:
            ended: asyncio.Event | None = getattr(self, "shutdown_event", None)  # none with lifespan off
            if ended is not None and not ended.is_set():
                log.warning("The app's shutdown has not ended within %g s; this worker leaves", seconds)
                self.shutdown_failed = True  # its task is cancelled with the loop: that is no news
                ended.set()

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
        self.draining: Draining | None = None
        """There once the server has started."""
        self.link: ManagerLink | None = None
        self.waits = False
        """Sessions are waited for when the whole server stops (``--shutdown-timeout``)."""
        self._born = time.monotonic()
        self._worn_at = _lifetime(config.settings.max_worker_lifetime)
        self._most_requests = self.limit_max_requests
        self._worn = False
        self._busy = Busy()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; from then on signals and the manager may drain it."""
        config: Any = self.config
        own = sockets if config.accepts else None
        await super().startup(sockets if own is None else [])
        if own is not None:
            loop = asyncio.get_running_loop()
            make = alike(config, self.server_state, self.lifespan.state, loop)
            servers: list[Any] = [Listener(loop, sock, make, config.backlog) for sock in own]
            self.servers = servers
        if self.started:
            self.draining = Draining(self, self.worker)

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's tick, ten a second, and the drain's."""
        if self.draining is not None:
            if self.draining.tick():
                return True
            if counter % 10 == 0:
                self._report(self.draining)
            if self._replaceable and not self._worn:
                self._wear()
        return await super().on_tick(counter)

    @property
    def _replaceable(self) -> bool:
        """Somebody starts a successor before this worker goes."""
        return self.link is not None

    @property
    def worker(self) -> Worker:
        """What is composed around the app; there once the configuration is loaded."""
        worker: Worker = self.config.worker  # type: ignore[attr-defined]
        return worker

    def aged(self) -> str:
        """Why this worker wants a successor, "" as long as it does not."""
        if self._most_requests is not None:
            self.limit_max_requests = None  # uvicorn's own way would end this worker on the spot
            if self.server_state.total_requests >= self._most_requests:
                return f"has served {self.server_state.total_requests} requests"
        age = time.monotonic() - self._born
        return f"is {age:.0f} s old" if age >= self._worn_at else ""

    def _wear(self) -> None:
        """Ask for a successor at the limits; until it is there this worker serves on."""
        assert self.link is not None
        why = self.aged()
        if why:
            self._worn = True
            self.link.worn(why)

    def _report(self, draining: Draining) -> None:
        worker = self.worker
        worker.requests, _ = draining.count()
        worker.publish()
        if self.link is not None:
            self.link.report(**worker.report(self._busy.share()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's shutdown, after the drain's last words."""
        if self.link is not None:
            self.link.ending()
        if self.draining is not None and self.draining.begun:
            await self.draining.cut()
        await super().shutdown(sockets)
        if self.force_exit:  # the app's own shutdown is left out: that its lifespan is cancelled is no news
            self.lifespan.shutdown_failed = True

    def obey(self, message: dict[str, Any]) -> None:
        """An order of the manager (see ``manager.protocol``); unknown ones are left alone."""
        if self.draining is None:
            return
        what = message.get("do")
        if what in ("yield", "resume"):
            self.worker.give_way(what == "yield")
        elif what == "drain":
            timeout = message.get("timeout")
            self.draining.begin(math.inf if timeout is None else float(timeout), all=bool(message.get("all")))

    def on_term(self, sig: int, frame: FrameType | None) -> None:
        """TERM: drain first where sessions are waited for; a second one changes nothing. A manager orders drains by
        its messages, and sends TERM to whom it does not want to wait for."""
        timeout = self.config.settings.shutdown_timeout  # type: ignore[attr-defined]
        if timeout is None or self.draining is None or self.link is not None:
            self.handle_exit(sig, frame)
            return
        self.captured.append(sig)
        asyncio.get_running_loop().call_soon_threadsafe(lambda: self._drain_all(timeout))

    def _drain_all(self, timeout: float) -> None:
        if self.draining is not None:
            self.draining.begin(timeout, all=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {sig: self.on_term if sig == signal.SIGTERM else self.handle_exit for sig in HANDLED_SIGNALS}
        before = {sig: signal.signal(sig, handler) for sig, handler in handlers.items()}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


class Busy:
    """The share of one CPU that this process uses, since the last time it was asked."""

    def __init__(self) -> None:
        self._cpu, self._at = time.process_time(), time.monotonic()

    def share(self) -> float:
        cpu, at = time.process_time(), time.monotonic()
        share = (cpu - self._cpu) / max(at - self._at, 1e-6)
        self._cpu, self._at = cpu, at
        return round(share, 2)


def _lifetime(setting: float) -> float:
    """``--max-worker-lifetime`` of this worker: spread, so that workers that started together do not age so."""
    return setting * random.uniform(0.9, 1.1) if setting else math.inf


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
    server.link = link

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        if link is not None:
            await link.start(loop, lambda: _parent_gone(server), server.obey)
        startup = server.startup

        async def started(sockets: list[socket.socket] | None = None) -> None:
            await startup(sockets)
            if server.started:
                rules = "Session rules: " + (", ".join(config.worker.names) or "none")
                if link is not None:
                    link.serving([rules], uid=config.worker.ledger.book.store.me, does=["drain"])
                else:
                    log.info(rules)

        server.startup = started  # type: ignore[method-assign]
        await server.serve(sockets=sockets)
        log.disabled = forced()  # requests are cancelled with the loop, each with a traceback: it was asked for

    def forced() -> bool:
        return server.force_exit and link is None

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
    if forced():
        return INTERRUPTED
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
