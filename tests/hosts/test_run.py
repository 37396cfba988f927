"""`sessionworkers run` with the real worker: start lines, logs without IDs, ends of all kinds, the affinity cookie."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT, SESSIONWORKERS, UVICORN, Server, free_port, server, wait_for
from tests.hosts.client import APP, ENV, RULE, all_pids, connect, head_of, start


def with_access_log() -> list[str]:
    return [part for part in SESSIONWORKERS if part != "--no-access-log"]


def test_start_lines_say_what_runs() -> None:
    with server(APP, workers=2, options=["--session-id", RULE]) as running:
        assert f"http://127.0.0.1:{running.port}" in running.log
        assert running.runtime_dir in running.log
        wait_for(lambda: "Session rules: session-id-1" in running.log, 5)
        assert running.log.count("Session rules:") == 1, "once, not once a worker"


def test_no_session_id_stands_whole_in_any_log() -> None:
    command = with_access_log()
    ids: list[str] = []
    with server(APP, workers=2, command=command, options=["--log-level", "trace"], env=ENV) as running:
        for _ in range(6):
            sid, _ = start(running)
            ids.append(sid)
            for path in (f"/s/{sid}/n", f"/s/{sid}/n?again={sid}", f"/s/{sid}/break"):
                running.fetch("GET", path)
        log = running.log
    assert log.count("/n HTTP/1.1") >= 6, "the access log is on"
    access = [line for line in log.splitlines() if re.search(r'"(GET|POST) ', line)]
    for sid in ids:
        assert not [line for line in access if sid in line]
    own = [line for line in log.splitlines() if "sessionworkers" in line.lower()]
    assert not [line for line in own if any(sid in line for sid in ids)]


def test_one_access_line_a_request_on_the_worker_that_accepted() -> None:
    with server(APP, workers=2, command=with_access_log(), env=ENV) as running:
        sid, _ = start(running)
        asked = 0

        def routes() -> set[str]:
            nonlocal asked
            for _ in range(20):
                running.fetch("GET", f"/s/{sid}/n")
            asked += 20
            wait_for(lambda: running.log.count("/n HTTP/1.1") >= asked, 5)
            lines = [line for line in running.log.splitlines() if "/n HTTP/1.1" in line]
            assert len(lines) == asked
            return {re.sub("hop .*", "hop", line.rpartition("(")[2]) for line in lines}

        # Who accepts is chance, and one worker may win for a while.
        wait_for(lambda: routes() == {"here)", "hop"}, 20, "and its route")


def test_ctrl_c_kill_and_term_leave_nothing_behind() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with server(APP, workers=2, env=ENV) as running:
            start(running)
            running.signal(number)
            running.process.wait(10)
            wait_for(lambda running=running: not running.leftovers(), 3)


def test_the_parent_killed_takes_its_workers_along_and_the_next_start_cleans_up() -> None:
    with server(APP, workers=2, env=ENV, check_leftovers=False) as running:
        start(running)
        left = running.runtime_dir
        running.signal(signal.SIGKILL)
        running.process.wait(5)
        wait_for(lambda: not running.processes(), 6, "the workers leave")
        assert os.path.isdir(left)
        line = [part.format(app=APP, port=running.port, workers=2) for part in SESSIONWORKERS]
        again = subprocess.Popen(
            line,
            cwd=ROOT,
            env={**os.environ, "XDG_RUNTIME_DIR": running.base},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: _answers(running), 20, "the port is free and serves again")
            assert not os.path.isdir(left)
        finally:
            again.terminate()
            again.wait(15)


def _answers(running: Server) -> bool:
    try:
        return running.fetch("GET", "/pid").status == 200
    except OSError:
        return False


def test_a_killed_worker_is_replaced_and_its_socket_goes() -> None:
    with server(APP, workers=2, env=ENV) as running:
        pids = all_pids(running)
        victim = min(pids)
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: running.started >= 3, 15)
        sockets = os.path.join(running.runtime_dir, "s")
        wait_for(lambda: len(os.listdir(sockets)) == 4, 5, "the dead worker's sockets are removed: each has two")


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--sesion-id", "x"], 2, "--session-id"),
        (["--session-id", "nowhere:x"], 2, "nowhere"),
        (["--retry-window", "soon"], 2, "soon"),
        (["--workers", "many"], 2, "many"),
    ],
)
def test_a_wrong_option_is_said_in_words(options: list[str], code: int, says: str) -> None:
    done = run(APP, "--port", str(free_port()), *options)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert says in done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("app", ["no_such_module:app", "tests.hosts.app:no_such_app"])
def test_an_app_that_cannot_be_loaded_ends_with_3_and_its_reason(app: str, workers: str) -> None:
    done = run(app, "--port", str(free_port()), "--workers", workers)
    assert done.returncode == 3
    assert app.split(":")[workers == "3"].split(":")[0] in done.stderr + done.stdout


def test_a_busy_port_is_said() -> None:
    with server(APP, workers=2, env=ENV) as running:
        for workers in ("1", "2"):
            done = run(APP, "--port", str(running.port), "--workers", workers)
            assert done.returncode != 0
            assert "in use" in done.stderr + done.stdout


def run(app: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sessionworkers", "run", app, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_affinity_cookie_keeps_a_browser_on_its_worker() -> None:
    with server(APP, workers=3, options=["--affinity-cookie", "sw", "--no-auto"]) as running:
        assert running.fetch("GET", "/pid").header("set-cookie") is None, "no cookie for what is no page"
        page = running.fetch("GET", "/page")
        cookie = page.header("set-cookie")
        assert cookie is not None and "HttpOnly" in cookie
        sent = {"cookie": cookie.split(";")[0]}
        pid = re.sub(rb"\D", b"", page.body)
        for _ in range(12):
            again = running.fetch("GET", "/page", headers=sent)
            assert re.sub(rb"\D", b"", again.body) == pid
            assert again.header("set-cookie") is None
            assert str(running.fetch("GET", "/pid", headers=sent).json["pid"]).encode() == pid


def test_one_worker_needs_no_runtime_directory() -> None:
    with server(APP, workers=1, env=ENV) as running:
        sid, pid = start(running)
        assert running.runtime_dir == ""
        assert running.fetch("GET", f"/s/{sid}/n").json == {"n": 1, "pid": pid}


def test_lifespan_shutdown_runs_in_every_worker(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with server(APP, workers=3, env={**ENV, "TEST_SHUTDOWN_NOTE": str(note)}) as running:
        pids = all_pids(running)
        running.stop()
        assert {int(line) for line in note.read_text().split()} == pids


def test_an_open_stream_does_not_hold_the_stop_up() -> None:
    with server(APP, workers=2, options=["--timeout-graceful-shutdown", "2"], env=ENV) as running:
        sid, _ = start(running)
        socks = [connect(running) for _ in range(4)]
        for sock in socks:
            sock.sendall(f"GET /s/{sid}/stream HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head_of(sock)
        assert running.stop(10) is not None
        for sock in socks:
            sock.close()


# app = SessionRouter(app)


def test_session_router_under_plain_uvicorn(tmp_path: Path) -> None:
    env = {**ENV, "SESSIONWORKERS_RUNTIME_DIR": str(tmp_path / "shared")}
    with server("tests.hosts.routed:app", workers=3, command=UVICORN, env=env) as running:
        assert len(all_pids(running)) == 3
        for _ in range(6):
            sid, pid = start(running)
            for number in range(1, 7):
                assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}
    assert not (tmp_path / "shared").exists(), "the last worker takes the directory along"


def test_session_router_without_a_directory_says_what_to_set() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "uvicorn", "tests.hosts.routed:app", "--port", str(free_port())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 3
    assert "SESSIONWORKERS_RUNTIME_DIR" in done.stderr
