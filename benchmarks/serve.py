"""One worker process of a set-up: ``python -m benchmarks.serve JSON``. Started by `benchmarks.setups`.

Sockets are inherited. A sessionworkers worker gets two: the shared one, and one of its own, so that a benchmark can
address each worker and force "handled locally" and "forwarded"; the package itself offers no such door.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any


def main(text: str) -> int:
    """Serve until a signal. Keys: kind, worker, app, fds, runtime, loop, mechanism, keep_alive."""
    task: dict[str, Any] = json.loads(text)
    os.environ["BENCH_WORKER"] = task["worker"]
    sockets = [socket.socket(fileno=fd) for fd in task["fds"]]
    options: dict[str, Any] = {
        "app": "benchmarks.app:" + task["app"],
        "factory": task["app"] != "app",
        "lifespan": "off",
        "access_log": False,
        "log_level": "warning",
        "timeout_keep_alive": 75,
        "loop": task["loop"],
        "timeout_graceful_shutdown": 1,
    }
    if task["kind"] == "plain":
        import uvicorn

        uvicorn.Server(uvicorn.Config(**options)).run(sockets=sockets)
        return 0
    from sessionworkers.hosts import uvicorn as host
    from sessionworkers.settings import Settings

    _force(task["mechanism"])
    values: dict[str, Any] = {"session_id": ["cookie:sid mint=client"]}
    if task["rules"] == "auto":
        values = {}
    return host.run_worker(options, Settings(**values), sockets, task["runtime"])


def _force(mechanism: str) -> None:
    """``frames``: ASGI frames for all; ``raw``: no hand-over; ``handover``: as shipped; ``local``: all as shipped."""
    try:
        from sessionworkers.hosts import raw
    except ImportError:
        return
    if mechanism == "frames":
        raw.ENABLED = False
    if mechanism == "raw":
        raw.HANDOVER = False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
