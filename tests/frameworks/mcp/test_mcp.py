"""The MCP Python SDK: streamable HTTP by hand, its own client in the 2025 protocol, and the legacy transport."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.frameworks.cases import LAUNCHERS, Case, launched, needs, run_sessions
from tests.harness import Reply, Server

# filterwarnings: the SDK deprecates its own session protocol with every use.
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
needs("mcp.server.mcpserver")
httpx = pytest.importorskip("httpx")

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "incr", "arguments": {}}}


@pytest.fixture(scope="module", params=LAUNCHERS)
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    with launched(request.param, "tests.frameworks.mcp.app:app", workers=3) as server:
        yield server


def payload(reply: Reply) -> Any:
    """The JSON-RPC message of a reply, framed as JSON or as one server-sent event."""
    if (reply.header("content-type") or "").startswith("text/event-stream"):
        return next(json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {"))
    return reply.json


async def streamable(s: Server) -> None:
    reply = await s.afetch("POST", "/mcp", INITIALIZE, HEADERS)
    sid = reply.header("mcp-session-id")
    assert sid, reply
    named = {**HEADERS, "mcp-session-id": sid, "mcp-protocol-version": "2025-11-25"}
    reply = await s.afetch("POST", "/mcp", INITIALIZED, named)
    assert reply.status == 202, f"initialized: {reply.status} {reply.text}"
    for want in (1, 2, 3):
        reply = await s.afetch("POST", "/mcp", call(want + 1), named)
        assert reply.status == 200, f"incr {want}: {reply.status} {reply.text}"
        assert payload(reply)["result"]["structuredContent"]["n"] == want
    reply = await s.afetch("DELETE", "/mcp", headers=named)
    assert reply.status == 200, f"delete: {reply.status} {reply.text}"
    reply = await s.afetch("POST", "/mcp", call(9), named)
    assert reply.status == 404, f"after the delete: {reply.status}"


async def official_client(s: Server) -> None:
    """Pooled keep-alive: the POSTs and the GET stream use connections of their own."""
    from mcp import Client

    async with Client(f"{s.url}/mcp", mode="legacy") as client:
        for want in (1, 2, 3):
            result = await client.call_tool("incr", {})
            assert result.structured_content is not None and result.structured_content["n"] == want


@contextlib.asynccontextmanager
async def event_stream(url: str) -> AsyncIterator[asyncio.Queue[str]]:
    """The data lines of a GET stream, as they come."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    async with httpx.AsyncClient(timeout=20) as client, client.stream("GET", url) as stream:

        async def read() -> None:
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    queue.put_nowait(line[6:])

        reading = asyncio.create_task(read())
        try:
            yield queue
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def legacy_sse(s: Server) -> None:
    """GET /sse: its first event names /messages/?session_id=...; POSTs there answer on the stream."""
    async with event_stream(f"{s.url}/sse") as queue:
        endpoint = await queue.get()

        async def post(body: dict[str, Any]) -> None:
            reply = await s.afetch("POST", endpoint, body)
            assert reply.status == 202, f"{body['method']}: {reply.status} {reply.text}"

        await post(INITIALIZE)
        await queue.get()
        await post(INITIALIZED)
        for want in (1, 2):
            await post(call(want + 1))
            assert json.loads(await queue.get())["result"]["structuredContent"]["n"] == want


@pytest.mark.parametrize("case", [streamable, official_client, legacy_sse])
def test_every_session_is_right(running: Server, case: Case) -> None:
    logging.disable(logging.CRITICAL)
    try:
        run_sessions(running, case)
    finally:
        logging.disable(logging.NOTSET)
