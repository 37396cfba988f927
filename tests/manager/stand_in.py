"""A worker for tests of the manager alone: uvicorn with an app that tells its pid, and the manager's link.

``STAND_IN`` says how it misbehaves: ``exit=CODE`` before it serves, ``stuck`` on TERM, ``orphan``: leaves one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import uvicorn

from sessionworkers.manager.process import WorkerOptions
from sessionworkers.manager.protocol import ManagerLink


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["path"] == "/stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    body = json.dumps({"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "argv": sys.argv}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})


def main(fd: int) -> int:
    options = WorkerOptions.from_fd(fd)
    assert options.link is not None
    link = ManagerLink(options.link)
    behaviour = options.config.get("behaviour", "")
    if behaviour.startswith("file="):  # read at each start: a "release" that can be changed under the manager
        with open(behaviour.removeprefix("file=")) as file:
            behaviour = file.read().strip()
    if behaviour.startswith("exit="):
        return int(behaviour.removeprefix("exit="))
    if behaviour == "orphan":
        subprocess.run(["sh", "-c", "sleep 2 & :"], check=True)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=2))
    if behaviour == "stuck":
        server.handle_exit = lambda *_: None  # type: ignore[method-assign]

    async def serve() -> None:
        def gone() -> None:
            if behaviour == "stuck":
                time.sleep(60)
            server.should_exit = True

        await link.start(asyncio.get_running_loop(), gone)
        task = asyncio.ensure_future(server.serve([socket.socket(fileno=number) for number in options.sockets]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        link.serving(["Session rules: stand-in"])
        await task

    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
