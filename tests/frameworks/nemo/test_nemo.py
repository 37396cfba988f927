"""NeMo Gym 0.7.0's own servers: cookie, rollout prefix, implicit sessions, MCP token, and typed IDs in bodies.

``SESSIONWORKERS_NEMO_PYTHON`` names the interpreter of a venv that holds NeMo Gym and this package's dependencies.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.frameworks.cases import FULL, LAUNCHERS, Case, launched, run_sessions
from tests.harness import Server

PYTHON = os.environ.get("SESSIONWORKERS_NEMO_PYTHON", "")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not PYTHON, reason="SESSIONWORKERS_NEMO_PYTHON names no interpreter"),
]

EPISODES = 200 if FULL else 30
TOKEN = "X-NeMo-Gym-Session-Token"
MCP_CLIENT = str(pathlib.Path(__file__).with_name("mcp_client.py"))


@pytest.fixture(scope="module", params=LAUNCHERS)
def counter(request: pytest.FixtureRequest) -> Iterator[Server]:
    with launched(request.param, "tests.frameworks.nemo.counter_app:app", workers=3, python=PYTHON) as server:
        yield server


@pytest.fixture(scope="module", params=LAUNCHERS)
def typed(request: pytest.FixtureRequest) -> Iterator[Server]:
    with launched(request.param, "tests.frameworks.nemo.typed_app:app", workers=3, python=PYTHON) as server:
        yield server


class Caller:
    """One episode's caller: keeps the cookies that the server sets."""

    def __init__(self, server: Server, prefix: str = "") -> None:
        self.server, self.prefix = server, prefix
        self.cookies: dict[str, str] = {}
        self.start = random.randint(0, 9)
        self.steps = [random.randint(1, 9) for _ in range(random.randint(3, 6))]

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None, *, cookies: bool = True) -> Any:
        sent = dict(headers or {})
        if cookies and self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        reply = await self.server.afetch("POST", self.prefix + path, body, sent, timeout=60)
        assert reply.status == 200, f"{path}: {reply.status} {reply.text[:200]}"
        if cookies:
            self.cookies |= reply.cookies
        return reply.json

    async def verify(self, expected: int) -> None:
        response = {
            "id": "r",
            "created_at": 0,
            "model": "fake",
            "object": "response",
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        body = {"responses_create_params": {"input": []}, "response": response, "expected_count": expected}
        assert (await self.post("/verify", body))["reward"] == 1.0


async def cookie(s: Server, prefix: str = "") -> None:
    caller = Caller(s, prefix)
    expected = caller.start + sum(caller.steps)
    await caller.post("/seed_session", {"initial_count": caller.start})
    for step in caller.steps:
        await caller.post("/increment_counter", {"count": step})
    assert await caller.post("/get_counter_value", {}) == {"count": expected}
    await caller.verify(expected)


async def rollout(s: Server) -> None:
    """Under NeMo Gym's path prefix."""
    await cookie(s, f"/ng-rollout/{uuid.uuid4().hex[:8]}-0")


async def lazy(s: Server) -> None:
    """No seed: the first tool call makes the session."""
    caller = Caller(s)
    for step in caller.steps:
        await caller.post("/increment_counter", {"count": step})
    await caller.verify(sum(caller.steps))


async def mcp(s: Server) -> None:
    """Tool calls by the token alone; the end by the seed's cookie."""
    caller = Caller(s)
    expected = caller.start + sum(caller.steps)
    seeded = (await caller.post("/seed_session", {"initial_count": caller.start}))["mcp"]
    headers = {**seeded["headers"], "accept": "application/json, text/event-stream"}
    assert TOKEN in headers

    async def tool(name: str, arguments: dict[str, int]) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        result = (await caller.post(seeded["url_path"], body, headers, cookies=False))["result"]
        assert not result.get("isError"), result
        return result["structuredContent"]

    for step in caller.steps:
        await tool("increment_counter", {"count": step})
    assert await tool("get_counter_value", {}) == {"count": expected}
    await caller.verify(expected)


async def mcp_official(s: Server) -> None:
    """The same through the official client, which also sends the cookie of another session."""
    caller = Caller(s)
    expected = caller.start + sum(caller.steps)
    seeded = (await caller.post("/seed_session", {"initial_count": caller.start}))["mcp"]
    process = await asyncio.create_subprocess_exec(
        *(PYTHON, MCP_CLIENT, s.url + seeded["url_path"], json.dumps(seeded["headers"]), json.dumps(caller.steps)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-300:]
    assert json.loads(out) == {"count": expected}
    await caller.verify(expected)


async def typed_bodies(s: Server) -> None:
    """The body's ID is all that names the session; no cookie is sent."""
    sid = f"resources-session-{uuid.uuid4().hex}"

    async def post(path: str, session: str, rollout: str) -> int:
        body: dict[str, Any] = {
            "resources_session_id": session,
            "episode_id": {"rollout_id": rollout, "attempt": 0},
        }
        if path == "/seed_session":
            body |= {"task_id": {"taskset": "t", "task_id": "1"}, "task_data": {}}
        reply = await s.afetch("POST", path, body, timeout=60)
        assert reply.status != 200 or reply.json["resources_session_id"] == session
        return reply.status

    assert await post("/seed_session", sid, "r1") == 200
    assert await post("/seed_session", sid, "r1") == 200, "a seed sent again"
    assert await post("/seed_session", sid, "r2") >= 400, "the ID of another episode"
    assert await post("/close_session", sid, "r1") == 200
    assert await post("/close_session", sid, "r1") == 200, "a close sent again"
    assert await post("/seed_session", sid, "r1") >= 400, "a late seed"
    assert await post("/close_session", f"{sid}-x", "r1") == 200, "a close that came first"
    assert await post("/seed_session", f"{sid}-x", "r1") >= 400, "its delayed seed"


@pytest.mark.parametrize("case", [cookie, rollout, lazy, mcp])
def test_every_episode_is_right(counter: Server, case: Case) -> None:
    run_sessions(counter, case, EPISODES, together=EPISODES)


def test_every_episode_of_the_official_mcp_client_is_right(counter: Server) -> None:
    run_sessions(counter, mcp_official, 20 if FULL else 3, together=2)


def test_every_typed_session_is_right(typed: Server) -> None:
    run_sessions(typed, typed_bodies, EPISODES, together=EPISODES)
