"""An ASGI app that notes how its lifespan ends, in the file TEST_NOTE, and streams meanwhile."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any


def note(line: str) -> None:
    with open(os.environ["TEST_NOTE"], "a", encoding="ascii") as file:
        file.write(f"{line}\n")


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        note("shutdown begins")
        await shutdown(os.environ.get("TEST_SHUTDOWN", ""))
        await send({"type": "lifespan.shutdown.complete"})
        note("shutdown ended")
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    try:
        while True:  # whether the client is there or not
            await send({"type": "http.response.body", "body": b"more", "more_body": True})
            await asyncio.sleep(0.05)
    finally:
        note("request ended")


async def shutdown(how: str) -> None:
    if how == "hangs":
        await asyncio.sleep(60)
    elif how == "blocks":
        time.sleep(60)  # noqa: ASYNC251  the test wants a blocked loop
    elif how == "clings":
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                note("not cancelled")
    else:
        await asyncio.sleep(0.3)
