"""Draining under gunicorn's arbiter: as far as it lets a worker do so."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.drain.world import RULE, stream
from tests.harness import GUNICORN, Server, server, wait_for
from tests.hosts.client import APP, start

ENV = {"SESSIONWORKERS_SESSION_ID": RULE, "SESSIONWORKERS_DRAIN_IDLE": "1"}


def children(running: Server) -> set[int]:
    path = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
    return {int(pid) for pid in path.read_text().split()}


def arbiter(workers: int = 2, *options: str, **env: str):  # type: ignore[no-untyped-def]
    return server(APP, workers=workers, command=GUNICORN, options=options, env={**ENV, **env})


def test_a_reload_keeps_sessions_and_new_ones_begin_on_new_workers() -> None:
    with arbiter(2, "--graceful-timeout", "20", "--timeout", "3") as running:
        sid, pid = start(running)
        old = children(running)
        running.signal(signal.SIGHUP)
        number, began_on = 0, set()
        begun = time.monotonic()
        while time.monotonic() - begun < 6.0:  # longer than the timeout: the heartbeat goes on
            number += 1
            assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}
            began_on.add(start(running)[1])
            if running.started >= 4 and time.monotonic() - begun > 3.0:
                assert start(running)[1] not in old
        assert began_on - old, "new workers took sessions"
        assert running.fetch("POST", f"/s/{sid}/end").status == 200
        wait_for(lambda: not old & children(running), 20, "the old ones leave when their sessions are over")
        assert "WORKER TIMEOUT" not in running.log


def test_own_sessions_are_served_up_to_the_graceful_timeout() -> None:
    with arbiter(2, "--graceful-timeout", "5") as running:
        sid, pid = start(running)
        with stream(running, sid) as sse:
            running.signal(signal.SIGHUP)
            begun = time.monotonic()
            while sse.recv(65_536):
                pass
            assert 2.5 < time.monotonic() - begun < 6.0
        wait_for(lambda: pid not in children(running), 5)
        assert running.fetch("GET", f"/s/{sid}/n").status == 410
        assert "SIGKILL" not in running.log


def test_one_worker_less_drains() -> None:
    with arbiter(3, "--graceful-timeout", "20") as running:
        made = dict(start(running) for _ in range(9))
        running.signal(signal.SIGTTOU)
        wait_for(lambda: "drains" in running.log, 5)
        for number in range(1, 4):  # TERM comes again every second meanwhile
            for sid, pid in made.items():
                assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}
            time.sleep(0.5)
        for sid in made:
            running.fetch("POST", f"/s/{sid}/end")
        wait_for(lambda: len(children(running)) == 2, 20)


def test_the_end_of_the_server_waits_for_sessions_only_if_told_so() -> None:
    with arbiter(2) as running:
        start(running)
        begun = time.monotonic()
        running.signal(signal.SIGTERM)
        running.process.wait(10)
        assert time.monotonic() - begun < 5.0
    with arbiter(2, "--graceful-timeout", "20", SESSIONWORKERS_SHUTDOWN_TIMEOUT="15") as running:
        made = dict(start(running) for _ in range(4))
        running.signal(signal.SIGTERM)
        wait_for(lambda: running.fetch("GET", "/-/ready").status == 503, 3)
        wait_for(lambda: running.log.count("drains for") == 2, 3)
        time.sleep(0.3)  # three ticks: each has seen that nobody else serves or boots
        assert running.fetch("POST", "/s").status == 503
        for sid, pid in made.items():
            assert running.fetch("GET", f"/s/{sid}/n").json == {"n": 1, "pid": pid}
            running.fetch("POST", f"/s/{sid}/end")
        running.process.wait(10)


def test_max_requests_loses_nothing() -> None:
    with arbiter(3, "--max-requests", "25", "--graceful-timeout", "20") as running:
        before = children(running)
        made = dict(start(running) for _ in range(3))
        for number in range(1, 41):
            for sid, pid in made.items():
                assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}
        for sid in made:
            running.fetch("POST", f"/s/{sid}/end")
        wait_for(lambda: not before <= children(running), 20, "a worker was replaced")
        # A worker that is just forked loses the arbiter's TERM, whatever its class.
        wait_for(lambda: running.log.count("Booting worker") == running.started, 20)


def test_a_killed_worker_is_buried_by_its_successor() -> None:
    with arbiter(2) as running:
        sid, pid = start(running)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: running.started >= 3, 15)
        sockets = os.path.join(running.runtime_dir, "s")
        wait_for(lambda: len(os.listdir(sockets)) == 4, 5, "two sockets for each of two workers")
        assert running.fetch("GET", f"/s/{sid}/n").status == 410
