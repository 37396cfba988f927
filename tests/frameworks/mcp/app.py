"""MCP Python SDK 2: streamable HTTP at /mcp, the legacy transport at /sse and /messages/."""

from __future__ import annotations

import os
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from starlette.applications import Starlette

server = MCPServer("counter")
counts: dict[str, int] = {}


def session_of(ctx: Context) -> str:
    request = ctx.request_context.request
    return request.headers.get("mcp-session-id") or request.query_params.get("session_id") or "none"


@server.tool()
async def incr(ctx: Context) -> dict[str, Any]:
    key = session_of(ctx)
    counts[key] = counts.get(key, 0) + 1
    return {"n": counts[key], "pid": os.getpid()}


_http = server.streamable_http_app()
app = Starlette(routes=[*_http.routes, *server.sse_app().routes], lifespan=_http.router.lifespan_context)
