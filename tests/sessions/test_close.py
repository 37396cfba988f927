"""How a session ends: what its requests, WebSockets, handlers, callbacks and hook see; once, for whatever reason."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import websockets

from tests.harness import GUNICORN, Reply, fetch, wait_for
from tests.sessions.kit import AUTH, Api, HookServer, sessions


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions("--max-sessions", "0", "--hook-allow", "127.0.0.1") as running:
        yield running


def in_flight(api: Api, session_id: str, seconds: float, pool: concurrent.futures.Executor) -> Any:
    before = len(api.events("slow", phase="begun"))
    future = pool.submit(api.use, session_id, "/slow", {"s": seconds})
    wait_for(lambda: len(api.events("slow", phase="begun")) > before, 5)
    return future


@pytest.fixture
def pool() -> Iterator[concurrent.futures.Executor]:
    with concurrent.futures.ThreadPoolExecutor(40) as executor:
        yield executor


def test_requests_in_flight_are_answered_410_and_their_handlers_cancelled(api: Api, pool: Any) -> None:
    for _ in range(4):
        session_id = api.open()
        cancelled = len(api.events("slow", phase="cancelled"))
        futures = [in_flight(api, session_id, 30, pool) for _ in range(3)]
        begun = time.monotonic()
        assert api.end(session_id).status == 200
        assert [future.result(5).status for future in futures] == [410] * 3
        assert time.monotonic() - begun < 2
        wait_for(lambda n=cancelled: len(api.events("slow", phase="cancelled")) == n + 3, 5)  # type: ignore[misc]


def raw_stream(api: Api, session_id: str, path: str, payload: Any) -> socket.socket:
    """A connection on which a stream has begun."""
    body = json.dumps({"auth_data": AUTH, "session_id": session_id, "payload": payload}).encode()
    sock = socket.create_connection(("127.0.0.1", api.port), 10)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    seen = b""
    while b"data:" not in seen:
        seen += sock.recv(65536)
    assert seen.startswith(b"HTTP/1.1 200")
    return sock


def test_a_reply_that_has_begun_ends_with_fin_and_not_with_a_reset(api: Api) -> None:
    for _ in range(8):  # here and by the hop
        session_id = api.open()
        with raw_stream(api, session_id, "/stream", {"n": 1000, "gap": 0.1}) as sock:
            assert api.end(session_id).status == 200
            sock.settimeout(5)
            rest = b""
            while data := sock.recv(65536):  # ConnectionResetError would be a reset
                rest += data
            assert not rest.endswith(b"0\r\n\r\n")  # and never a clean end


def test_websockets_are_closed_with_4410(api: Api) -> None:
    async def main() -> None:
        for _ in range(6):
            session_id = api.open()
            url = f"ws://127.0.0.1:{api.port}/ws"
            async with websockets.connect(url, additional_headers={"X-Session-ID": session_id}) as ws:
                await ws.send("x")
                await ws.recv()
                assert (await asyncio.to_thread(api.end, session_id)).status == 200
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await asyncio.wait_for(ws.recv(), 5)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 4410

    asyncio.run(main())


def test_thirty_concurrent_ends_are_one_200_and_29_410(api: Api, pool: Any) -> None:
    for _ in range(3):
        session_id = api.open(on_close_route="/hook")
        replies: list[Reply] = list(pool.map(lambda _, s=session_id: api.end(s), range(30)))  # type: ignore[misc]
        assert sorted(reply.status for reply in replies) == [200] + [410] * 29
        wait_for(lambda s=session_id: api.hooks(s), 5)  # type: ignore[misc]
        time.sleep(0.1)
        assert len(api.hooks(session_id)) == 1


def test_callbacks_and_hook_run_once_for_each_reason(api: Api) -> None:
    def ended_by(reason: str) -> str:
        session_id = api.open(lifetime=1 if reason == "expiry" else 60, on_close_route="/hook")
        assert api.use(session_id, "/watch").status == 200
        if reason == "end":
            assert api.end(session_id).status == 200
        elif reason == "webhook":
            body = {"session_id": session_id, "session_auth": AUTH}
            assert fetch(api.port + 1, "POST", "/session/end", body).status == 200
        elif reason == "app":
            assert api.use(session_id, "/end-self").status == 200
        return session_id

    ids = [ended_by(reason) for reason in ("end", "webhook", "app", "expiry")]
    for session_id in ids:
        wait_for(lambda s=session_id: api.hooks(s) and api.events("callback", session=s), 8)  # type: ignore[misc]
        assert api.use(session_id).status == 410
    time.sleep(0.2)
    for session_id in ids:
        assert len(api.hooks(session_id)) == 1
        assert len(api.events("callback", session=session_id)) == 1


def test_a_graceful_stop_runs_callbacks_and_hooks_and_before_the_apps_own_shutdown() -> None:
    with HookServer() as hooks, sessions("--hook-allow", "127.0.0.1", workers=2) as api:
        ids = [api.open(on_close_route="/hook") for _ in range(4)]
        outside = api.open(on_close_route=hooks.url + "/bye")
        for session_id in (*ids, outside):
            api.use(session_id, "/watch")
        assert api.server.stop() == 0
        for session_id in ids:
            assert len(api.hooks(session_id)) == 1
        assert len(hooks.of(outside)) == 1
        assert {each["session"] for each in api.events("callback")} == {*ids, outside}
        order = [each["event"] for each in api.events() if each["pid"] == api.hooks(ids[0])[0]["pid"]]
        assert order.index("hook") < order.index("shutdown")


def test_a_recycled_worker_runs_its_hooks() -> None:
    with sessions("--limit-max-requests", "12", "--drain-timeout", "2", workers=2) as api:
        ids = [api.open(on_close_route="/hook", lifetime=300) for _ in range(4)]

        def all_run() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                api.server.fetch("GET", "/plain")
            return all(api.hooks(each) for each in ids)

        wait_for(all_run, 30)
        assert [len(api.hooks(each)) for each in ids] == [1] * 4


def test_gunicorn_runs_hooks_when_its_workers_are_restarted() -> None:
    environ = {"SESSIONWORKERS_SESSION_API": "true"}
    with sessions(workers=2, command=[*GUNICORN, "--graceful-timeout", "4"], env=environ) as api:
        ids = [api.open(on_close_route="/hook", lifetime=300) for _ in range(4)]
        api.server.signal(signal.SIGHUP)
        wait_for(lambda: all(api.hooks(each) for each in ids), 20)
        assert [len(api.hooks(each)) for each in ids] == [1] * 4


def test_the_session_of_a_killed_worker_is_410_and_its_slot_is_gone() -> None:
    with sessions("--max-sessions", "4", workers=2) as api:
        ids = [api.open() for _ in range(4)]
        pids = {each: api.use(each).json["pid"] for each in ids}
        victim = pids[ids[0]]
        os.kill(victim, signal.SIGKILL)
        dead = [each for each in ids if pids[each] == victim]
        alive = [each for each in ids if pids[each] != victim]
        wait_for(lambda: api.server.started >= 3, 20)
        for _ in range(4):
            for each in dead:
                assert api.use(each).status == 410
                assert api.end(each).status == 410
                assert api.get(each).status == 400
                assert api.health(each).json == {"ok": False}
            for each in alive:
                assert api.use(each).status == 200
        wait_for(lambda: api.load()["total"]["max_sessions"] == 8, 5)
        assert api.load()["total"]["free_slots"] == 8 - len(alive)


def test_a_request_in_flight_on_a_killed_worker_is_410(pool: Any) -> None:
    with sessions(workers=2) as api:
        session_id = api.open()
        pid = api.use(session_id).json["pid"]

        def use() -> int:
            try:
                return api.use(session_id, "/slow", {"s": 30}).status
            except (OSError, http.client.HTTPException):
                return 0  # accepted by the very worker that died

        futures = [pool.submit(use) for _ in range(8)]
        wait_for(lambda: len(api.events("slow", phase="begun")) == 8, 10)
        os.kill(pid, signal.SIGKILL)
        assert {future.result(10) for future in futures} <= {0, 410}


def test_an_absolute_lifetime_ends_a_session_in_use(pool: Any) -> None:
    with sessions("--session-max-age", "1.5", workers=2) as api:
        session_id = api.open(lifetime=60, on_close_route="/hook")
        begun = time.monotonic()
        future = in_flight(api, session_id, 20, pool)
        assert future.result(10).status == 410
        assert 1.0 < time.monotonic() - begun < 4
        wait_for(lambda: api.hooks(session_id), 5)


def test_a_session_of_a_long_lifetime_does_not_hold_a_stop_up() -> None:
    """Its end sets an earlier deadline than it had, in the very moment in which the sweeper is stopped."""
    with sessions(workers=2) as api:
        session_id = api.open(lifetime=86_400, on_close_route="/hook")
        begun = time.monotonic()
        assert api.server.stop() == 0
        assert time.monotonic() - begun < 8
        assert len(api.hooks(session_id)) == 1
