"""The full sizes: ``SESSIONWORKERS_FULL=1`` (a minute or two)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import pytest

from tests.harness import ROOT, wait_for
from tests.sessions.kit import AUTH, HookServer, sessions

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.environ.get("SESSIONWORKERS_FULL", "") in ("", "0"), reason="SESSIONWORKERS_FULL is not set"),
]


def test_a_thousand_sessions_spread_and_a_thousand_ends_run_a_thousand_hooks_once() -> None:
    with HookServer() as hooks, sessions("--max-sessions", "260", "--hook-allow", "127.0.0.1") as api:

        async def create() -> list[Any]:
            payload = {"lifetime": 300, "on_close_route": hooks.url + "/h"}
            body = {"auth_data": AUTH, "payload": payload}
            return await asyncio.gather(
                *(api.server.afetch("POST", "/session/create", body, timeout=60) for _ in range(1000))
            )

        replies = asyncio.run(create())
        assert Counter(reply.status for reply in replies) == {201: 1000}
        ids = [reply.json["session_id"] for reply in replies]
        counts = [each["sessions"] for each in api.load()["workers"]]
        print("sessions per worker:", counts)
        assert sum(counts) == 1000
        assert max(counts) - min(counts) <= 2
        assert max(counts) <= 260

        async def end() -> list[Any]:
            return await asyncio.gather(
                *(
                    api.server.afetch("POST", "/session/end", {"session_id": each, "session_auth": AUTH}, timeout=60)
                    for each in ids
                )
            )

        assert Counter(reply.status for reply in asyncio.run(end())) == {200: 1000}
        wait_for(lambda: len(hooks.got) >= 1000, 60)
        time.sleep(1)
        assert sorted(body["session_id"] for _, body, _ in hooks.got) == sorted(ids)
        assert api.load()["total"]["current_load"] == 0


CLIENT = """
import json, sys, urllib.request
port, hook, auth = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
payload = {"lifetime": 4, "on_close_route": hook}
def post(path, body):
    url, headers = f"http://127.0.0.1:{port}{path}", {"Content-Type": "application/json"}
    return json.loads(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read())
ids = [post("/session/create", {"auth_data": auth, "payload": payload})["session_id"] for _ in range(100)]
for each in ids:
    post("/echo", {"auth_data": auth, "session_id": each, "payload": {}})
print(json.dumps(ids), flush=True)
sys.stdin.read()
"""


def test_a_client_killed_with_100_open_sessions() -> None:
    with HookServer() as hooks, sessions("--max-sessions", "30", "--hook-allow", "127.0.0.1") as api:
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(api.port), hooks.url + "/h", json.dumps(AUTH)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            assert client.stdout is not None
            ids = json.loads(client.stdout.readline())
            killed = time.time()
            client.send_signal(signal.SIGKILL)
            wait_for(lambda: len(hooks.got) >= 100, 12)
            print(
                "last hook begun", round(max(at for _, _, at in hooks.got) - killed, 2), "s after the kill, lifetime 4"
            )
            assert max(at for _, _, at in hooks.got) - killed < 4 + 5
            assert sorted(body["session_id"] for _, body, _ in hooks.got) == sorted(ids)
            assert api.load()["total"]["sessions"] == 0
        finally:
            client.kill()
            client.communicate()


def test_three_sessions_with_slow_hooks_that_expire_together() -> None:
    with HookServer(delay=3) as hooks, sessions("--hook-allow", "127.0.0.1") as api:
        for _ in range(3):
            api.open(lifetime=2, on_close_route=hooks.url + "/h")
        due = time.time() + 2
        wait_for(lambda: api.load()["total"]["sessions"] == 0, 4)
        gone = time.time() - due
        wait_for(lambda: len(hooks.got) == 3, 4)
        done = max(at for _, _, at in hooks.got) + 3 - due
        print(f"gone {gone:.2f} s and hooks done {done:.2f} s after the deadline")
        assert gone < 1
        assert done < 4
