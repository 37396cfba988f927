"""The unmodified ``vastai`` client against a server with the session API: 23 checks. Runs in a venv of its own.

``python real_client.py URL LOOPBACK_PORT SLOTS``; prints one JSON line for each check, ``{"check", "ok", "note"}``.
The server has /echo (JSON to JSON), /slow ``{"s": seconds}`` and /stream ``{"n", "gap"}`` (``data: {"i": k}`` lines).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import vastai
from ca import root_pem
from control import Control

logging.disable(logging.CRITICAL)

SWEEP = 5.0  # seconds within which a session must be closed after its deadline

RESUME = """
import asyncio, json, sys
from vastai import Endpoint, Serverless
told = json.loads(sys.argv[1])
class Client(Serverless):
    SSL_CERT_URL = told["base"] + "/ca.cer"
async def main():
    async with Client(api_key="k") as client:
        session = await Endpoint(client, "local", 1, "k").get_session(told["id"], told["auth"])
        print("STATUS", (await session.request("/echo", {}))["status"])
asyncio.run(main())
"""


def check(name: str, ok: Any, note: Any = "") -> None:
    print(json.dumps({"check": name, "ok": bool(ok), "note": str(note)}), flush=True)


async def outcome(awaitable: Awaitable[Any], limit: float = 30) -> Any:
    """The result, or the exception as a value."""
    try:
        return await asyncio.wait_for(awaitable, limit)
    except Exception as error:
        return error


class HookServer:
    def __init__(self) -> None:
        self.got: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                outer.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.route = f"http://127.0.0.1:{server.server_address[1]}/bye"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def of(self, session: Any) -> list[Any]:
        return [body for body in self.got if body.get("session_id") == session.session_id]


def post(url: str, document: Any) -> int:
    request = urllib.request.Request(url, json.dumps(document).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


async def in_the_session(client: Any, endpoint: Any, control: Control) -> None:
    routed, now = control.routes, time.time()
    session = await endpoint.session(cost=5, lifetime=20)
    check("create: id, expiration = now + lifetime", session.session_id and abs(session.expiration - now - 20) < 2)
    one = await session.request("/echo", {"k": 1})
    check("request: ok/200/json", one["ok"] and one["status"] == 200 and isinstance(one["response"], dict))
    many = await asyncio.gather(*(session.request("/echo", {"k": n}) for n in range(32)))
    check("32 concurrent requests (many connections) stay in the session", all(each["status"] == 200 for each in many))
    check("no /route/ call after create", control.routes == routed + 1)
    fresh = []
    for _ in range(4):
        await client.close()
        fresh.append(await session.request("/echo", {}))
    pids = {each["response"]["pid"] for each in (one, *many, *fresh)}
    check("a fresh connection each time stays in the session", len(pids) == 1, pids)
    check("is_open True", await outcome(session.is_open()) is True)

    before = (await endpoint.get_session(session.session_id, session.auth_data)).expiration
    for _ in range(3):
        await session.request("/echo", {})
    again = await endpoint.get_session(session.session_id, session.auth_data)
    check("each request moves the deadline", again.expiration > before)
    same = again.lifetime == 20 and again.auth_data == session.auth_data and again.url == session.url
    check("get: lifetime, auth_data, url come back", same)
    told = json.dumps({"base": control.url, "id": session.session_id, "auth": session.auth_data})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", RESUME, told),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode()
    check("get_session resumes in another process", "STATUS 200" in said, said.strip()[-80:])
    wrong = await outcome(endpoint.get_session(session.session_id, {**session.auth_data, "cost": -1}))
    check("get_session with wrong auth raises", isinstance(wrong, Exception) and "session_auth" in str(wrong), wrong)
    reply = await session.request("/stream", {"n": 3, "gap": 0.02}, stream=True)
    items = [item async for item in reply["response"]]
    check("stream=True yields JSON objects", items == [{"i": 0}, {"i": 1}, {"i": 2}], items)

    flying = asyncio.ensure_future(outcome(session.request("/slow", {"s": 8})))
    await asyncio.sleep(0.5)
    begun = time.time()
    await (await endpoint.get_session(session.session_id, session.auth_data)).close()
    error = await flying
    cancelled = isinstance(error, (ConnectionError, ValueError)) and time.time() - begun < 3 and session.open is False
    check("close elsewhere cancels a request in flight", cancelled, repr(error))
    check("close() after that: no raise", not isinstance(await outcome(session.close()), Exception))


async def closing(endpoint: Any, hooks: HookServer) -> None:
    session = await endpoint.session()
    await session.close()
    await session.close()
    check("close twice", session.open is False)
    try:
        session.request("/echo", {})
        raised: Any = None
    except Exception as error:
        raised = error
    check("request on a closed session: ValueError at once", isinstance(raised, ValueError))
    error = await outcome(session.is_open())
    check("is_open on a removed session raises", isinstance(error, Exception), error)
    session = await endpoint.session()
    await (await endpoint.get_session(session.session_id, session.auth_data)).close()
    error = await outcome(session.request("/echo", {}))
    check("410 -> ValueError, open False", isinstance(error, ValueError) and session.open is False, error)

    async with await endpoint.session(on_close_route=hooks.route, on_close_payload={"a": 1}) as session:
        pass
    await asyncio.sleep(0.3)
    expected = [{"a": 1, "session_id": session.session_id}]
    check("on_close hook on close, payload + session_id", hooks.of(session) == expected, len(hooks.of(session)))
    session = await endpoint.session(lifetime=1, on_close_route=hooks.route)
    begun = time.time()
    while time.time() - begun < 2 + 2 * SWEEP and not hooks.of(session):
        await asyncio.sleep(0.1)
    took = time.time() - begun
    error = await outcome(session.request("/echo", {}))
    gone = len(hooks.of(session)) == 1 and isinstance(error, ValueError) and took < 1 + SWEEP + 1
    check("expiry: GC closes it, fires the hook once, then 410", gone, f"gone after {took:.1f} s")


async def from_this_machine(endpoint: Any, hooks: HookServer, port: int) -> None:
    session = await endpoint.session(on_close_route=hooks.route)
    document = {"session_id": session.session_id, "session_auth": session.auth_data}
    status = await asyncio.to_thread(post, f"http://127.0.0.1:{port}/session/end", document)
    error = await outcome(session.request("/echo", {}))
    ended = status == 200 and isinstance(error, ValueError) and len(hooks.of(session)) == 1
    check("webhook to the internal port ends it", ended, (status, error, len(hooks.of(session))))
    paths = ("/session/get", "/session/health", "/session/create", "/echo")
    statuses = [await asyncio.to_thread(post, f"http://127.0.0.1:{port}{path}", document) for path in paths]
    check("internal port: nothing but /session/end", statuses == [404] * 4, statuses)


async def caps(endpoint: Any, slots: int) -> None:
    held = [await asyncio.wait_for(endpoint.session(lifetime=30), 20) for _ in range(slots)]
    late = asyncio.ensure_future(outcome(endpoint.session(lifetime=30), 25))
    await asyncio.sleep(1.5)
    waited = not late.done()
    await held[0].close()
    one_more = await late
    entered = waited and not isinstance(one_more, Exception)
    check("max_sessions: one more create waits (429, backoff), then gets in", entered, one_more if not entered else "")
    for session in held[1:] + ([one_more] if entered else []):
        await session.close()
    last = await outcome(endpoint.session(timeout=1))
    check("slots are free again", not isinstance(last, Exception), last if isinstance(last, Exception) else "")
    with contextlib.suppress(AttributeError):
        await last.close()


async def main(url: str, port: int, slots: int) -> None:
    control = Control(url, root_pem())
    hooks = HookServer()

    class Client(vastai.Serverless):  # type: ignore[misc]
        SSL_CERT_URL = control.url + "/ca.cer"

    async with Client(api_key="k", webserver_url=control.url, autoscaler_url=control.url) as client:
        endpoint = await client.get_endpoint("local")
        await in_the_session(client, endpoint, control)
        await closing(endpoint, hooks)
        await from_this_machine(endpoint, hooks, port)
        await caps(endpoint, slots)


asyncio.run(asyncio.wait_for(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), 170))
