"""``--reload``: uvicorn's own reloaders, with our worker as their target, and a stop that ends."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.supervisors import ChangeReload

from sessionworkers.cli.worker import serve
from sessionworkers.manager.process import WorkerOptions
from sessionworkers.manager.protocol import PARENT_GRACE
from sessionworkers.settings.handed import settings_from_json

if TYPE_CHECKING:
    from uvicorn.supervisors.basereload import BaseReload as _Reload
else:
    _Reload = ChangeReload

GRACEFUL = 3
"""Seconds for open requests at a reload, unless the user said. An open event stream must not hold it up."""
MARGIN = 5.0


class BoundedReload(_Reload):
    """uvicorn's reloader; a worker that has not stopped ``limit`` seconds after TERM is killed."""

    limit: float = GRACEFUL + MARGIN

    def restart(self) -> None:
        self._end()
        super().restart()

    def shutdown(self) -> None:
        self._end()
        super().shutdown()

    def _end(self) -> None:
        self.process.terminate()
        self.process.join(self.limit)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def run_reloading(
    config: uvicorn.Config,
    options: WorkerOptions,
    sockets: list[socket.socket],
    local: socket.socket | None,
    *,
    graceful_given: bool,
) -> None:
    """Serve and reload until a signal. One worker, in a process that the reloader starts anew for each change."""
    graceful = config.timeout_graceful_shutdown
    if not graceful_given or graceful is None:
        graceful = GRACEFUL
    # The descriptor has another number in the child: `local` says there that the last socket is the loopback port's.
    told = options.with_(
        config={**options.config, "timeout_graceful_shutdown": graceful}, local=0 if local is not None else None
    )
    sockets = sockets if local is None else [*sockets, local]
    plain = [socket.socket(fileno=os.dup(sock.fileno())) for sock in sockets]  # multiprocessing sends no subclass
    reloader = BoundedReload(config, target=functools.partial(serve_reloaded, told), sockets=plain)
    reloader.limit = graceful + MARGIN
    reloader.run()


def serve_reloaded(options: WorkerOptions, sockets: list[socket.socket]) -> None:
    """Target of the reloader, in the child. Module-level, because it is pickled."""
    # The reloader spawns, and a spawned child has "spawn" as its start method; the app should find the default.
    multiprocessing.set_start_method(None, force=True)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    local = sockets.pop() if options.local is not None else None
    sys.exit(serve(options, settings_from_json(options.settings), sockets, local))


def _leave_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PARENT_GRACE)
    os._exit(1)
