"""The demo's client: many sessions at once, each request on a TCP connection of its own.

A kept-alive connection stays with the worker that accepted it and so hides what this demo shows.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

STEPS = 5
CONNECTIONS = 250  # at once; well below the usual limit of 1,024 open files
TIMEOUT = 10.0  # seconds for one request


@dataclass
class Outcome:
    """How the sessions of one server went. ``wrong`` counts sessions by what was seen first."""

    right: int = 0
    wrong: Counter[str] = field(default_factory=Counter)


Call = Callable[[str, str], Awaitable[tuple[int, dict[str, Any]]]]
"""Method and path to status and JSON."""


async def exchange(port: int, method: str, path: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of one request without a body. OSError or ValueError if no whole reply comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        status_line, _, rest = (await reader.read(-1)).partition(b"\r\n")
    finally:
        writer.close()
    parts = status_line.split()
    if len(parts) < 2 or not parts[1].isdigit():
        raise ConnectionError("the connection ended without a reply")
    content = json.loads(rest.partition(b"\r\n\r\n")[2])
    return int(parts[1]), content if isinstance(content, dict) else {}


async def session(call: Call) -> str | None:
    """One session: made, counted up, ended. None if every step was right, else what was wrong first."""
    try:
        status, reply = await call("POST", "/sessions")
        if status != 200:
            return f"{status} to the start"
        path = f"/sessions/{reply['session_id']}"
        for step in [*range(1, STEPS + 1), None]:
            method, target = ("POST", path + "/add") if step else ("DELETE", path)
            status, reply = await call(method, target)
            if status != 200:
                return f"{status} {reply.get('error', '')}".strip()
            if reply.get("count") != (step or STEPS):
                return "a wrong count"
    except (asyncio.TimeoutError, TimeoutError):
        return "no reply in time"
    except (OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}"
    return None


async def run(port: int, count: int, progress: Callable[[int], None]) -> Outcome:
    """``count`` sessions, all at once; ``progress(1)`` is called as each ends."""
    outcome = Outcome()
    gate = asyncio.Semaphore(CONNECTIONS)

    async def call(method: str, path: str) -> tuple[int, dict[str, Any]]:
        async with gate:
            return await asyncio.wait_for(exchange(port, method, path), TIMEOUT)

    async def one() -> None:
        wrong = await session(call)
        if wrong is None:
            outcome.right += 1
        else:
            outcome.wrong[wrong] += 1
        progress(1)

    await asyncio.gather(*(one() for _ in range(count)))
    return outcome
