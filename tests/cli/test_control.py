"""The commands to a running server, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.drain.world import serving, stream, workers
from tests.harness import GUNICORN, ROOT, Server, wait_for
from tests.hosts.client import start


def command(running: Server, *args: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SESSIONWORKERS_RUNTIME_DIR": running.runtime_dir}
    return subprocess.run(
        [sys.executable, "-m", "sessionworkers", *args],
        cwd=ROOT, env=env, capture_output=True, text=True, input=given, timeout=50, check=False,
    )  # fmt: skip


def status(running: Server) -> dict[str, Any]:
    done = command(running, "status", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("host", ["run", "gunicorn"])
def test_status_sessions_and_explain(host: str) -> None:
    more = {"command": GUNICORN, "env": {"SESSIONWORKERS_HANDOVER": "false"}} if host == "gunicorn" else {}
    with serving(2, **more) as running:
        sid, pid = start(running)
        running.fetch("GET", f"/s/{sid}/n")
        found = status(running)
        assert found["runtime_dir"] == running.runtime_dir and found["pid"] == running.process.pid
        assert {each["pid"]: each["sessions"] for each in found["workers"]}[pid] == 1
        shown = command(running, "status").stdout
        assert f"server {running.process.pid}: serving" in shown and str(pid) in shown

        listed = json.loads(command(running, "sessions", "list", "--json").stdout)
        assert listed["total"] == 1 and listed["sessions"][0]["worker"] == pid
        assert sid not in command(running, "sessions", "list", "--ids").stdout, "an ID is nowhere kept"
        assert str(pid) in command(running, "sessions", "show", sid).stdout
        assert str(pid) in command(running, "sessions", "show", listed["sessions"][0]["name"]).stdout
        assert command(running, "sessions", "show", "0" * 32).returncode == 1
        assert command(running, "status", "--pid", str(pid)).returncode == 0
        other = command(running, "status", "--pid", str(os.getpid()))
        assert other.returncode == 4 and "is no part of the server" in other.stderr, "where a directory is named, too"

        told = command(running, "explain", "-", given=f"GET /s/{sid}/n HTTP/1.1\r\nHost: x\r\n\r\n").stdout
        assert f"its worker is {pid}" in told and "path:/s/{id}" in told
        assert told.startswith("carried to the worker that owns the session"), "whichever of them is asked first"
        told = command(running, "explain", "-", given="POST /s HTTP/1.1\r\nHost: x\r\n\r\n").stdout
        assert "placed (least-sessions)" in told and ("cannot move" in told) == (host == "gunicorn")

        assert command(running, "sessions", "end", sid).returncode == 0
        assert json.loads(command(running, "sessions", "list", "--json").stdout)["total"] == 0


def test_a_session_is_drained_when_nothing_of_it_is_open() -> None:
    with serving(2) as running:
        sid, _ = start(running)
        with stream(running, sid):
            late = command(running, "sessions", "drain", sid, "--timeout", "0.3")
            assert late.returncode == 6 and "1 open requests" in late.stderr
        assert command(running, "sessions", "drain", sid, "--timeout", "20").returncode == 0


def test_reload_scale_drain_and_stop() -> None:
    with serving(2, "--drain-idle", "0.2") as running:
        before = workers(running)
        assert command(running, "scale", "3").returncode == 0
        assert len(status(running)["workers"]) == 3
        done = command(running, "reload")
        assert done.returncode == 0 and "3 of 3 new workers serve" in done.stderr
        wait_for(lambda: not before & workers(running) and len(workers(running)) == 3, 15)
        victim = min(workers(running))
        assert command(running, "drain", str(victim)).returncode == 0
        assert victim not in workers(running) and len(workers(running)) == 3
        assert command(running, "drain", "1").returncode == 1
        assert command(running, "stop").returncode == 0
        assert running.process.wait(5) == 0


def test_a_reload_that_is_given_up_is_told(tmp_path: Any) -> None:
    from tests.harness import server

    release = tmp_path / "release"
    release.write_text("good")
    with server("benchmarks.rolling_app:app", workers=2, env={"ROLLING_RELEASE": str(release)}) as running:
        release.write_text("broken")
        done = command(running, "reload")
        assert done.returncode == 1 and "cannot start" in done.stderr


def test_the_whole_server_drains_before_it_ends() -> None:
    with serving(2) as running:
        sid, pid = start(running)
        running.fetch("GET", f"/s/{sid}/n")
        draining = subprocess.Popen(
            [sys.executable, "-m", "sessionworkers", "drain", "--runtime-dir", running.runtime_dir, "--for", "30"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with draining:
            wait_for(lambda: running.fetch("GET", "/-/ready").status == 503, 10)
            assert running.fetch("POST", "/s").status == 503
            assert running.fetch("GET", f"/s/{sid}/n").json == {"n": 2, "pid": pid}
            assert running.fetch("POST", f"/s/{sid}/end").status == 200
            assert draining.wait(20) == 0
        assert running.process.wait(5) == 0


def test_no_server_and_several_are_told_apart(tmp_path: Any) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}
    env.pop("SESSIONWORKERS_RUNTIME_DIR", None)
    line = [sys.executable, "-m", "sessionworkers", "status", "--runtime-dir", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4 and "no server runs" in done.stderr
    with serving(2) as first, serving(2) as second:
        for running in (first, second):
            env["XDG_RUNTIME_DIR"] = running.base
            line = [sys.executable, "-m", "sessionworkers", "status", "--json", "--pid", str(running.process.pid)]
            done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=30, check=False)
            assert json.loads(done.stdout)["pid"] == running.process.pid
        second.signal(signal.SIGTERM)
        second.process.wait(10)


@pytest.mark.parametrize("given", ["auto", "2"])
def test_workers_auto(given: str) -> None:
    from sessionworkers.manager.cores import usable_cores

    count = usable_cores() if given == "auto" else 2
    with serving(count, "--workers", given) as running:
        assert running.started == count
