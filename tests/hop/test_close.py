"""The private server's end: what is open may end, then it is told, then it is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessionworkers.errors import AppFailed, HopBroken, OwnerGone
from sessionworkers.hop import PrivateServer
from tests.hop.ends import body, descriptors, get, listen, pair, private_path, run, start, until, websocket


def test_close_without_start(loop: str) -> None:
    async def main() -> None:
        with private_path() as path:
            server = PrivateServer("owner", listen(path), waits, state=dict)
            await server.close(1)
            await server.close(1)

    before = descriptors()
    run(loop, main())
    assert descriptors() == before


async def waits(scope: Any, receive: Any, send: Any, meta: Any) -> None:
    """Begins an answer and then waits for the client to go."""
    if scope["type"] == "websocket":
        await receive()
        if scope["path"] == "/ws":
            await send({"type": "websocket.accept"})
    elif scope["path"] == "/begun":
        await send(start(200))
        await send(body(b"x", True))
    seen = scope["state"]["seen"]
    try:
        while (message := await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
            pass
        seen.append(message)
        if scope["path"] == "/stubborn":
            await asyncio.sleep(60)
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


@pytest.mark.parametrize(
    ("host", "error", "told"),
    [
        (lambda: get("/"), OwnerGone, {"type": "http.disconnect"}),
        (lambda: get("/begun"), HopBroken, {"type": "http.disconnect"}),
        (lambda: websocket(path="/ws"), None, {"type": "websocket.disconnect", "code": 1012}),
        (lambda: websocket(path="/not-yet"), AppFailed, {"type": "websocket.disconnect", "code": 1012}),
    ],
    ids=["http", "http begun", "websocket", "websocket in its handshake"],
)
def test_at_the_deadline(loop: str, host: Any, error: type[Exception] | None, told: Any) -> None:
    seen: list[Any] = []

    async def main() -> None:
        fresh = host()
        async with pair(waits, state=lambda: {"seen": seen}) as ends:
            carried = asyncio.create_task(ends.carry(fresh))
            await until(lambda: ends.server.streams)
            await asyncio.sleep(0.01)
            await ends.server.close(0.05)
            assert ends.server.streams == 0
            if error is None:
                await carried
                assert fresh.sent[-1] == {"type": "websocket.close", "code": 1012}
            else:
                with pytest.raises(error):
                    await carried
            assert seen == [told]

    run(loop, main())


def test_who_does_not_go_is_cancelled(loop: str) -> None:
    seen: list[Any] = []

    async def main() -> None:
        async with pair(waits, state=lambda: {"seen": seen}) as ends:
            carried = asyncio.create_task(ends.carry(get("/stubborn")))
            await until(lambda: ends.server.streams)
            await ends.server.close(0.02)
            assert seen == [{"type": "http.disconnect"}, "cancelled"]
            with pytest.raises(OwnerGone):
                await carried

    run(loop, main())


def test_who_ends_in_time_is_left_alone(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        for number in range(5):
            await asyncio.sleep(0.005)
            await send(body(b"%d" % number, True))
        await send(body())
        await asyncio.sleep(0.02)  # a background task counts too
        finished.append(True)

    finished: list[bool] = []

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            carried = asyncio.create_task(ends.carry(host))
            await until(lambda: host.sent)
            clock = asyncio.get_running_loop().time
            began = clock()
            await ends.server.close(10)
            assert clock() - began < 5
            await carried
            assert host.body == b"01234"
            assert finished == [True]

    run(loop, main())


def test_the_acceptor_closes_its_links(loop: str) -> None:
    seen: list[Any] = []

    async def main() -> None:
        async with pair(waits, state=lambda: {"seen": seen}) as ends:
            carried = [asyncio.create_task(ends.carry(host)) for host in (get("/"), get("/begun"))]
            await until(lambda: ends.server.streams == 2)
            await ends.links.close()
            results = await asyncio.gather(*carried, return_exceptions=True)
            assert [type(result) for result in results] == [OwnerGone, HopBroken]
            await until(lambda: not ends.server.streams)
            assert seen == [{"type": "http.disconnect"}] * 2

    run(loop, main())
