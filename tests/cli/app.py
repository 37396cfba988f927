"""Apps for tests of the command line: tell who answers and what they see."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from typing import Any


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup" and os.environ.get("TEST_LIFESPAN") == "fails":
                await send({"type": "lifespan.startup.failed", "message": "the database is away"})
                return
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    seen = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "argv": sys.argv,
        "start_method": multiprocessing.get_start_method(allow_none=True),
        "input": os.readlink("/proc/self/fd/0"),
        "variable": os.environ.get("TEST_VARIABLE"),
        "scheme": scope["scheme"],
        "root_path": scope.get("root_path"),
        "client": scope.get("client"),
    }
    if scope["path"] == "/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})
            if (await receive())["type"] == "http.disconnect":
                return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(seen).encode()})


def make() -> Any:
    return app


number = 42  # no app


def make_number() -> Any:
    return number
