"""Run in NeMo Gym's venv: one counter session through the MCP SDK's own client. Arguments: URL, headers, steps."""

from __future__ import annotations

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def main(url: str, headers: dict[str, str], steps: list[int]) -> None:
    async with streamablehttp_client(url, headers=headers) as streams:
        async with ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            names = {tool.name for tool in (await session.list_tools()).tools}
            assert names == {"increment_counter", "get_counter_value"}, names
            for step in steps:
                await session.call_tool("increment_counter", {"count": step})
            print(json.dumps((await session.call_tool("get_counter_value", {})).structuredContent))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])))
