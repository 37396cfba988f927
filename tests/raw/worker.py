"""One worker with a door of its own: ``python -m tests.raw.worker JSON``."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any


def main(text: str) -> int:
    task: dict[str, Any] = json.loads(text)
    os.environ["TEST_WORKER"] = task["worker"]
    from sessionworkers.hosts import raw
    from sessionworkers.hosts import uvicorn as host
    from sessionworkers.settings import Settings

    if task["mechanism"] == "frames":
        raw.ENABLED = False
    settings = Settings(
        session_id=["header:x-session mint=client", "cookie:sid mint=client"],
        handover=task["mechanism"] == "handover",
        auto=False,
        no_preset=["all"],
        session_api=task["api"],
    )
    options = {"app": "tests.raw.app:app", "loop": task["loop"], "lifespan": "on", **task["options"]}
    return host.run_worker(options, settings, [socket.socket(fileno=fd) for fd in task["fds"]], task["runtime"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
