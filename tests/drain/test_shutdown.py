"""The end of the whole server: new sessions are turned away, those that live are served on; probes tell."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.drain.world import serving, stream
from tests.harness import wait_for
from tests.hosts.client import connect, head_of, start, to_end


@pytest.mark.parametrize("workers", [1, 3])
def test_new_sessions_are_refused_and_own_ones_go_on(workers: int) -> None:
    with serving(workers, "--shutdown-timeout", "20") as running:
        made = dict(start(running) for _ in range(6))
        assert running.fetch("GET", "/-/ready").status == 200
        running.signal(signal.SIGTERM)
        wait_for(lambda: running.fetch("GET", "/-/ready").status == 503, 2, "not ready at once")
        assert running.fetch("GET", "/-/live").status == 200
        wait_for(lambda: running.log.count("drains for") == workers, 5, "every worker has heard of it")
        for number in range(1, 4):
            refused = running.fetch("POST", "/s")
            assert refused.status == 503
            assert refused.header("retry-after") and refused.header("connection") == "close"
            for sid, pid in made.items():
                assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}
        for sid in made:
            assert running.fetch("POST", f"/s/{sid}/end").status == 200
        running.process.wait(10)


def test_the_shutdown_timeout_bounds_it() -> None:
    with serving(2, "--shutdown-timeout", "2") as running:
        sid, _ = start(running)
        with stream(running, sid) as sse:
            begun = time.monotonic()
            running.signal(signal.SIGTERM)
            running.process.wait(10)
            assert 1.9 < time.monotonic() - begun < 4.0
            to_end(sse)


def test_without_one_only_open_requests_are_waited_for() -> None:
    with serving(2) as running:
        sid, _ = start(running)
        with connect(running) as sock:
            sock.sendall(f"GET /s/{sid}/slow?seconds=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            wait_for(lambda: running.fetch("GET", "/pid").status == 200, 5)
            begun = time.monotonic()
            running.signal(signal.SIGTERM)
            assert b" 200 " in head_of(sock)
            running.process.wait(10)
            assert time.monotonic() - begun < 5


def test_probes_can_be_switched_off() -> None:
    with serving(1, "--no-probes") as running:
        assert running.fetch("GET", "/-/ready").status == 404, "it is the app's"
    with serving(1, "--root-path", "/base") as running:
        assert running.fetch("GET", "/-/ready").status == 200


def test_a_restart_is_ready_throughout() -> None:
    with serving(2) as running:
        running.signal(signal.SIGHUP)
        begun = time.monotonic()
        while running.started < 4 or time.monotonic() - begun < 3.0:
            assert running.fetch("GET", "/-/ready").status == 200


@pytest.mark.parametrize("policy", ["least-sessions", "least-load", "accept"])
def test_placement_spreads_a_burst(policy: str) -> None:
    with serving(4, "--placement", policy) as running:
        counts: dict[int, int] = {}
        for _ in range(80):
            _, pid = start(running)
            counts[pid] = counts.get(pid, 0) + 1
        if policy == "least-sessions":
            assert len(counts) == 4 and max(counts.values()) - min(counts.values()) <= 2, counts
        sid, pid = start(running)
        for number in range(1, 9):
            assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}


def test_a_kept_connection_keeps_its_sessions_while_its_worker_is_near_the_emptiest() -> None:
    with serving(4) as running, connect(running) as sock:
        pids = []
        for _ in range(12):
            sock.sendall(b"POST /s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            head = head_of(sock).decode().lower()
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            body = b""
            while len(body) < length:
                body += sock.recv(length - len(body))
            pids.append(body.split(b'"pid": ')[1].rstrip(b"}"))
        assert pids[0] == pids[1], "as near as one the hop is not worth it"
        assert max(map(pids.count, pids)) - min(map(pids.count, set(pids))) <= 2 and len(set(pids)) == 4


def test_pid_1_of_a_container_reaps_and_ends() -> None:
    import shutil
    import subprocess
    import sys

    from tests.drain.world import RULE
    from tests.harness import ROOT, fetch, free_port

    unshare = shutil.which("unshare")
    probe = [unshare or "", "--pid", "--fork", "--mount-proc", "true"]
    if unshare is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no process name spaces here")
    for workers in ("1", "2"):
        port = free_port()
        command = [unshare, "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "sessionworkers"]
        command += ["run", "tests.hosts.app:app", "--port", str(port), "--workers", workers, "--session-id", RULE]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_for(lambda port=port: _answers(port), 20, "it serves")
                sid = fetch(port, "POST", "/s").json["sid"]
                child = fetch(port, "GET", f"/s/{sid}/fork").json["child"]
                assert child > 1
                path = f"/proc/{process.pid}/task/{process.pid}/children"
                with open(path, encoding="ascii") as file:
                    first = int(file.read().split()[0])
                os.kill(first, signal.SIGHUP)
                wait_for(lambda port=port: fetch(port, "POST", "/s").status == 201, 10)
                os.kill(first, signal.SIGTERM)
                assert process.wait(15) == 0
            finally:
                process.kill()
                print(process.stderr.read() if process.stderr is not None else "")


def _answers(port: int) -> bool:
    from tests.harness import fetch

    try:
        return fetch(port, "GET", "/pid").status == 200
    except OSError:
        return False
