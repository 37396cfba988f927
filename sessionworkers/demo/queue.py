"""A queue-like app for explicit sessions: start a job, poll it, cancel it, let it end its own session.

::

    sessionworkers run sessionworkers.demo.queue:app --workers 4 --session-api

Jobs live in a dict of the process, as a model server keeps what it works on. Plain ASGI, nothing of this package: what
comes in is the envelope ``{auth_data, session_id, payload}``.

=================  =====================================================================================
``/start_task``    payload ``{epochs, seconds, finish: bool}``; ``finish``: end the session when done
``/status``        payload ``{}``: ``{"status": {"state", "epoch", "epochs"}}``
``/cancel_task``   the close hook, ``{"session_id"}``: stop the job, whoever or whatever ended the session
``/cancelled``     payload ``{}``, without a session: how many jobs this worker has cancelled so far
=================  =====================================================================================
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from typing import Any

jobs: dict[str, dict[str, Any]] = {}
tasks: dict[str, asyncio.Task[None]] = {}
cancelled = 0


def end_session(session_id: str, session_auth: Any) -> None:
    """Tell the worker, on its loopback port, that the session is over. Best effort: no job fails by it."""
    port = int(os.environ.get("WORKER_HTTP_PORT", int(os.environ.get("WORKER_PORT", "3000")) + 1))
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/session/end",
        json.dumps({"session_id": session_id, "session_auth": session_auth}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            reply.read()
    except OSError:
        pass


async def work(job: dict[str, Any], seconds: float, session_id: str, finish_with: Any) -> None:
    """The job: counts its epochs."""
    job["state"] = "running"
    while job["epoch"] < job["epochs"]:
        await asyncio.sleep(seconds)
        job["epoch"] += 1
    job["state"] = "completed"
    if finish_with is not None:
        await asyncio.to_thread(end_session, session_id, finish_with)


def start_task(session_id: str, auth_data: Any, payload: dict[str, Any]) -> tuple[int, Any]:
    if session_id in jobs:
        return 409, {"error": "this session has a job"}
    job = jobs[session_id] = {"state": "queued", "epoch": 0, "epochs": int(payload.get("epochs", 3))}
    finish_with = auth_data if payload.get("finish") else None
    seconds = float(payload.get("seconds", 0.2))
    tasks[session_id] = asyncio.create_task(work(job, seconds, session_id, finish_with))
    return 200, {"status": dict(job), "pid": os.getpid()}


def status(session_id: str, auth_data: Any, payload: Any) -> tuple[int, Any]:
    job = jobs.get(session_id)
    return (200, {"status": dict(job), "pid": os.getpid()}) if job else (404, {"error": "no such job"})


def cancel_task(session_id: str, auth_data: Any, payload: Any) -> tuple[int, Any]:
    global cancelled
    job, task = jobs.pop(session_id, None), tasks.pop(session_id, None)
    if job is None or task is None:
        return 404, {"error": "no such job"}
    if job["state"] != "completed":
        job["state"] = "canceled"
        cancelled += 1
        task.cancel()
    return 200, {"status": job}


def count(session_id: str, auth_data: Any, payload: Any) -> tuple[int, Any]:
    return 200, {"cancelled": cancelled, "jobs": len(jobs), "pid": os.getpid()}


ROUTES = {"/start_task": start_task, "/status": status, "/cancel_task": cancel_task, "/cancelled": count}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI app."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = b""
    more = True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    route = ROUTES.get(scope["path"])
    try:
        document = json.loads(body or b"{}")
        session_id = str(document.get("session_id"))
        found = (404, {"error": "not found"})
        if route is not None:
            found = route(session_id, document.get("auth_data"), document.get("payload"))
    except (ValueError, AttributeError, TypeError) as error:
        found = (422, {"error": str(error)})
    code, content = found
    data = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": data})
