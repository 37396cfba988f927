"""NiceGUI as its page speaks it: GET the page, connect the Socket.IO socket that it names, click three times."""

from __future__ import annotations

import asyncio
import html
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.frameworks.cases import LAUNCHERS, Case, launched, leave, needs, run_sessions
from tests.harness import Server

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(180)]
needs("nicegui")
needs("socketio")
needs("aiohttp")


@pytest.fixture(scope="module", params=LAUNCHERS)
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    with launched(request.param, "tests.frameworks.nicegui.app:app", workers=2) as server:
        yield server


def button_of(page: str) -> dict[str, Any]:
    """The page's only element that listens to a click, with its ``id``."""
    found = re.search(r"parseElements\(String\.raw`(.*?)`\)", page, re.S)
    assert found, page[:500]
    elements = json.loads(html.unescape(found[1]))
    return next(
        {"id": int(key), **e} for key, e in elements.items() if any(v["type"] == "click" for v in e.get("events", []))
    )


async def clicks(s: Server, transports: list[str], encoding: str) -> None:
    import gzip

    import socketio

    reply = await s.afetch("GET", "/", headers={"accept": "text/html", "accept-encoding": encoding})
    assert reply.status == 200, reply.status
    page = (gzip.decompress(reply.body) if reply.header("content-encoding") == "gzip" else reply.body).decode()
    client_id = re.search(r"'client_id': '([0-9a-f-]{36})'", page)
    assert client_id, "no client_id in the page"
    button = button_of(page)
    query = {
        "client_id": client_id[1],
        "next_message_id": 0,
        "implicit_handshake": "true",
        "document_id": str(uuid.uuid4()),
        "tab_id": str(uuid.uuid4()),
    }
    updates: asyncio.Queue[str] = asyncio.Queue()
    client: Any = socketio.AsyncClient(reconnection=False)
    client.on("update", lambda message: updates.put_nowait(json.dumps(message)))
    try:
        await client.connect(
            f"{s.url}/?{urlencode(query)}",
            socketio_path="/_nicegui_ws/socket.io",
            transports=transports,
            wait_timeout=10,
        )
        for want in (1, 2, 3):
            event = {"id": button["id"], "client_id": client_id[1], "args": []}
            await client.emit("event", {**event, "listener_id": button["events"][0]["listener_id"]})
            while f"count {want}" not in await asyncio.wait_for(updates.get(), 10):
                pass
    finally:
        await leave(client)


async def websocket(s: Server) -> None:
    await clicks(s, ["websocket"], "gzip")


async def polling(s: Server) -> None:
    await clicks(s, ["polling"], "identity")


@pytest.mark.parametrize("case", [websocket, polling])
def test_every_session_is_right(running: Server, case: Case) -> None:
    run_sessions(running, case)
