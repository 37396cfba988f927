"""FastAPI with a dict in memory, and five ways to name what it holds."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from starlette.middleware.sessions import SessionMiddleware

app = FastAPI()
# The secret is the same in every worker: the signed cookie is fine, what it points at is not.
app.add_middleware(SessionMiddleware, secret_key="same-in-all-workers")
sessions: dict[str, dict[str, Any]] = {}


def get(sid: str | None) -> dict[str, Any]:
    if sid is None or sid not in sessions:
        raise HTTPException(404, "Session not found")
    return sessions[sid]


def new() -> str:
    sid = uuid.uuid4().hex
    sessions[sid] = {"n": 0, "queue": asyncio.Queue()}
    return sid


def bump(session: dict[str, Any]) -> dict[str, int]:
    session["n"] += 1
    return {"n": session["n"], "pid": os.getpid()}


# 1. ID in the path, minted by the app in a JSON body.
@app.post("/v1/sessions/start")
async def start() -> dict[str, Any]:
    return {"session_id": new(), "pid": os.getpid()}


@app.post("/v1/sessions/{sid}/action")
async def action(sid: str) -> dict[str, int]:
    return bump(get(sid))


@app.delete("/v1/sessions/{sid}/stop")
async def stop(sid: str) -> dict[str, str]:
    get(sid)
    del sessions[sid]
    return {"status": "terminated"}


# 2. Starlette's signed session cookie that carries only an ID.
@app.post("/seed_session")
async def seed(request: Request) -> dict[str, int]:
    request.session["session_id"] = new()
    return {"pid": os.getpid()}


@app.post("/step")
async def step(request: Request) -> dict[str, int]:
    return bump(get(request.session.get("session_id")))


# 3. A POST starts, a WebSocket goes on.
@app.post("/voice/start")
async def voice_start() -> dict[str, str]:
    return {"session_id": new()}


@app.websocket("/ws/voice/{sid}")
async def voice(ws: WebSocket, sid: str) -> None:
    if sid not in sessions:
        await ws.close(4403)
        return
    await ws.accept()
    try:
        while True:
            await ws.receive_text()
            await ws.send_json(bump(sessions[sid]))
    except WebSocketDisconnect:
        pass


# 4. A job's ID in JSON, its events as a stream.
@app.post("/build")
async def build() -> dict[str, str]:
    job_id = new()

    async def work() -> None:
        for number in range(3):
            await asyncio.sleep(0.02)
            await sessions[job_id]["queue"].put(f"step {number}")
        await sessions[job_id]["queue"].put(None)

    sessions[job_id]["task"] = asyncio.create_task(work())
    return {"job_id": job_id}


@app.get("/build/{job_id}/events")
async def events(job_id: str) -> StreamingResponse:
    queue = get(job_id)["queue"]

    async def stream() -> AsyncIterator[str]:
        while (message := await queue.get()) is not None:
            yield f"data: {message}\n\n"
        yield "data: done\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


# 5. A WebSocket first, uploads on the side.
@app.websocket("/stream")
async def stream(ws: WebSocket) -> None:
    await ws.accept()
    sid = new()
    await ws.send_json({"session_id": sid})
    try:
        while True:
            await ws.receive_text()
    except WebSocketDisconnect:
        sessions.pop(sid, None)


@app.put("/upload/{sid}/{name}")
async def upload(sid: str, name: str, request: Request) -> dict[str, int]:
    return {"size": len(await request.body()), **bump(get(sid))}
