"""python-socketio: long polling, the upgrade to WebSocket on a second connection, and its own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.frameworks.cases import LAUNCHERS, Case, launched, leave, needs, run_sessions
from tests.harness import Server

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
needs("socketio")
needs("aiohttp")
websockets = pytest.importorskip("websockets")

POLLING = "/socket.io/?EIO=4&transport=polling"


@pytest.fixture(scope="module", params=LAUNCHERS)
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    with launched(request.param, "tests.frameworks.socketio.app:app") as server:
        yield server


async def ask(s: Server, method: str, query: str = "", body: str | None = None) -> str:
    reply = await s.afetch(method, POLLING + query, body.encode() if body else None)
    assert reply.status == 200, f"{method}{' with sid' if query else ''}: {reply.status} {reply.text}"
    return reply.text


async def polling(s: Server) -> None:
    """Handshake, connect, three events with their replies, close; a poll may bring a ping first."""
    query = f"&sid={json.loads((await ask(s, 'GET'))[1:])['sid']}"
    await ask(s, "POST", query, "40")
    await ask(s, "GET", query)
    for want in (1, 2, 3):
        await ask(s, "POST", query, f'42{want}["incr",null]')
        message = await ask(s, "GET", query)
        while f"43{want}" not in message:
            message = await ask(s, "GET", query)
        assert json.loads(message[message.index("[") :])[0]["n"] == want
    await ask(s, "POST", query, "1")


async def upgrade(s: Server) -> None:
    """As a browser does: the handshake by polling, then a WebSocket with its sid on a second connection."""
    sid = json.loads((await ask(s, "GET"))[1:])["sid"]
    url = f"ws://127.0.0.1:{s.port}/socket.io/?EIO=4&transport=websocket&sid={sid}"
    async with websockets.connect(url, open_timeout=10) as ws:
        await ws.send("2probe")
        assert await asyncio.wait_for(ws.recv(), 5) == "3probe"
        await ws.send("5")
        await ws.send("40")
        for want in (1, 2):
            await ws.send(f'42{want}["incr",null]')
            while not (message := str(await asyncio.wait_for(ws.recv(), 5))).startswith(f"43{want}"):
                if message == "2":
                    await ws.send("3")
            assert json.loads(message[message.index("[") :])[0]["n"] == want


async def official(s: Server, transports: list[str] | None) -> None:
    import socketio

    client: Any = socketio.AsyncClient(reconnection=False)
    try:
        await client.connect(s.url, transports=transports, wait_timeout=10)
        for want in (1, 2, 3):
            reply = await client.call("incr", None, timeout=10)
            assert reply["n"] == want, reply
    finally:
        await leave(client)


async def client_polling(s: Server) -> None:
    await official(s, ["polling"])


async def client_upgrading(s: Server) -> None:
    """Where the upgrade reaches a stranger this client goes on polling, so it tells less than `upgrade`."""
    await official(s, None)


@pytest.mark.parametrize("case", [polling, upgrade, client_polling, client_upgrading])
def test_every_session_is_right(running: Server, case: Case) -> None:
    run_sessions(running, case)
