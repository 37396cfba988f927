"""The worker class for gunicorn: ``gunicorn -k sessionworkers.Worker``.

uvicorn-worker's class with sessions, and with what it lacks (all seen with gunicorn 27): a heartbeat by monotonic time
that goes on while the worker stops, an end when the arbiter is gone, `graceful_timeout` honoured, QUIT that is quick
(and still runs the app's own shutdown), ``--reload`` that reloads, and a failure to start that is a boot error (exit 3)
instead of a respawn loop.

The constructor runs in the arbiter, before fork: there the runtime directory is made, once. The identity is made in
`run`, after fork.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import glob
import inspect
import os
import signal
import socket
import ssl
import sys
from types import FrameType
from typing import Any

import uvicorn
from gunicorn.arbiter import Arbiter
from uvicorn_worker import UvicornWorker

from sessionworkers.errors import ConfigError, RuntimeDirError, SessionworkersError, StartupError
from sessionworkers.hosts.uvicorn import SessionConfig, SessionServer, asyncio_run
from sessionworkers.manager.protocol import PARENT_GRACE
from sessionworkers.manager.sockets import NO_PORT, bind_loopback, tell_local_port
from sessionworkers.members.runtime import RuntimeDir, default_bases
from sessionworkers.settings import Settings

KEEP_ALIVE = 75
"""Seconds. gunicorn's default of 2 closes idle connections under the feet of pooled clients, and with them sessions."""

GUNICORN_KEEP_ALIVE = 2
"""gunicorn's own default, which cannot be told from a 2 that the user gave."""

SHUTDOWN_MARGIN = 2
"""Seconds between our graceful end and the arbiter's SIGKILL, for close callbacks and the app's own shutdown."""

QUIT_GRACE = 1.5
"""Seconds from QUIT that the app's own shutdown gets. Less than the two after which the arbiter kills a worker that had
got TERM before."""

QUIT_LIMIT = 2 * QUIT_GRACE
"""Seconds from QUIT after which the process ends hard: the app holds the loop up, or refuses to be cancelled."""

LAST_WORDS = 0.2
"""Seconds that requests have to end when their connections were cut; then they are cancelled."""

ARBITER_FILE = "arbiter.pid"
"""In the runtime directory: the pid of the arbiter that made it, by which the arbiter of a USR2 re-exec finds it."""

_made: dict[int, tuple[Settings, RuntimeDir]] = {}
"""What this process's constructor made, by pid: a forked child has its parent's entry, which is not its own."""


class Worker(UvicornWorker):
    """gunicorn worker that makes in-memory session state work on many workers. Settings: environment and TOML."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings, self.runtime = _prepare(self.cfg, self.log)
        self._server: ArbitersServer | None = None
        self._local: socket.socket | None = None

    def load_wsgi(self) -> None:
        """Bind the loopback port of the session API, where the app that is loaded next finds it."""
        try:
            self._local = _bind_local(self.settings, self.sockets)
        except SessionworkersError as error:
            self.log.error("%s", error)
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
        super().load_wsgi()  # type: ignore[no-untyped-call]

    def init_signals(self) -> None:
        super().init_signals()
        signal.signal(signal.SIGQUIT, self.handle_quit)

    def handle_quit(self, sig: int, frame: Any) -> None:
        """QUIT, and INT at the arbiter: stop now. All that is waited for is the app's own shutdown, not for long."""
        self.alive = False
        if self._server is None:
            sys.exit(0)
        signal.signal(signal.SIGALRM, self._leave)
        signal.setitimer(signal.ITIMER_REAL, QUIT_LIMIT)
        self._server.quit()

    def _leave(self, sig: int, frame: Any) -> None:
        self.log.warning("The app does not end within %g s; this worker leaves", QUIT_LIMIT)
        os._exit(0)

    def run(self) -> None:
        """Serve until the arbiter says stop. Exits 3 if the worker could not start."""
        try:
            asyncio_run(self._serve(), self.config.get_loop_factory())
        except SessionworkersError as error:
            self.log.error("%s", error)
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._server is None or not self._server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    async def _serve(self) -> None:
        config = SessionConfig(
            self.wsgi,
            settings=self.settings,
            runtime_dir=self.runtime.path,
            local=self._local,
            **_options(self.config, self.cfg),
        )
        self._server = server = ArbitersServer(config, ppid=self.ppid, grace=_grace(self.cfg))
        heartbeat = asyncio.create_task(self._heartbeat(server), name="sessionworkers-heartbeat")
        try:
            await server.serve(sockets=self.sockets)
        except (SystemExit, SessionworkersError):  # the latter is told by `run`
            raise
        except Exception:
            if server.started:
                raise
            self.log.exception("The worker could not start")
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
        finally:
            heartbeat.cancel()
            worker = getattr(config, "worker", None)
            if worker is not None:
                worker.release()

    async def _heartbeat(self, server: SessionServer) -> None:
        """Tell the arbiter that the loop runs, to the very end; leave when the arbiter is gone or a file changed."""
        loop = asyncio.get_running_loop()
        every = min(1.0, self.timeout / 4) if self.timeout else 1.0
        leaving = False
        while True:
            self.tmp.notify()  # type: ignore[no-untyped-call]
            if os.getppid() != self.ppid and not leaving:
                leaving = True
                self.log.warning("The arbiter is gone; this worker stops")
                server.should_exit = True
                loop.call_later(PARENT_GRACE, os._exit, 1)
            if not self.alive and not server.should_exit:
                server.should_exit = True  # --reload: a file has changed
            await asyncio.sleep(every)


class ArbitersServer(SessionServer):
    """Drains as far as gunicorn's arbiter lets a worker do so.

    The arbiter sends TERM, again every second, and does not say why: a reload (its new workers are still booting), one
    worker less, or the end of the server. So TERM begins a drain for the graceful timeout, less a margin; a worker that
    sees nobody who serves and nobody who boots knows that the server ends. ``max_requests`` is a drain too.
    """

    def __init__(self, config: SessionConfig, *, ppid: int, grace: int) -> None:
        super().__init__(config)
        self.waits = config.settings.shutdown_timeout is not None
        self._ppid = ppid
        self._grace = grace
        self._quit = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.draining is not None:
            self.draining.ends_alone = self._ends_alone

    def on_term(self, sig: int, frame: FrameType | None) -> None:
        if self.draining is None:
            self.handle_exit(sig, frame)
            return
        asyncio.get_running_loop().call_soon_threadsafe(self.draining.begin, float(self._grace))

    def quit(self) -> None:
        """Cut what is open and shut the app down, now. For a signal handler."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            asyncio.get_running_loop().call_soon_threadsafe(self._quit.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        cutting = asyncio.create_task(self._cut_at_quit(), name="sessionworkers-quit")
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    async def _cut_at_quit(self) -> None:
        """uvicorn's shutdown waits for connections and requests: they end here, and it goes on to the app's own."""
        await self._quit.wait()
        self.lifespan.hurry(QUIT_GRACE)
        await asyncio.sleep(0.05)  # WebSockets have just been told 1012
        state = self.server_state
        for connection in list(state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        tasks = set(state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        state.connections.clear()
        state.tasks.clear()  # what is left of them does not let itself be cancelled

    @property
    def _replaceable(self) -> bool:
        """A worker that is alone cannot wait for its successor, which the arbiter starts when it has gone."""
        return bool(self.worker.others()) or (self.draining is not None and self.draining.begun)

    def _wear(self) -> None:
        if self.draining is None or not self.aged():
            return
        roster = self.worker.roster
        assert roster is not None
        serving, all_ = len(roster.serving()), len(roster.uids())
        if serving - 1 >= all_ - serving + 1:  # after this one as many serve as drain
            self._worn = True
            self.draining.begin(self.config.settings.drain_timeout)  # type: ignore[attr-defined]

    def _ends_alone(self) -> bool:
        roster = self.worker.roster
        return roster is None or not (self.worker.others() or len(_children(self._ppid)) > len(roster.uids()))


def _children(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def _grace(cfg: Any) -> int:
    """Seconds for a drain, and for requests in flight: then the arbiter's SIGKILL is near."""
    return max(1, int(cfg.graceful_timeout) - SHUTDOWN_MARGIN)


def _bind_local(settings: Settings, public: list[Any]) -> socket.socket | None:
    """Every worker binds the port for itself (SO_REUSEPORT): the arbiter has nothing to hand on. StartupError."""
    port = settings.local_port if settings.session_api else 0
    if port == 0:
        return None
    if port is None:
        names = [sock.getsockname() for sock in public]
        port = next((name[1] + 1 for name in names if isinstance(name, tuple)), None)
        if port is None:
            raise StartupError(NO_PORT)
    sock = bind_loopback(port, shared=True)
    sock.set_inheritable(False)
    tell_local_port(sock)
    return sock


def _options(config: uvicorn.Config, cfg: Any) -> dict[str, Any]:
    """uvicorn's options as uvicorn-worker and the subclass's CONFIG_KWARGS made them, with ours on top."""
    names = inspect.signature(uvicorn.Config.__init__).parameters
    options = {name: getattr(config, name) for name in names if name not in ("self", "app") and hasattr(config, name)}
    for derived in ("reload_dirs", "reload_includes", "reload_excludes"):
        options.pop(derived, None)  # they are read for a reloader of uvicorn's own, which gunicorn replaces
    options["callback_notify"] = None  # ours goes on during the shutdown and reads the monotonic clock
    options["workers"] = 1
    if cfg.keepalive == GUNICORN_KEEP_ALIVE:
        options["timeout_keep_alive"] = KEEP_ALIVE
    if options.get("timeout_graceful_shutdown") is None:
        options["timeout_graceful_shutdown"] = _grace(cfg)
    if options.get("ssl_certfile"):
        options["ssl_version"] = ssl.PROTOCOL_TLS_SERVER  # gunicorn passes the deprecated PROTOCOL_TLS
    return options


def _prepare(cfg: Any, log: Any) -> tuple[Settings, RuntimeDir]:
    """Settings and runtime directory of this arbiter, made once. Exits 2 on settings that cannot work."""
    made = _made.get(os.getpid())
    if made is not None:
        return made
    try:
        settings = Settings.load()
        runtime = _handed_on(cfg) or _runtime(settings, cfg)
    except ConfigError as error:
        for problem in error.problems:
            log.error("%s", problem)
        sys.exit(error.exit_code)
    except SessionworkersError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)
    _made[os.getpid()] = settings, runtime
    atexit.register(_at_exit, os.getpid(), runtime)
    log.info("Session claims in %s", runtime.path)
    return settings, runtime


def _runtime(settings: Settings, cfg: Any) -> RuntimeDir:
    if settings.runtime_dir is not None:
        runtime = RuntimeDir.at(settings.runtime_dir, owner=_owner(cfg))
    else:
        runtime = RuntimeDir.create(owner=_owner(cfg))
    _note(runtime)
    return runtime


def _handed_on(cfg: Any) -> RuntimeDir | None:
    """The directory of the arbiter that re-executed into this one (USR2): both run side by side and share claims."""
    before = os.environ.get("GUNICORN_PID", "")
    if not before.isdigit() or int(before) == os.getpid():
        return None
    owner = _owner(cfg)
    for note in (note for base in default_bases(owner) for note in glob.glob(f"{base}/sw-*/{ARBITER_FILE}")):
        try:
            with open(note, encoding="ascii") as file:
                if file.read().strip() != before:
                    continue
            runtime = RuntimeDir.adopt(os.path.dirname(note), owner=owner, serve=True)
        except (OSError, RuntimeDirError):
            continue  # another user's, or just going
        _note(runtime)  # the next re-exec finds it by this arbiter's pid
        return runtime
    return None


def _owner(cfg: Any) -> tuple[int, int] | None:
    return (cfg.uid, cfg.gid) if cfg.uid != os.geteuid() else None


def _note(runtime: RuntimeDir) -> None:
    fd = os.open(ARBITER_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=runtime.fd)
    try:
        os.write(fd, str(os.getpid()).encode())
    finally:
        os.close(fd)


def _at_exit(made_by: int, runtime: RuntimeDir) -> None:
    """The arbiter leaves: the directory goes with it, unless a re-exec's arbiter or workers still live by it."""
    if os.getpid() != made_by:
        return
    with contextlib.suppress(OSError):
        with open(os.path.join(runtime.path, ARBITER_FILE), encoding="ascii") as file:
            mine = file.read().strip() == str(made_by)
        if mine:
            os.unlink(ARBITER_FILE, dir_fd=runtime.fd)
    runtime.remove()
