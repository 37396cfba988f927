"""A FastAPI app with a dict in memory: no rule, no preset named, each request on a new connection."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.frameworks.cases import CONTROL, LAUNCHERS, SESSIONS, Case, launched, needs, run_sessions
from tests.harness import Server, wait_for

pytestmark = pytest.mark.frameworks
needs("fastapi")
websockets = pytest.importorskip("websockets")

APP = "tests.frameworks.generic.app:app"
RULE = ["--session-id", "path:/v1/sessions/{id} json:session_id"]


@pytest.fixture(scope="module", params=LAUNCHERS)
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    with launched(request.param, APP) as server:
        yield server


async def path_id(s: Server) -> None:
    sid = (await s.afetch("POST", "/v1/sessions/start")).json["session_id"]
    for want in (1, 2, 3):
        reply = await s.afetch("POST", f"/v1/sessions/{sid}/action")
        assert reply.status == 200 and reply.json["n"] == want, f"action {want}: {reply.status} {reply.text}"
    reply = await s.afetch("DELETE", f"/v1/sessions/{sid}/stop")
    assert reply.status == 200, f"stop: {reply.status} {reply.text}"


async def cookie(s: Server) -> None:
    value = (await s.afetch("POST", "/seed_session")).cookies["session"]
    for want in (1, 2, 3):
        reply = await s.afetch("POST", "/step", headers={"cookie": f"session={value}"})
        assert reply.status == 200 and reply.json["n"] == want, f"step {want}: {reply.status} {reply.text}"


async def ws_after_post(s: Server) -> None:
    sid = (await s.afetch("POST", "/voice/start")).json["session_id"]
    async with websockets.connect(f"ws://127.0.0.1:{s.port}/ws/voice/{sid}") as ws:
        for want in (1, 2):
            await ws.send("x")
            assert json.loads(await ws.recv())["n"] == want


async def job_events(s: Server) -> None:
    job = (await s.afetch("POST", "/build")).json["job_id"]
    reply = await s.afetch("GET", f"/build/{job}/events")
    assert reply.status == 200 and reply.text.count("data: step") == 3, f"events: {reply.status} {reply.text}"


async def upload_beside_ws(s: Server) -> None:
    async with websockets.connect(f"ws://127.0.0.1:{s.port}/stream") as ws:
        sid = json.loads(await ws.recv())["session_id"]
        for want in (1, 2):
            reply = await s.afetch("PUT", f"/upload/{sid}/a.bin", b"x" * 100_000)
            assert reply.status == 200 and reply.json["n"] == want, f"upload: {reply.status} {reply.text}"
            assert reply.json["size"] == 100_000


@pytest.mark.parametrize("case", [path_id, cookie, ws_after_post, job_events, upload_beside_ws])
def test_every_session_is_right(running: Server, case: Case) -> None:
    run_sessions(running, case, 2 * SESSIONS)


@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if name != CONTROL])
def test_owner_killed_is_gone_within_two_seconds(launcher: str) -> None:
    """SIGKILL to the owner: 410 and no hang, then the server has its full number of workers again."""
    # gunicorn has no options of ours on its command line; there the rule comes from the environment.
    options, env = (RULE, {}) if launcher == "run" else ([], {"SESSIONWORKERS_SESSION_ID": RULE[1]})
    with launched(launcher, APP, workers=2, options=options, env=env) as s:
        for killed in (1, 2):
            started = s.fetch("POST", "/v1/sessions/start").json
            os.kill(started["pid"], signal.SIGKILL)
            began = time.monotonic()
            reply = s.fetch("POST", f"/v1/sessions/{started['session_id']}/action")
            assert (reply.status, time.monotonic() - began < 2) == (410, True), reply
            wait_for(lambda n=killed: s.started >= s.workers + n, 20, "the killed worker was replaced")
