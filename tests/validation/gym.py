"""The app of these tests under its rules, and a caller that can choose which worker accepts its connection."""

from __future__ import annotations

import contextlib
import http.client
import json
import uuid
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from itsdangerous import TimestampSigner

from tests.harness import SESSIONWORKERS, UVICORN, Reply, Server, server, wait_for
from tests.validation.app import SECRET, TOKEN

APP = "tests.validation.app:app"
WINDOW = 1.0  # seconds: all the windows of the servers that test lifetimes
RULES = [
    f"token:{TOKEN}/sid@/mcp space=gym",
    "json:resources_session_id@/seed_session,/close_session starlette-cookie:session/session_id"
    " start=POST:/seed_session start=POST:/seed_quiet end=POST:/close_session end=POST:/verify"
    " end-unless=x-close-follows late-start=refuse space=gym",
    "json:agent_session_id@/v1/agent_sessions,/v1/agent_sessions/close starlette-cookie:agent/agent_session_id"
    " start=POST:/v1/agent_sessions end=POST:/v1/agent_sessions/close failed-start=release",
]
OPTIONS = [part for rule in RULES for part in ("--session-id", rule)] + ["--no-preset", "all", "--no-auto"]


@contextlib.contextmanager
def gym(workers: int = 3, *, window: float | None = None, options: Sequence[str] = (), **kw: Any) -> Iterator[Server]:
    """The app under its rules; ``window``: seconds for the retry window, the return window and the idle time."""
    # Placement has tests of its own; here a session begins where its start arrives.
    env = {"SESSIONWORKERS_SESSION_SECRET": SECRET, "SESSIONWORKERS_PLACEMENT": "accept"}
    if window is not None:
        env |= {f"SESSIONWORKERS_{name}": str(window) for name in ("RETRY_WINDOW", "RETURN_WINDOW", "SESSION_IDLE")}
    with server(APP, workers=workers, command=SESSIONWORKERS, options=[*OPTIONS, *options], env=env, **kw) as running:
        yield running


@contextlib.contextmanager
def plain_uvicorn() -> Iterator[Server]:
    with server(APP, workers=2, command=UVICORN) as running:
        yield running


def pids(s: Server) -> list[int]:
    """The pids of all workers."""
    found: set[int] = set()

    def all_seen() -> bool:
        found.add(s.fetch("GET", "/state").json["pid"])
        return len(found) == s.workers

    wait_for(all_seen, 20, f"{s.workers} workers answered", interval=0)
    return sorted(found)


def at(
    s: Server,
    pid: int,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    *,
    raw_headers: Sequence[tuple[str, str]] = (),
) -> Reply:
    """One request that worker ``pid`` accepts: connections are opened until that worker answers on one."""
    for _ in range(2000):
        connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=20)
        try:
            connection.request("GET", "/state")
            if json.loads(connection.getresponse().read())["pid"] != pid:
                continue
            data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in [*(headers or {}).items(), *raw_headers]:
                connection.putheader(name, value)
            if data or method == "POST":
                connection.putheader("content-length", str(len(data)))
                if not isinstance(body, bytes):
                    connection.putheader("content-type", "application/json")
            connection.endheaders(data or None)
            reply = connection.getresponse()
            return Reply(reply.status, [(k.lower(), v) for k, v in reply.getheaders()], reply.read())
        finally:
            connection.close()
    raise AssertionError(f"worker {pid} accepted none of 2,000 connections")


def new_id() -> str:
    return f"resources-session-{uuid.uuid4().hex}"


def typed(sid: Any, **more: Any) -> dict[str, Any]:
    return {"resources_session_id": sid, **more}


def agent_body(sid: str, **more: Any) -> dict[str, Any]:
    return {"agent_session_id": sid, **more}


def signed(session: dict[str, Any], name: str = "session") -> dict[str, str]:
    """A Cookie header with ``session`` as Starlette would sign it."""
    value = TimestampSigner(SECRET).sign(b64encode(json.dumps(session).encode())).decode()
    return {"cookie": f"{name}={value}"}


def cookie_of(reply: Reply, name: str = "session") -> dict[str, str]:
    """The Cookie header that sends back what ``reply`` set."""
    return {"cookie": f"{name}={reply.cookies[name]}"}


def ok(reply: Reply) -> Any:
    """The JSON of a reply that must be a 200."""
    assert reply.status == 200, f"{reply.status} {reply.text}"
    return reply.json
