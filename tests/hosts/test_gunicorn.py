"""What `sessionworkers.Worker` does beyond uvicorn-worker: heartbeat, parent check, QUIT, boot errors, USR2, --user."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import GUNICORN, ROOT, Server, fetch, free_port, server, wait_for
from tests.hosts.client import APP, ENV, all_pids, connect, head_of, start

gunicorn_only = {"command": GUNICORN, "env": ENV}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("options", [[], ["--preload"]], ids=["plain", "preload"])
def test_sessions_are_right_and_identities_are_made_after_fork(options: list[str]) -> None:
    with server(APP, workers=3, options=options, command=GUNICORN, env=ENV) as running:
        assert len(all_pids(running)) == 3
        members = {name.split(".")[0] for name in os.listdir(os.path.join(running.runtime_dir, "members"))}
        assert len(members) == 3
        for _ in range(5):
            sid, pid = start(running)
            for number in range(1, 7):
                assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}


def test_a_busy_worker_keeps_its_heartbeat_while_it_stops() -> None:
    options = ["--timeout", "2", "--graceful-timeout", "12"]
    with server(APP, workers=1, options=options, command=GUNICORN, env=ENV) as running:
        sid, _ = start(running)
        with connect(running) as sock:
            sock.sendall(f"GET /s/{sid}/slow?seconds=5 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            wait_for(lambda: running.fetch("GET", "/pid").status == 200, 5)
            running.signal(signal.SIGTERM)
            assert b" 200 " in head_of(sock), "served to its end, longer than the timeout"
        running.process.wait(15)
        assert "WORKER TIMEOUT" not in running.log


def test_a_blocked_loop_is_found_out() -> None:
    options = ["--timeout", "2"]
    with server(APP, workers=1, options=options, command=GUNICORN, env=ENV, check_leftovers=False) as running:
        sid, _ = start(running)
        with connect(running) as sock:
            sock.sendall(f"GET /s/{sid}/block?seconds=30 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            wait_for(lambda: "WORKER TIMEOUT" in running.log, 10)


def test_workers_leave_when_their_arbiter_is_killed() -> None:
    with server(APP, workers=2, command=GUNICORN, env=ENV, check_leftovers=False) as running:
        pids = all_pids(running)
        sid, _ = start(running)
        with connect(running) as stream:  # an open stream does not keep them
            stream.sendall(f"GET /s/{sid}/stream HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head_of(stream)
            running.signal(signal.SIGKILL)
            wait_for(lambda: not any(alive(pid) for pid in pids), 8, "the workers leave")


def test_quit_is_quick_in_spite_of_open_streams() -> None:
    options = ["--graceful-timeout", "30"]
    with server(APP, workers=2, options=options, command=GUNICORN, env=ENV) as running:
        sid, _ = start(running)
        socks = [connect(running) for _ in range(4)]
        for sock in socks:
            sock.sendall(f"GET /s/{sid}/stream HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head_of(sock)
        began = time.monotonic()
        running.signal(signal.SIGQUIT)
        running.process.wait(10)
        for sock in socks:
            sock.close()
        assert time.monotonic() - began < 8


UNSUPPORTED = "appears unsupported"


@contextlib.contextmanager
def ending(tmp_path: Path, shutdown: str = "", *, workers: int = 1) -> Iterator[tuple[Server, Path]]:
    """A server with a request open that ends only when it is cancelled, and its app's notes."""
    note = tmp_path / "note"
    env = {"TEST_NOTE": str(note), "TEST_SHUTDOWN": shutdown}
    options = ["--graceful-timeout", "30"]
    with server("tests.hosts.ending:app", workers=workers, options=options, command=GUNICORN, env=env) as running:
        with connect(running) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in head_of(sock)
            yield running, note
        assert UNSUPPORTED not in running.log and "SIGKILL" not in running.log


def lines(note: Path) -> list[str]:
    return note.read_text().splitlines() if note.exists() else []


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGQUIT], [signal.SIGTERM, signal.SIGINT]], ids=str)
def test_int_and_quit_cut_requests_and_run_the_apps_shutdown(tmp_path: Path, signals: list[int]) -> None:
    with ending(tmp_path) as (running, note):
        for number in signals:
            running.signal(number)
            if number == signal.SIGTERM:
                wait_for(lambda: "Waiting for connections to close" in running.log, 5)
        began = time.monotonic()
        wait_for(lambda: lines(note), 5)
        assert time.monotonic() - began < 2, "the request was cut at once"
        assert running.process.wait(10) == 0
        assert lines(note) == ["request ended", "shutdown begins", "shutdown ended"]
        assert "Application shutdown complete" in running.log
        wait_for(lambda: not running.leftovers(), 3)


def test_a_terminals_ctrl_c_reaches_the_workers_too(tmp_path: Path) -> None:
    with ending(tmp_path, workers=2) as (running, note):
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.process.wait(10) == 0
        assert lines(note).count("shutdown ended") == 2
        wait_for(lambda: not running.leftovers(), 3)


@pytest.mark.parametrize(
    ("shutdown", "says"),
    [
        ("hangs", "The app's shutdown has not ended within 1.5 s"),
        ("blocks", "The app does not end within 3 s"),
        ("clings", "The app does not end within 3 s"),
    ],
)
def test_quit_does_not_wait_for_a_shutdown_that_hangs(tmp_path: Path, shutdown: str, says: str) -> None:
    with ending(tmp_path, shutdown) as (running, note):
        began = time.monotonic()
        running.signal(signal.SIGQUIT)
        assert running.process.wait(15) == 0
        assert time.monotonic() - began < 8
        assert lines(note)[:2] == ["request ended", "shutdown begins"]
        assert says in running.log
        wait_for(lambda: not running.leftovers(), 3)


def test_the_graceful_timeout_bounds_an_endless_stream() -> None:
    options = ["--graceful-timeout", "4"]
    with server(APP, workers=2, options=options, command=GUNICORN, env=ENV) as running:
        sid, _ = start(running)
        socks = [connect(running) for _ in range(4)]
        for sock in socks:
            sock.sendall(f"GET /s/{sid}/stream HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head_of(sock)
        running.signal(signal.SIGTERM)
        running.process.wait(10)
        for sock in socks:
            sock.close()
        assert "SIGKILL" not in running.log, "the workers ended by themselves"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"TEST_FAIL_STARTUP": "1"}, "the app said no"),
        ({"SESSIONWORKERS_RETRY_WINDOW": "soon"}, "soon"),
        ({"SESSIONWORKERS_SESION_ID": "header:x"}, "SESSIONWORKERS_SESSION_ID"),
    ],
    ids=["startup", "value", "typo"],
)
def test_a_failure_to_boot_ends_the_server_with_its_reason(env: dict[str, str], says: str) -> None:
    # One worker: of two that fail in one moment the second interrupts gunicorn's own end, which then exits with 1.
    line = [part.format(app=APP, port=free_port(), workers=1) for part in GUNICORN]
    done = subprocess.run(
        line, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode in (2, 3)
    assert says in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("Booting worker") <= 1, "no respawn loop"


def test_what_cannot_be_called_is_no_app() -> None:
    for app, code in (("tests.cli.app:number", 4), ("tests.cli.app:make_number", 3)):  # 4: gunicorn's own refusal
        line = [part.format(app=app, port=free_port(), workers=1) for part in GUNICORN]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == code
        assert (done.stdout + done.stderr).count("Booting worker") == 1, "no respawn loop"
        assert "Traceback" not in done.stderr and "call" in done.stderr


def test_usr2_hands_the_claims_on_to_the_next_arbiter() -> None:
    # The script: re-executing `python -m gunicorn` puts gunicorn's own folder in front of the standard library.
    command = [os.path.join(os.path.dirname(sys.executable), "gunicorn"), *GUNICORN[3:]]
    options = ["--graceful-timeout", "5"]  # so long the old workers serve their sessions once the next ones are there
    with server(APP, workers=2, command=command, options=options, env=ENV, check_leftovers=False) as running:
        before = all_pids(running)
        sid, pid = start(running)
        running.signal(signal.SIGUSR2)
        wait_for(lambda: running.started >= 4, 20, "the next arbiter's workers are up")
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
        (arbiter,) = [int(child) for child in children if int(child) not in before and _is_arbiter(int(child), before)]
        seen = set()
        for number in range(1, 30):
            assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}
            seen.add(running.fetch("GET", "/pid").json["pid"])
        assert seen - before, "the new workers accept too, and hop to the old ones"
        running.signal(signal.SIGTERM)
        running.process.wait(15)
        try:
            assert running.fetch("GET", f"/s/{sid}/n").status == 410, "its worker left with the old arbiter: gone"
            new, pid = start(running)
            assert running.fetch("GET", f"/s/{new}/n").json == {"n": 1, "pid": pid}
        finally:
            os.kill(arbiter, signal.SIGTERM)
        wait_for(lambda: not running.leftovers(), 15, "nothing is left behind")


def _is_arbiter(pid: int, workers: set[int]) -> bool:
    return pid not in workers and bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand a directory to another user")
def test_user_gets_a_runtime_directory_of_its_own() -> None:
    readable = os.stat(sys.executable).st_mode & 0o005 == 0o005 and _reachable(os.path.realpath(sys.executable))
    if not readable:
        pytest.skip("another user cannot run this interpreter")
    with server(APP, workers=2, options=["--user", "65534"], command=GUNICORN, env=ENV) as running:
        sid, pid = start(running)
        for number in range(1, 8):
            assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}
        # Not below XDG_RUNTIME_DIR, which is the arbiter's user's own.
        place = running.log.split("Session claims in ")[1].split()[0]
        assert os.stat(place).st_uid == 65534
    assert not os.path.exists(place)


def _reachable(path: str) -> bool:
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & 0o001:
            return False
    return True


def test_tls_without_a_deprecated_protocol(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
        + ["-keyout", key, "-out", cert],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    env = {**ENV, "PYTHONWARNINGS": "error::DeprecationWarning:sessionworkers"}
    options = ["--keyfile", str(key), "--certfile", str(cert)]
    with server(APP, workers=2, options=options, command=GUNICORN, env=env) as running:
        assert _https(running, "POST", "/s").startswith(b"HTTP/1.1 201")
        assert "PROTOCOL_TLS" not in running.log


def _https(running: Server, method: str, path: str) -> bytes:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with connect(running) as sock, context.wrap_socket(sock) as tls:
        tls.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
        data = b""
        while piece := tls.recv(65536):
            data += piece
        return data


def test_reload_takes_new_code(tmp_path: Path) -> None:
    module = tmp_path / "reloaded.py"
    module.write_text(
        "async def app(scope, receive, send):\n"
        "    assert scope['type'] == 'http'\n"
        "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
        "    await send({'type': 'http.response.body', 'body': b'old'})\n"
    )
    options = ["--reload"]
    with server("reloaded:app", workers=1, options=options, command=GUNICORN, cwd=tmp_path) as running:
        assert fetch(running.port, "GET", "/").body == b"old"
        module.write_text(module.read_text().replace("old", "new"))
        later = itertools.count(int(time.time()) + 5)  # a change that comes before the first look at it is seen by none

        def new() -> bool:
            at = next(later)
            os.utime(module, (at, at))
            return _body(running) == b"new"

        wait_for(new, 30, "the new code answers", interval=2.0)


def _body(running: Server) -> bytes:
    try:
        return fetch(running.port, "GET", "/", timeout=2).body
    except OSError:
        return b""
