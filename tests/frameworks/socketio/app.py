"""python-socketio with a counter per sid in memory and no message queue."""

from __future__ import annotations

import os
from typing import Any

import socketio

sio = socketio.AsyncServer(async_mode="asgi", cors_allowed_origins=[])
counts: dict[str, int] = {}


@sio.event
async def connect(sid: str, environ: dict[str, Any]) -> None:
    counts[sid] = 0


@sio.event
async def incr(sid: str, data: Any = None) -> dict[str, int]:
    counts[sid] += 1
    return {"n": counts[sid], "pid": os.getpid()}


@sio.event
async def disconnect(sid: str) -> None:
    counts.pop(sid, None)


app = socketio.ASGIApp(sio)
