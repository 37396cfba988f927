"""The app of these tests: an RL environment server's sessions and an agent server's, in memory, on Starlette.

A *resources* session is named by a typed ID in the body of its start and close, by the ``session_id`` in Starlette's
signed cookie, and by a signed token at ``/mcp``. An *agent* session (below ``/v1``) has an ID of its own in body and
cookie. Unlike a real server the app refuses no late start and no second ID: where these tests see a 409, it is the
router's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from base64 import b64encode
from typing import Any

from itsdangerous import URLSafeSerializer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SECRET = "validation-secret"
TOKEN = "x-session-token"
tokens = URLSafeSerializer(SECRET)

live: dict[str, dict[str, int]] = {}
made: list[str] = []
agents: dict[str, int] = {}


def make(sid: str) -> dict[str, int]:
    if sid not in live:
        live[sid] = {"n": 0, "starts": 0}
        made.append(sid)
    return live[sid]


def reply(status: int = 200, **content: Any) -> Response:
    return JSONResponse({**content, "pid": os.getpid()}, status)


def typed_id(body: Any) -> str | None:
    """The typed ID, if it is one."""
    value = body.get("resources_session_id") if isinstance(body, dict) else None
    valid = isinstance(value, str) and 0 < len(value) <= 512 and all("!" <= letter <= "~" for letter in value)
    return value if valid else None


async def seed(request: Request) -> Response:
    """``cookie_id``: name the session so in the cookie; ``fail``: leave partial state and raise."""
    body = await request.json()
    sid = typed_id(body) or request.session.get("session_id") or str(uuid.uuid4())
    state = make(sid)
    state["starts"] += 1
    if body.get("fail"):
        return reply(500, error="broke half way")
    cookie_id = body.get("cookie_id", sid)
    request.session["session_id"] = cookie_id
    if cookie_id != sid:
        live[cookie_id] = state
    return reply(session=sid, starts=state["starts"], size=len(await request.body()), token=tokens.dumps({"sid": sid}))


async def seed_quiet(request: Request) -> Response:
    """A start whose own code never looks at the session: its cookie is all that it leaves."""
    request.session["session_id"] = str(uuid.uuid4())
    return reply()


async def call(request: Request) -> Response:
    """A tool call: makes the session's state on first use."""
    sid = request.session.setdefault("session_id", str(uuid.uuid4()))
    state = make(sid)
    state["n"] += 1
    n = state["n"]
    await asyncio.sleep(float(request.query_params.get("sleep", 0)))
    return reply(session=sid, n=n)


async def close(request: Request) -> Response:
    sid = typed_id(await request.json()) or request.session.get("session_id", "")
    return reply(held=live.pop(sid, None) is not None)


async def verify(request: Request) -> Response:
    return reply(held=live.pop(request.session.get("session_id", ""), None) is not None)


async def mint(request: Request) -> Response:
    """Put the ID that the caller wants into the cookie, as if it were minted here."""
    request.session["session_id"] = (await request.json())["id"]
    return reply()


async def mcp(request: Request) -> Response:
    """One tool call by the token alone."""
    state = make(tokens.loads(request.headers[TOKEN])["sid"])
    state["n"] += 1
    return reply(n=state["n"])


async def health(request: Request) -> Response:
    """Sets a session cookie that nobody will use, as NeMo Gym does on every reply."""
    request.session["session_id"] = str(uuid.uuid4())
    return reply()


async def plain(request: Request) -> Response:
    return reply()


async def echo(request: Request) -> Response:
    """What the app saw of the request, and two cookies of its own."""
    scope = request.scope
    seen = {
        "method": scope["method"],
        "raw_path": scope["raw_path"].decode("latin-1"),
        "path": scope["path"],
        "query": scope["query_string"].decode("latin-1"),
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in scope["headers"]],
        "client": scope["client"][0],
        "server": list(scope["server"]),
        "scheme": scope["scheme"],
        "http_version": scope["http_version"],
        "body": b64encode(await request.body()).decode(),
    }
    session = request.session.get("session_id")
    answer = reply(**seen, session=session)
    answer.set_cookie("app", str(os.getpid()))
    return answer


async def state(request: Request) -> Response:
    return reply(live=list(live), made=made)


async def loggers(request: Request) -> Response:
    """How uvicorn's process-wide loggers are set up here."""
    seen = {}
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        log = logging.getLogger(name)
        handlers = [f"{type(handler).__name__} {type(handler.formatter).__name__}" for handler in log.handlers]
        seen[name] = [log.level, log.propagate, log.disabled, handlers, [type(f).__name__ for f in log.filters]]
    return reply(loggers=seen)


async def agent_seed(request: Request) -> Response:
    """``fail``: make nothing."""
    body = await request.json()
    if body.get("fail"):
        return reply(503, error="no sandbox")
    sid = body["agent_session_id"]
    agents[sid] = agents.get(sid, 0) + 1
    request.session["agent_session_id"] = sid
    return reply(starts=agents[sid])


async def agent_close(request: Request) -> Response:
    return reply(held=agents.pop((await request.json())["agent_session_id"], None) is not None)


async def agent_turn(request: Request) -> Response:
    known = request.session.get("agent_session_id") in agents
    return reply(200 if known else 409, known=known)


def posts(**handlers: Any) -> list[Route]:
    return [Route("/" + name.replace("__", "/"), handler, methods=["POST"]) for name, handler in handlers.items()]


resources = Starlette(
    routes=[
        *posts(seed_session=seed, seed_quiet=seed_quiet, call=call, close_session=close, verify=verify),
        *posts(mint=mint, mcp=mcp),
        Route("/health", health),
        Route("/plain", plain, methods=["GET", "POST"]),
        Route("/state", state),
        Route("/loggers", loggers),
        Route("/echo/{rest:path}", echo, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
    ],
    middleware=[Middleware(SessionMiddleware, secret_key=SECRET)],
)
agent = Starlette(
    routes=posts(v1__agent_sessions=agent_seed, v1__agent_sessions__close=agent_close, v1__responses=agent_turn),
    middleware=[Middleware(SessionMiddleware, secret_key=SECRET, session_cookie="agent")],
)


async def app(scope: Any, receive: Any, send: Any) -> None:
    await (agent if scope.get("path", "").startswith("/v1/") else resources)(scope, receive, send)
