"""Close hooks: where they go, what they carry, and that nothing waits for them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sessionworkers.sessions.hooks import Hooks
from sessionworkers.sessions.targets import HookAllow
from tests.harness import free_port, wait_for
from tests.sessions.kit import Api, HookServer, sessions


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions("--max-sessions", "0", "--hook-allow", "127.0.0.1") as running:
        yield running


@pytest.mark.parametrize("route", ["/hook", "hook", "/hook/deep?a=1"])
def test_a_relative_route_is_posted_to_this_app_on_the_owner(api: Api, route: str) -> None:
    for _ in range(4):
        session_id = api.open(on_close_route=route, on_close_payload={"a": 1})
        pid = api.use(session_id).json["pid"]
        api.end(session_id)
        wait_for(lambda s=session_id: api.hooks(s), 5)  # type: ignore[misc]
        (seen,) = api.hooks(session_id)
        assert seen["body"] == {"a": 1, "session_id": session_id}
        assert (seen["pid"], seen["path"], seen["query"]) == (
            pid,
            "/" + route.partition("?")[0].lstrip("/"),
            route.partition("?")[2],
        )


def test_an_absolute_route_is_called_as_it_is(api: Api) -> None:
    with HookServer() as hooks:
        session_id = api.open(on_close_route=hooks.url + "/bye?x=1", on_close_payload=[1, 2])
        api.end(session_id)
        wait_for(lambda: hooks.of(session_id), 5)
        assert hooks.got[0][0] == "/bye?x=1"
        assert hooks.of(session_id) == [{"payload": [1, 2], "session_id": session_id}]


def test_a_base_url_takes_the_relative_ones() -> None:
    with HookServer() as hooks, sessions("--hook-base-url", hooks.url + "/model", workers=2) as api:
        session_id = api.open(on_close_route="/cancel")
        api.end(session_id)
        wait_for(lambda: hooks.of(session_id), 5)
        assert hooks.got[0][0] == "/model/cancel"


def test_absolute_routes_are_422_by_default() -> None:
    with HookServer() as hooks, sessions(workers=2) as api:
        reply = api.create(on_close_route=hooks.url + "/bye")
        assert (reply.status, reply.json["error"]) == (422, "on_close_route is not valid")
        assert api.load()["total"]["sessions"] == 0


@pytest.mark.parametrize(
    "route", ["http://169.254.169.254/", "http://10.0.0.1/", "http://[::1]/", "http://u:p@127.0.0.1/"]
)
def test_what_is_not_listed_is_422(api: Api, route: str) -> None:
    assert api.create(on_close_route=route).status == 422


def test_a_hook_that_fails_changes_nothing(api: Api) -> None:
    routes = [f"http://127.0.0.1:{free_port()}/x", "/nowhere", "/plain"]
    for route in routes:
        session_id = api.open(on_close_route=route)
        begun = time.monotonic()
        assert api.end(session_id).status == 200
        assert time.monotonic() - begun < 1


# one worker's hooks by themselves


def run(hooks: Hooks, route: str, body: bytes = b'{"session_id": "s"}') -> float:
    async def main() -> float:
        begun = time.monotonic()
        await hooks.post(route, body, "s")
        return time.monotonic() - begun

    return asyncio.run(main())


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("not called")


def outside(**options: Any) -> Hooks:
    return Hooks(nothing, allow=HookAllow(options.pop("allow", ["127.0.0.1"])), **options)


def test_a_connection_that_cannot_be_made_is_tried_three_times() -> None:
    port = free_port()
    took = run(outside(), f"http://127.0.0.1:{port}/x")
    assert 1.4 < took < 4


def test_a_request_that_may_have_arrived_is_never_sent_again() -> None:
    async def main() -> int:
        connections = 0

        async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(drop, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await outside().post(f"http://127.0.0.1:{port}/x", b"{}", "s")
        server.close()
        await asyncio.sleep(0.05)
        return connections

    assert asyncio.run(main()) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with HookServer() as other, HookServer(status=status, headers={"Location": other.url + "/secret"}) as hooks:
        run(outside(), hooks.url + "/x")
        assert len(hooks.got) == 1
        assert other.got == []


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with HookServer() as hooks:
        run(outside(), hooks.url + "/x")
        assert len(hooks.got) == 1


def test_the_time_limit_bounds_a_hook_that_hangs() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert run(outside(timeout=0.3), f"http://127.0.0.1:{silent.getsockname()[1]}/x") < 2


def test_only_so_many_at_once() -> None:
    async def main() -> int:
        running = most = 0

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        hooks = Hooks(app, concurrency=5)
        for _ in range(50):
            hooks.post("/x", b"{}", "s")
        while hooks.tasks:
            await asyncio.sleep(0.01)
        return most

    assert asyncio.run(main()) == 5


def resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    asked: list[str] = []

    async def getaddrinfo(self: Any, host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return asked


def test_a_name_is_resolved_once_and_every_address_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with HookServer() as hooks:
        asked = resolver(monkeypatch, "127.0.0.1", "169.254.169.254")
        run(outside(allow=["127.0.0.0/8"]), f"http://rebind.example:{hooks.port}/x")
        assert hooks.got == []
        assert asked == ["rebind.example"]
        asked = resolver(monkeypatch, "127.0.0.1")
        run(outside(allow=["127.0.0.0/8"]), f"http://rebind.example:{hooks.port}/x")
        assert len(hooks.got) == 1
        assert asked[0] == "rebind.example"
        assert "rebind.example" not in asked[1:]


def test_numbers_that_are_addresses_are_judged_as_such() -> None:
    with HookServer() as hooks:
        run(outside(allow=["10.0.0.0/8"]), f"http://2130706433:{hooks.port}/x")
        run(outside(allow=["10.0.0.0/8"]), f"http://0x7f.1:{hooks.port}/x")
        assert hooks.got == []


def test_the_request_is_plain_and_whole() -> None:
    async def main() -> str:
        got = bytearray()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.extend(await reader.readuntil(b"\r\n\r\n"))
            got.extend(await reader.readexactly(8))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await outside().post(f"http://127.0.0.1:{port}/a?b=c", b'{"a": 1}', "s")
        server.close()
        await asyncio.sleep(0.05)
        return got.decode()

    head, _, body = asyncio.run(main()).partition("\r\n\r\n")
    assert head.startswith("POST /a?b=c HTTP/1.1\r\n")
    assert "content-type: application/json" in head.lower()
    assert body == '{"a": 1}'
