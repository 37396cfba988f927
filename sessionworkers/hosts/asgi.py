"""The plain ASGI way in: ``app = SessionRouter(app)``, for any server with lifespan that forks or spawns workers.

The workers must share one runtime directory, which only the user can name here: ``SESSIONWORKERS_RUNTIME_DIR``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any

from sessionworkers.errors import ConfigError, SessionworkersError
from sessionworkers.ledger.ledger import App, Receive, Scope, Send
from sessionworkers.manager.sockets import bind_loopback
from sessionworkers.members.runtime import RuntimeDir
from sessionworkers.settings import Settings
from sessionworkers.worker.worker import Worker

log = logging.getLogger("sessionworkers")


class SessionRouter:
    """An ASGI app that makes ``app``'s in-memory sessions work on all workers that share the runtime directory.

    ``settings`` default to those of the environment and TOML. What cannot work (no runtime directory, wrong settings)
    fails the lifespan's start-up with a message; a request before start-up, so under a server without lifespan, gets
    RuntimeError.
    """

    def __init__(self, app: App, settings: Settings | None = None) -> None:
        self._app = app
        self._settings = settings
        self._worker: Worker | None = None
        self._runtime: RuntimeDir | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if self._worker is None:
            raise RuntimeError("SessionRouter needs a server that runs the ASGI lifespan; it was not started")
        await self._worker.app(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = _InnerLifespan(self._app, scope)
        await receive()  # lifespan.startup
        failed = await inner.startup()
        if failed is None:
            try:
                await self._start(scope)
            except (SessionworkersError, OSError) as error:
                problems = error.problems if isinstance(error, ConfigError) else (str(error),)
                failed = "sessionworkers: " + "; ".join(problems)
                await inner.shutdown()
        if failed is not None:
            await send({"type": "lifespan.startup.failed", "message": failed})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        if self._worker is not None:
            await self._worker.stop()
            self._worker = None
        if self._runtime is not None:
            self._runtime.remove()  # only the last worker's call removes it
        failed = await inner.shutdown()
        if failed is not None:
            await send({"type": "lifespan.shutdown.failed", "message": failed})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    async def _start(self, scope: Scope) -> None:
        settings = self._settings if self._settings is not None else Settings.load()
        if settings.runtime_dir is None:
            raise ConfigError(
                [
                    "SESSIONWORKERS_RUNTIME_DIR is not set: as a plain ASGI app the workers can only find each other "
                    "in a directory that you name (an empty path on tmpfs, for example /dev/shm/myapp)"
                ]
            )
        self._runtime = RuntimeDir.at(settings.runtime_dir)
        self._worker = Worker(self._app, settings, self._runtime.path)
        state: dict[str, Any] = scope.get("state") or {}
        try:
            await self._worker.start(lambda: dict(state), _bind_local(settings))
        except BaseException:
            self._worker.release()
            self._worker = None
            raise


def _bind_local(settings: Settings) -> socket.socket | None:
    """The loopback port of the session API, if one is named: there is no public port here to count from."""
    if not settings.session_api or not settings.local_port:
        return None
    sock = bind_loopback(settings.local_port, shared=True)
    sock.set_inheritable(False)
    return sock


class _InnerLifespan:
    """The app's own lifespan, run in a task of its own; an app without lifespan counts as started."""

    def __init__(self, app: App, scope: Scope) -> None:
        self._app = app
        self._scope = scope
        self._to_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._supported = True

    async def startup(self) -> str | None:
        """Start the app; the message of a failure, or None."""
        self._task = asyncio.create_task(self._run(), name="sessionworkers-lifespan")
        return await self._ask("lifespan.startup")

    async def shutdown(self) -> str | None:
        """Stop the app; the message of a failure, or None."""
        failed = await self._ask("lifespan.shutdown") if self._supported else None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task
        return failed

    async def _ask(self, kind: str) -> str | None:
        self._to_app.put_nowait({"type": kind})
        answer = await self._from_app.get()
        if answer is None:
            self._supported = False
            return None
        return answer.get("message", "") if answer["type"].endswith(".failed") else None

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._to_app.get, self._from_app.put)
        except Exception as error:
            log.debug("the app has no lifespan: %s", error)
        finally:
            self._from_app.put_nowait(None)
