"""The app of the session tests: Starlette, with its envelopes read by hand. Writes what happens to $SW_TEST_LOG."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from sessionworkers import current_session, live_sessions


def note(**what: Any) -> None:
    """One line for the test to read, whole even if several processes write."""
    path = os.environ.get("SW_TEST_LOG")
    if path:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, (json.dumps({"pid": os.getpid(), "at": time.time(), **what}) + "\n").encode())
        finally:
            os.close(fd)


async def payload(request: Request) -> Any:
    document = await request.json()
    return document.get("payload", document) if isinstance(document, dict) else document


def here() -> dict[str, Any]:
    session = current_session()
    return {"pid": os.getpid(), "session": session.id if session is not None else None}


async def echo(request: Request) -> Response:
    return JSONResponse({"got": await payload(request), **here()})


async def raw(request: Request) -> Response:
    body = await request.body()
    return JSONResponse(
        {"body": body.decode("latin-1"), "length": request.headers.get("content-length"), "size": len(body), **here()}
    )


async def plain_get(request: Request) -> Response:
    return JSONResponse({"path": request.url.path, **here()})


async def slow(request: Request) -> Response:
    wanted = await payload(request)
    note(event="slow", phase="begun")
    try:
        await asyncio.sleep(float(wanted.get("s", 1)))
    except asyncio.CancelledError:
        note(event="slow", phase="cancelled")
        raise
    note(event="slow", phase="done")
    return JSONResponse({"slept": wanted.get("s"), **here()})


async def stream(request: Request) -> Response:
    wanted = await payload(request)

    async def events() -> AsyncIterator[str]:
        for number in range(int(wanted.get("n", 3))):
            yield f"data: {json.dumps({'i': number})}\n\n"
            await asyncio.sleep(float(wanted.get("gap", 0)))
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def watch(request: Request) -> Response:
    """Register a close callback and say what the app knows of the session."""
    session = current_session()
    assert session is not None
    name = session.id

    async def closed() -> None:
        note(event="callback", session=name)

    session.on_close(closed)
    session.state["n"] = session.state.get("n", 0) + 1
    return JSONResponse({"n": session.state["n"], "live": [each.id for each in live_sessions()], **here()})


async def end_self(request: Request) -> Response:
    session = current_session()
    assert session is not None
    session.end()
    await asyncio.sleep(0.05)
    return JSONResponse({"ended": session.ended, **here()})


async def touch_later(request: Request) -> Response:
    """Work that goes on after the reply, and touches its session."""
    session = current_session()
    assert session is not None
    wanted = await payload(request)

    async def work() -> None:
        for _ in range(int(wanted["times"])):
            await asyncio.sleep(float(wanted["gap"]))
            session.touch()

    asyncio.get_running_loop().create_task(work())
    return JSONResponse(here())


async def status(request: Request) -> Response:
    wanted = await payload(request)
    return Response(
        wanted.get("text", ""), status_code=int(wanted["status"]), media_type=wanted.get("type", "text/plain")
    )


async def hook(request: Request) -> Response:
    body = await request.json()
    note(event="hook", path=request.url.path, query=request.url.query, body=body)
    if isinstance(body, dict):
        await asyncio.sleep(float(body.get("sleep", 0)))
        note(event="hook-done", body=body)
    return JSONResponse({"ok": True})


async def environment(request: Request) -> Response:
    names = ("SESSIONWORKERS_LOCAL_PORT", "WORKER_HTTP_PORT")
    return JSONResponse({name: os.environ.get(name) for name in names} | {"at_import": AT_IMPORT})


AT_IMPORT = os.environ.get("WORKER_HTTP_PORT")


async def websocket(socket: WebSocket) -> None:
    await socket.accept()
    note(event="websocket", phase="open")
    try:
        while True:
            await socket.send_json({"got": await socket.receive_text(), **here()})
    except WebSocketDisconnect as left:
        note(event="websocket", phase="left", code=left.code)
    except asyncio.CancelledError:
        note(event="websocket", phase="cancelled")
        raise


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    yield {"started": os.getpid()}
    note(event="shutdown")


async def state(request: Request) -> Response:
    return JSONResponse({"started": request.state.started, **here()})


def double(payload: Any) -> float:
    """A cost function: twice what the payload says."""
    return float(payload["tokens"]) * 2


POSTS = {
    "/echo": echo,
    "/raw": raw,
    "/slow": slow,
    "/stream": stream,
    "/watch": watch,
    "/end-self": end_self,
    "/touch-later": touch_later,
    "/status": status,
    "/hook": hook,
    "/hook/deep": hook,
    "/state": state,
    "/bare": raw,
}
app = Starlette(
    routes=[
        *(Route(path, function, methods=["POST", "PUT"]) for path, function in POSTS.items()),
        Route("/plain", plain_get),
        Route("/env", environment),
        Route("/session/other", plain_get),
        WebSocketRoute("/ws", websocket),
    ],
    lifespan=lifespan,
)
