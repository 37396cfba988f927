"""WebSockets over every mechanism: exact close codes, addresses, messages of any size."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.raw.servers import Client, Pair, wait


def at(two: Pair, path: str, **more: Any) -> Any:
    return connect(
        f"ws://127.0.0.1:{two.doors[0]}{path}", additional_headers={"x-session": two.sids[1]}, max_size=None, **more
    )


def test_messages(two: Pair) -> None:
    async def main() -> None:
        async with at(two, "/ws", subprotocols=["one", "two"]) as ws:
            worker, _, client, scheme = json.loads(await ws.recv())
            assert (worker, client, scheme) == ("1", list(ws.local_address), "ws")
            assert ws.subprotocol == "one"
            for message in ("", "text", b"bytes", "x" * 300_000, b"y" * 1_000_000):
                await ws.send(message)
                assert await ws.recv() == message
            await ws.close(4001, "mine")

    asyncio.run(main())
    wait(lambda: "ws 4001 mine" in two.seen(1)["seen"], "the app was told")


@pytest.mark.parametrize(("word", "code", "reason"), [("close", 4321, "bye"), ("boom", None, "")])
def test_how_it_ends(two: Pair, word: str, code: int | None, reason: str) -> None:
    async def ended(ws: ClientConnection) -> ConnectionClosed:
        await ws.recv()
        await ws.send(word)
        with pytest.raises(ConnectionClosed) as closed:
            await ws.recv()
        return closed.value

    async def main() -> None:
        async with at(two, "/ws") as ws:
            error = await ended(ws)
        async with connect(f"ws://127.0.0.1:{two.doors[1]}/ws", additional_headers={"x-session": two.sids[1]}) as local:
            same = await ended(local)
        assert (error.rcvd and error.rcvd.code) == (same.rcvd and same.rcvd.code)
        if code is not None:
            assert error.rcvd is not None and (error.rcvd.code, error.rcvd.reason) == (code, reason)

    asyncio.run(main())


def test_a_refused_handshake(two: Pair) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStatus) as refused:
            async with at(two, "/ws/no"):
                pass
        assert refused.value.response.status_code == 403

    asyncio.run(main())


def test_a_client_that_vanishes(two: Pair) -> None:
    def told() -> int:
        return sum(each.startswith("ws 100") for each in two.seen(1)["seen"])

    before = told()

    async def main() -> None:
        ws = await at(two, "/ws")
        await ws.recv()
        ws.transport.abort()

    asyncio.run(main())
    wait(lambda: told() > before, "the app was told", 3)


def test_an_upgrade_after_requests(two: Pair) -> None:
    with Client(two.doors[0]) as client:
        for _ in range(2):
            client.ask("/", two.sids[1])
        reply = client.ask(
            "/ws", two.sids[1], "GET", "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        )  # fmt: skip
        assert reply.status == 101


def test_the_same_handshake_to_the_byte(two: Pair) -> None:
    """As of clients whose key is no random one."""
    lines = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")
    for owner in (0, 1):
        for _ in range(4):
            with Client(two.doors[0]) as client:
                key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
                assert client.ask("/ws", two.sids[owner], "GET", *lines, key).status == 101
                assert not client.ended()
