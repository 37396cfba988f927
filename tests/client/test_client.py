"""The client SDK against a server with four workers: the checks that the real client is held to, and what it decides
otherwise (differences 10, 11, 15)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from sessionworkers.client import Client, ClientError, NoRoom, Rejected, Session, SessionClosed, TimedOut, Unreachable
from tests.harness import ROOT, fetch, free_port, wait_for
from tests.sessions.kit import Api, HookServer, sessions


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions("--hook-allow", "127.0.0.1") as running:
        yield running


def run(api: Api, case: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Client(api.server.url) as client:
            await case(client)

    asyncio.run(asyncio.wait_for(main(), 45))


def slow(api: Api) -> list[Any]:
    """The slow requests that have begun."""
    return api.events("slow", phase="begun")


async def failure(awaitable: Awaitable[Any]) -> Exception:
    try:
        await awaitable
    except Exception as error:
        return error
    raise AssertionError("no error")


# what the real client is held to


def test_create_gives_id_and_expiration(api: Api) -> None:
    async def case(client: Client) -> None:
        now = time.time()
        session = await client.session(cost=5, lifetime=20)
        assert session.session_id.startswith("sw_")
        assert abs(session.expiration - now - 20) < 2
        assert (session.lifetime, session.open, session.url) == (20, True, api.server.url)
        await session.close()

    run(api, case)


def test_requests_stay_in_the_session_on_many_and_on_fresh_connections(api: Api) -> None:
    async def case(client: Client) -> None:
        async with client.session(lifetime=20) as session:
            result = await session.request("/echo", {"k": 1})
            assert (result["ok"], result["status"], result["response"]["got"]) == (True, 200, {"k": 1})
            many = await asyncio.gather(*(session.request("/echo", {"k": n}) for n in range(32)))
            fresh = []
            for _ in range(6):
                await client.close()
                fresh.append(await session.request("/echo", {}))
            assert {each["response"]["pid"] for each in (*many, *fresh)} == {result["response"]["pid"]}
            assert {each["response"]["session"] for each in (*many, *fresh)} == {session.session_id}

    run(api, case)


def test_is_open_is_true_and_then_false(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session()
        assert await session.is_open() is True
        other = await client.get_session(session.session_id, session.auth_data)
        await other.close()
        assert await session.is_open() is False
        assert session.open is False

    run(api, case)


def test_each_request_moves_the_deadline_and_get_tells_it(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session(lifetime=20)
        first = (await client.get_session(session.session_id, session.auth_data)).expiration
        await asyncio.sleep(0.2)
        await session.request("/echo", {})
        again = await client.get_session(session.session_id, session.auth_data)
        assert again.expiration > first + 0.15
        assert (again.lifetime, again.auth_data, again.url) == (20, session.auth_data, session.url)
        await session.close()

    run(api, case)


RESUME = """
import asyncio, json, sys
from sessionworkers.client import Client
async def main():
    async with Client(sys.argv[1]) as client:
        session = await client.get_session(session_id=sys.argv[2], session_auth=json.loads(sys.argv[3]))
        print((await session.request("/echo", {}))["response"]["session"])
asyncio.run(main())
"""


def test_get_session_resumes_in_another_process(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session()
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", RESUME, api.server.url, session.session_id, json.dumps(session.auth_data)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.stdout.strip() == session.session_id, done.stderr
        await session.close()

    run(api, case)


def test_get_session_with_a_wrong_credential_or_of_an_ended_session_raises(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session()
        wrong = await failure(client.get_session(session.session_id, {"token": "x"}))
        assert isinstance(wrong, Rejected)
        assert wrong.status == 401
        assert "session_auth" in str(wrong)
        await session.close()
        assert isinstance(await failure(client.get_session(session.session_id, session.auth_data)), SessionClosed)

    run(api, case)


def test_stream_yields_json_objects(api: Api) -> None:
    async def case(client: Client) -> None:
        async with client.session() as session:
            result = await session.request("/stream", {"n": 3, "gap": 0.02}, stream=True)
            assert [item async for item in result["response"]] == [{"i": 0}, {"i": 1}, {"i": 2}]
            assert session.open

    run(api, case)


def test_a_stream_that_the_sessions_end_cuts_is_session_closed(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session()
        result = await session.request("/stream", {"n": 1000, "gap": 0.05}, stream=True)
        seen = []

        async def read() -> None:
            async for item in result["response"]:
                seen.append(item)
                if len(seen) == 3:
                    other = await client.get_session(session.session_id, session.auth_data)
                    await other.close()

        assert isinstance(await failure(read()), SessionClosed)
        assert len(seen) >= 3
        assert session.open is False

    run(api, case)


def test_close_elsewhere_cancels_a_request_in_flight(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session()
        before = len(slow(api))
        request = asyncio.ensure_future(failure(session.request("/slow", {"s": 20})))
        await asyncio.to_thread(wait_for, lambda: len(slow(api)) > before, 10)
        begun = time.monotonic()
        await (await client.get_session(session.session_id, session.auth_data)).close()
        assert isinstance(await request, SessionClosed)
        assert time.monotonic() - begun < 2
        assert session.open is False

    run(api, case)


def test_close_is_idempotent_and_two_at_once_are_one(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session()
        await asyncio.gather(session.close(), session.close(), session.close())
        await session.close()
        assert session.open is False
        assert (await asyncio.to_thread(api.end, session.session_id, session.auth_data)).status == 410

    run(api, case)


def test_a_closed_session_raises_at_the_call_without_the_network(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session()
        await session.close()
        session._client = None  # type: ignore[assignment]
        with pytest.raises(ValueError):
            session.request("/echo", {})
        with pytest.raises(ValueError):
            session.websocket("/ws")

    run(api, case)


def test_410_is_session_closed_and_a_value_error(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session(lifetime=0.3)
        while await session.is_open():
            await asyncio.sleep(0.02)
        session.open = True  # as a client that has not looked
        error = await failure(session.request("/echo", {}))
        assert isinstance(error, SessionClosed)
        assert isinstance(error, ValueError)
        assert session.open is False

    run(api, case)


def test_the_hook_runs_on_close_and_on_expiry(api: Api) -> None:
    with HookServer() as hooks:

        async def case(client: Client) -> None:
            async with await client.session(on_close_route=hooks.url + "/bye", on_close_payload={"a": 1}) as session:
                pass
            await asyncio.to_thread(wait_for, lambda: hooks.of(session.session_id), 7)
            assert hooks.of(session.session_id) == [{"a": 1, "session_id": session.session_id}]
            expiring = await client.session(lifetime=1, on_close_route=hooks.url + "/bye")
            await asyncio.to_thread(wait_for, lambda: hooks.of(expiring.session_id), 7)

        run(api, case)


def test_the_webhook_ends_it(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session()
        body = {"session_id": session.session_id, "session_auth": session.auth_data}
        assert (await asyncio.to_thread(fetch, api.port + 1, "POST", "/session/end", body)).status == 200
        assert isinstance(await failure(session.request("/echo", {})), ValueError)

    run(api, case)


def test_a_full_server_makes_session_wait_and_then_lets_it_in(api: Api) -> None:
    def rejected() -> int:
        return int(api.load()["total"]["rejected"])

    async def case(client: Client) -> None:
        held = [await client.session(lifetime=30) for _ in range(40)]
        before = rejected()
        late = asyncio.ensure_future(client.session(lifetime=30).__aenter__())
        await asyncio.to_thread(wait_for, lambda: rejected() > before, 10, "it was refused")
        assert not late.done()
        await held[0].close()
        one_more = await asyncio.wait_for(late, 15)
        await asyncio.gather(*(each.close() for each in (*held, one_more)))
        await (await client.session(timeout=1)).close()

    run(api, case)


def test_timeout_bounds_the_wait_for_room_exactly() -> None:
    with sessions("--max-sessions", "1", workers=1) as api:

        async def case(client: Client) -> None:
            async with client.session():
                begun = time.monotonic()
                error = await failure(client.session(timeout=1.5).__aenter__())
                assert isinstance(error, NoRoom)
                assert isinstance(error, TimeoutError)
                assert 1.4 < time.monotonic() - begun < 2.0

        run(api, case)


def test_websockets_and_their_end(api: Api) -> None:
    async def case(client: Client) -> None:
        session = await client.session()
        async with session.websocket("/ws") as ws:
            await ws.send_str("hello")
            assert (await ws.receive_json())["session"] == session.session_id
            await (await client.get_session(session.session_id, session.auth_data)).close()
            await asyncio.wait_for(ws.receive(), 5)
            assert ws.close_code == 4410
        assert isinstance(await failure(session.websocket("/ws").__aenter__()), SessionClosed)
        assert session.open is False

    run(api, case)


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ({"status": 200, "text": "hello"}, "hello"),
        ({"status": 200, "text": '{"a": 1}', "type": "text/plain"}, {"a": 1}),
        ({"status": 200, "text": ""}, None),
        ({"status": 200, "text": "xyz", "type": "image/png"}, b"xyz"),
        ({"status": 404, "text": "no"}, {"error": "no"}),
        ({"status": 422, "text": '{"error": "x"}', "type": "application/json"}, {"error": "x"}),
        ({"status": 500, "text": "oops"}, {"error": "oops"}),
        ({"status": 307, "text": "elsewhere"}, {"error": "elsewhere"}),
    ],
)
def test_the_result_dictionary(api: Api, answer: dict[str, Any], response: Any) -> None:
    async def case(client: Client) -> None:
        async with client.session() as session:
            result = await session.request("/status", answer)
            assert result["response"] == response
            assert result["ok"] is (answer["status"] == 200)
            assert (result["status"], result["text"]) == (answer["status"], answer["text"])
            assert set(result) >= {"content_type", "latency", "url", "auth_data"}
            assert session.open

    run(api, case)


def test_a_request_without_a_session(api: Api) -> None:
    async def case(client: Client) -> None:
        result = await client.request("/echo", {"x": 1})
        assert (result["response"]["got"], result["response"]["session"]) == ({"x": 1}, None)

    run(api, case)


def test_a_credential_of_ones_own(api: Api) -> None:
    async def case(client: Client) -> None:
        grant = {"url": api.server.url, "cost": 5, "signature": "s"}
        async with client.session(auth_data=grant) as session:
            assert session.auth_data == grant
            assert (await session.request("/echo", {}))["status"] == 200

    run(api, case)


def test_what_the_server_refuses_is_rejected(api: Api) -> None:
    async def case(client: Client) -> None:
        error = await failure(client.session(lifetime=-1).__aenter__())
        assert isinstance(error, Rejected)
        assert (error.status, isinstance(error, ClientError)) == (422, True)
        error = await failure(client.session(on_close_route="http://10.0.0.1/").__aenter__())
        assert isinstance(error, Rejected)

    run(api, case)


# faults, against servers that misbehave


@contextlib.asynccontextmanager
async def fake(answers: list[bytes | None]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives ``answers`` in turn (the last one for ever) and notes requests; None: closes without."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            seen.append(head.split(b" ")[1] + b" " + await reader.readexactly(length))
            answer = answers[min(len(seen), len(answers)) - 1]
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        await over(server)


async def over(server: asyncio.Server) -> None:
    """Close it and let its connections see that their clients are gone."""
    server.close()
    await asyncio.sleep(0.05)


def reply(status: int, body: Any = None, **headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}", "content-type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def session_of(client: Client) -> Session:
    return Session(client, "sw_" + "x" * 43, {"token": "t"}, 60, 0)


def against(answers: list[bytes | None], case: Callable[[Client, list[bytes]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with fake(answers) as (url, seen), Client(url) as client:
            await case(client, seen)

    asyncio.run(asyncio.wait_for(main(), 50))


def test_10_close_never_raises_and_still_ends_the_session_after_a_dropped_connection() -> None:
    async def case(client: Client, seen: list[bytes]) -> None:
        session = session_of(client)
        error = await failure(session.request("/x", {}))
        assert isinstance(error, Unreachable)
        assert isinstance(error, ConnectionError)
        assert session.open is False
        await session.close()
        assert [each.split()[0] for each in seen] == [b"/x", b"/session/end"]

    against([None, reply(200, {"ended": True})], case)


def test_10_close_swallows_what_it_cannot_reach() -> None:
    async def case() -> None:
        async with Client(f"http://127.0.0.1:{free_port()}") as client:
            session = session_of(client)
            await session.close()
            assert session.open is False

    asyncio.run(case())


def test_11_429_is_retried_with_a_pause_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(client: Client, seen: list[bytes]) -> None:
        begun = time.monotonic()
        result = await session_of(client).request("/x", {})
        assert (result["status"], len(seen)) == (200, 4)
        assert time.monotonic() - begun > 0.8

    against([reply(429), reply(503), reply(429), reply(200, {})], case)
    monkeypatch.setattr("sessionworkers.client.retry.TRIES", 3)

    async def bounded(client: Client, seen: list[bytes]) -> None:
        result = await session_of(client).request("/x", {})
        assert (result["status"], result["ok"], len(seen)) == (429, False, 3)

    against([reply(429)], bounded)


def test_11_retry_after_is_honoured() -> None:
    async def case(client: Client, seen: list[bytes]) -> None:
        begun = time.monotonic()
        assert (await session_of(client).request("/x", {}))["status"] == 200
        assert time.monotonic() - begun >= 2

    against([reply(429, retry_after="2"), reply(200, {})], case)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 422, 500, 502, 504])
def test_11_nothing_else_is_retried(status: int) -> None:
    async def case(client: Client, seen: list[bytes]) -> None:
        result = await session_of(client).request("/x", {})
        assert (result["status"], result["ok"], len(seen)) == (status, False, 1)

    against([reply(status, {"error": "e"})], case)


def test_11_retry_false_is_one_request() -> None:
    async def case(client: Client, seen: list[bytes]) -> None:
        result = await session_of(client).request("/x", {}, retry=False)
        assert (result["status"], len(seen)) == (429, 1)

    against([reply(429)], case)


CUT = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\ncontent-type: application/json\r\n\r\n{"


@pytest.mark.parametrize("answer", [None, CUT, b"garbage\r\n\r\n"], ids=["closed", "cut short", "no HTTP"])
def test_11_a_request_that_may_have_run_is_never_sent_again(answer: bytes | None) -> None:
    async def case(client: Client, seen: list[bytes]) -> None:
        error = await failure(session_of(client).request("/x", {}))
        assert isinstance(error, Unreachable)
        assert (error.sent, len(seen)) == (True, 1)

    against([answer], case)


def test_11_unless_told() -> None:
    async def case(client: Client, seen: list[bytes]) -> None:
        result = await session_of(client).request("/x", {}, resend=True)
        assert (result["status"], len(seen)) == (200, 2)

    against([None, reply(200, {})], case)


def test_11_no_reply_in_time_is_timed_out_and_not_sent_again() -> None:
    async def main() -> None:
        seen = 0

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal seen
            seen += 1
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            session = session_of(client)
            error = await failure(session.request("/x", {}, timeout=0.3))
            assert isinstance(error, TimedOut)
            assert isinstance(error, TimeoutError)
            assert (seen, session.open) == (1, True)
        await over(server)

    asyncio.run(main())


def test_11_a_reset_is_no_storm() -> None:
    async def main() -> None:
        seen = 0

        async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal seen
            seen += 1
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        server = await asyncio.start_server(reset, "127.0.0.1", 0)
        async with Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            assert isinstance(await failure(session_of(client).request("/x", {})), Unreachable)
            assert seen == 1
        await over(server)

    asyncio.run(main())


def test_is_open_raises_when_it_cannot_know() -> None:
    async def case(client: Client, seen: list[bytes]) -> None:
        session = session_of(client)
        assert isinstance(await failure(session.is_open()), Rejected)
        assert isinstance(await failure(session.is_open()), Unreachable)
        assert session.open

    against([reply(401, {"error": "session_auth is not valid"}), None], case)


def test_15_session_is_awaitable_and_a_context_manager_alike(api: Api) -> None:
    async def case(client: Client) -> None:
        async with client.session() as one:
            assert await one.is_open()
        async with await client.session() as other:
            assert await other.is_open()
        third = await client.session()
        await third.close()
        assert [await each.is_open() for each in (one, other, third)] == [False] * 3

    run(api, case)


def test_an_unreachable_worker_marks_the_session_closed(api: Api) -> None:
    """The worker that holds it dies in the middle of a request: a ConnectionError, or the 410 of another worker."""
    with sessions(workers=2) as other:

        async def case(client: Client) -> None:
            session = await client.session()
            pid = (await session.request("/echo", {}))["response"]["pid"]
            requests = [asyncio.ensure_future(failure(session.request("/slow", {"s": 20}))) for _ in range(6)]
            await asyncio.to_thread(wait_for, lambda: len(slow(other)) == 6, 10)
            os.kill(pid, signal.SIGKILL)
            errors = await asyncio.gather(*requests)
            assert all(isinstance(each, (ConnectionError, ValueError)) for each in errors)
            assert session.open is False
            with pytest.raises(ValueError):
                session.request("/echo", {})

        run(other, case)
