"""The MCP SDK's event streams outlive a restart: sse-starlette ends them when it thinks that the server stops."""

from __future__ import annotations

import socket
import time

import pytest

from tests.drain.world import restart, workers
from tests.frameworks.cases import needs
from tests.frameworks.mcp.test_mcp import HEADERS, INITIALIZE, INITIALIZED, call, payload
from tests.harness import SESSIONWORKERS, Server, server, wait_for

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
needs("mcp.server.mcpserver")


def listen(running: Server, named: dict[str, str]) -> socket.socket:
    """The session's GET stream, its head read."""
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=20)
    lines = [
        f"{name}: {value}"
        for name, value in {**named, "accept": "text/event-stream", "host": f"127.0.0.1:{running.port}"}.items()
    ]
    sock.sendall(("GET /mcp HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode())
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(1)
    assert b" 200 " in data.split(b"\r\n")[0]
    return sock


def test_a_stream_of_an_mcp_session_lives_through_a_restart_to_the_deadline() -> None:
    options = ["--drain-timeout", "15", "--drain-idle", "1"]
    app = "tests.frameworks.mcp.app:app"
    with server(app, workers=2, command=SESSIONWORKERS, options=options, boot_timeout=60) as running:
        opened = running.fetch("POST", "/mcp", INITIALIZE, HEADERS)
        named = {
            **HEADERS,
            "mcp-session-id": opened.header("mcp-session-id") or "",
            "mcp-protocol-version": "2025-11-25",
        }
        assert running.fetch("POST", "/mcp", INITIALIZED, named).status == 202
        with listen(running, named) as stream:
            old = restart(running)
            began = time.monotonic()
            stream.settimeout(2.0)
            with pytest.raises(TimeoutError):
                stream.recv(1)  # nothing came, and it was not ended either
            for number in (1, 2, 3):
                reply = payload(running.fetch("POST", "/mcp", call(number), named))
                assert reply["result"]["structuredContent"]["n"] == number
            stream.settimeout(20.0)
            while stream.recv(65_536):
                pass
            assert time.monotonic() - began < 16.0
        wait_for(lambda: not old & workers(running), 15)
        assert running.fetch("POST", "/mcp", call(4), named).status == 404, "the protocol's own word for gone"
