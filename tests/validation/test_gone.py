"""Row 6: a worker is killed; what names its sessions gets 410, what names others' is served."""

from __future__ import annotations

import os
import signal
import uuid

from tests.harness import wait_for
from tests.validation.app import TOKEN
from tests.validation.gym import agent_body, at, cookie_of, gym, new_id, ok, pids, typed


def test_row6_sessions_of_a_killed_worker_are_gone() -> None:
    with gym(3) as s:
        victim, other, third = pids(s)
        sid, agent_sid = new_id(), f"agent-{uuid.uuid4().hex}"
        seeded = at(s, victim, "POST", "/seed_session", typed(sid))
        token = ok(seeded)["token"]
        agent = at(s, victim, "POST", "/v1/agent_sessions", agent_body(agent_sid))
        elsewhere = cookie_of(at(s, other, "POST", "/seed_session", typed(new_id())))
        ok(at(s, other, "POST", "/call", {}, cookie_of(seeded)))  # remembered there
        os.kill(victim, signal.SIGKILL)
        requests = [
            ("/call", {}, cookie_of(seeded)),
            ("/verify", {}, cookie_of(seeded)),
            ("/mcp", {}, {TOKEN: token}),
            ("/seed_session", typed(sid), {}),
            ("/close_session", typed(sid), {}),
            ("/close_session", typed(sid), cookie_of(seeded)),
            ("/v1/responses", {}, cookie_of(agent, "agent")),
            ("/v1/agent_sessions/close", agent_body(agent_sid), {}),
        ]
        claims = s.claims()
        for accepting in (other, third):
            got = {path: at(s, accepting, "POST", path, body, headers).status for path, body, headers in requests}
            assert got == dict.fromkeys(got, 410)
            assert ok(at(s, accepting, "POST", "/call", {}, elsewhere))["pid"] == other
        assert s.claims() == claims, "they stay, so that the sessions stay gone"
        wait_for(lambda: s.started >= 4, 20, "the worker was replaced")
        fresh = next(iter(set(pids(s)) - {other, third}))
        assert at(s, fresh, "POST", "/call", {}, cookie_of(seeded)).status == 410
        assert ok(at(s, fresh, "POST", "/call", {}, elsewhere))["pid"] == other
    # The runtime directory goes with the server: the harness looks.
