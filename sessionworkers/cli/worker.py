"""One worker: what a manager execs, and what ``run`` does in its own process when one worker is all there is."""

from __future__ import annotations

import contextlib
import inspect
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from sessionworkers.cli.failure import show
from sessionworkers.hosts.uvicorn import run_worker
from sessionworkers.manager.plan import STARTUP_FAILURE
from sessionworkers.manager.process import WorkerOptions
from sessionworkers.manager.sockets import tell_local_port
from sessionworkers.settings.handed import settings_from_json

if TYPE_CHECKING:
    from sessionworkers.settings import Settings


def main(fd: int) -> int:
    """Serve as the options in descriptor ``fd`` say; the exit code."""
    options = WorkerOptions.from_fd(fd)
    sys.argv = list(options.argv) or sys.argv  # apps that look find what the server was started with
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(fileno=number)) for number in options.sockets]
        for sock in sockets:
            sock.set_inheritable(False)  # not for what the app starts
        local = None
        if options.local is not None:
            local = stack.enter_context(socket.socket(fileno=options.local))
            local.set_inheritable(False)
        return serve(options, settings_from_json(options.settings), sockets, local)


def serve(
    options: WorkerOptions,
    settings: Settings,
    sockets: list[socket.socket] | None,
    local: socket.socket | None = None,
) -> int:
    """Run the worker in this process until it is told to stop; the exit code.

    Whatever the app raises while it is imported is shown and means 3, so that nobody starts it again and again.
    """
    if options.app_dir is not None:
        sys.path.insert(0, options.app_dir)
    known = inspect.signature(uvicorn.Config.__init__).parameters  # the manager may be of another release
    kwargs = {name: value for name, value in options.config.items() if name in known}
    if local is not None:
        tell_local_port(local)
    try:
        return run_worker(kwargs, settings, sockets, options.runtime_dir, parent_fd=options.link, local=local)
    except Exception as error:
        show(error)
        return STARTUP_FAILURE
