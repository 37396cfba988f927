"""A client that goes away is told to the owner's app, at whatever moment; what the app raises is told to the host."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from sessionworkers.errors import AppFailed, HopBroken
from tests.hop.ends import Host, body, descriptors, get, http_scope, pair, post, request, run, start, until

GONE = {"type": "http.disconnect"}
PHASES = ["before the reply", "after the head", "in the body", "while uploading", "while the reply is stuck"]


@pytest.mark.parametrize("phase", PHASES)
def test_client_gone(loop: str, phase: str) -> None:
    seen: list[str] = []
    reached = asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        message = await receive()
        if phase != "before the reply" and phase != "while uploading":
            await send(start(200))
        if phase == "in the body":
            await send(body(b"some", True))
        if phase == "while the reply is stuck":
            reached.set()
            for _ in range(100):
                await send(body(b"x" * 60_000, True))
        reached.set()
        while message["type"] != "http.disconnect":
            message = await receive()
        seen.append(message["type"])
        await send(start(200) if phase in ("before the reply", "while uploading") else body(b"more", True))  # silent
        seen.append((await receive())["type"])  # for ever
        seen.append((await receive())["type"])

    async def main() -> None:
        async with pair(handler) as ends:
            host = Host(http_scope("POST"), request(b"first", more=True)) if phase == "while uploading" else get()
            if phase == "while the reply is stuck":
                host.gate.clear()
            carried = asyncio.create_task(ends.carry(host))
            await reached.wait()
            if phase in ("after the head", "in the body"):
                await until(lambda: host.sent)
            host.give(GONE)
            if phase == "while the reply is stuck":
                await until(lambda: seen)
                host.gate.set()  # as a host does when the connection is lost
            await carried
            await until(lambda: not ends.server.streams)
            assert seen == ["http.disconnect"] * 3

    run(loop, main())


def test_client_gone_before_it_was_carried(loop: str) -> None:
    """The app runs all the same, as it does without a hop."""
    seen: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        seen.append((await receive())["type"])

    async def main() -> None:
        async with pair(handler) as ends:
            await ends.carry(Host(http_scope("POST"), GONE))
            await until(lambda: seen)
            assert seen == ["http.disconnect"]

    run(loop, main())


def test_a_disconnect_is_told_soon_and_cancels_nothing(loop: str) -> None:
    finished = asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for _ in range(5):
            await asyncio.sleep(0.001)
        finished.set()

    async def main() -> None:
        async with pair(handler) as ends:
            clock = asyncio.get_running_loop().time
            host = get()
            carried = asyncio.create_task(ends.carry(host))
            await until(lambda: ends.server.streams)
            gone = clock()
            host.give(GONE)
            await carried
            assert clock() - gone < 0.2
            await finished.wait()

    run(loop, main())


def test_cancelled_by_the_host(loop: str) -> None:
    seen: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        seen.append((await receive())["type"])

    async def main() -> None:
        async with pair(handler) as ends:
            for _ in range(3):
                carried = asyncio.create_task(ends.carry(get()))
                await until(lambda: ends.server.streams)
                carried.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await carried
                await until(lambda: not ends.server.streams)
            assert seen == ["http.disconnect"] * 3
            assert len(ends.links.all) == 1

    run(loop, main())


def test_cancelled_while_send_waits(loop: str) -> None:
    seen: list[str] = []
    stopped: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(start(200))
        seen.append((await receive())["type"])

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()

            async def send(message: Any) -> None:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    stopped.append(message["type"])
                    raise

            carried = asyncio.create_task(ends.links.carry("owner", host.scope, host.receive, send, {}))
            await until(lambda: ends.server.streams)
            await asyncio.sleep(0.01)
            carried.cancel()
            with pytest.raises(asyncio.CancelledError):
                await carried
            await until(lambda: seen)
            assert stopped == ["http.response.start"]

    run(loop, main())


def test_the_hosts_own_error_is_raised_and_told(loop: str) -> None:
    seen: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(start(200, [(b"bad\n", b"header")]))
        await send(body(b"x", True))
        seen.append((await receive())["type"])

    async def main() -> None:
        async with pair(handler) as ends:
            for waits in (False, True):
                host = get()
                host.error = RuntimeError("Invalid HTTP header name.")
                if waits:
                    host.gate.clear()
                    asyncio.get_running_loop().call_later(0.01, host.gate.set)
                with pytest.raises(RuntimeError, match="Invalid HTTP header"):
                    await ends.carry(host)
            await until(lambda: len(seen) == 2)

    run(loop, main())


def test_the_hosts_receive_fails(loop: str) -> None:
    seen: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        seen.append((await receive())["type"])

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            first = [request()]

            async def receive() -> Any:
                if first:
                    return first.pop()
                raise ValueError("broken")

            with pytest.raises(ValueError, match="broken"):
                await ends.links.carry("owner", host.scope, receive, host.send, {})
            await until(lambda: seen)

    run(loop, main())


class Boom(Exception):
    pass


@pytest.mark.parametrize("phase", ["at once", "after a wait", "after the start", "in the body", "after the end"])
def test_the_app_raises(loop: str, phase: str, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        if phase == "after a wait":
            await asyncio.sleep(0.001)
        if phase in ("after the start", "in the body", "after the end"):
            await send(start(200))
        if phase in ("in the body", "after the end"):
            await send(body(b"x", phase == "in the body"))
        raise Boom

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            if phase == "after the end":
                await ends.carry(host)
                assert host.complete
                await until(lambda: not ends.server.streams)
            elif phase in ("at once", "after a wait"):
                with pytest.raises(AppFailed) as failed:
                    await ends.carry(host)
                assert (failed.value.status, failed.value.replay, host.sent) == (500, None, [])
            else:
                with pytest.raises(HopBroken):
                    await ends.carry(host)
                assert host.status == 200
                assert host.body == (b"x" if phase == "in the body" else b"")

    with caplog.at_level(logging.ERROR):
        run(loop, main())
    assert [(record.name, record.exc_info and record.exc_info[0]) for record in caplog.records] == [
        ("uvicorn.error", Boom)
    ]


@pytest.mark.parametrize("begun", [False, True])
def test_the_app_returns_too_early(loop: str, begun: bool) -> None:
    """So does the request at the acceptor, whose host does what it does without a hop."""

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        if begun:
            await send(start(200))

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            await ends.carry(host)
            assert len(host.sent) == begun

    run(loop, main())


def test_what_the_app_does_after_its_reply_holds_nobody_up(loop: str) -> None:
    go = asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        await send(body(b"done"))
        await go.wait()

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            await ends.carry(host)
            assert host.body == b"done"
            assert ends.server.streams == 1
            go.set()
            await until(lambda: not ends.server.streams)

    run(loop, main())


def test_nothing_leaks(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        if scope["path"] == "/stuck":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        if scope["path"] == "/raise":
            await send(start(200))
            raise Boom
        await send(start(200))
        await send(body(b"x" * 100_000))

    before = descriptors()

    async def main() -> None:
        for _ in range(3):
            async with pair(handler) as ends:
                for _ in range(10):
                    await ends.carry(get())
                    await ends.carry(post(b"x" * 100_000))
                    with pytest.raises(HopBroken):
                        await ends.carry(get("/raise"))
                    stuck = asyncio.create_task(ends.carry(get("/stuck")))
                    await until(lambda: ends.server.streams)
                    stuck.cancel()
                    await asyncio.wait([stuck])
                await until(lambda: not ends.server.streams)
                (link,) = ends.links.all
                assert not link.streams
                (peer,) = ends.server.links
                assert not peer.streams

    logging.getLogger("uvicorn.error").disabled = True
    try:
        run(loop, main())
    finally:
        logging.getLogger("uvicorn.error").disabled = False
    assert descriptors() == before
