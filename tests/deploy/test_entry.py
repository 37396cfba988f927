"""The container's entry point as PID 1 of a name space, and the unit's start by socket activation."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests.drain.world import RULE
from tests.harness import ROOT, fetch, free_port, wait_for

DEPLOY = ROOT / "deploy"
LAUNCHER = [sys.executable, "-m", "sessionworkers"]
AS_THREE = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.argv[2], sys.argv[2:])"


def words(name: str) -> list[str]:
    """ENTRYPOINT or CMD of the Dockerfile."""
    text = (DEPLOY / "Dockerfile").read_text()
    found = re.findall(rf"^{name} (\[.*\])$", text, re.M)
    return [str(word) for word in json.loads(found[-1])]


def name_space() -> list[str]:
    """A command that makes what follows PID 1 of a fresh process name space; the test is skipped without."""
    unshare = shutil.which("unshare")
    command = [unshare or "", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if unshare is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process name spaces here")
    return command


def answers(port: int) -> bool:
    try:
        return fetch(port, "GET", "/-/ready").status == 200
    except OSError:
        return False


def pid_1(process: subprocess.Popen[str]) -> int:
    """Outside of it, the pid of the first process of the name space."""
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(wait_for(lambda: path.read_text().split(), 10)[0])


def test_the_entry_point_as_pid_1(tmp_path: pathlib.Path) -> None:
    port = free_port()
    entry, cmd = words("ENTRYPOINT"), words("CMD")
    assert entry[0] == "sessionworkers" and entry[-1] == "8000"
    line = [*name_space(), *LAUNCHER, *entry[1:-1], str(port), "tests.hosts.app:app", *cmd[1:]]
    base = tmp_path / "run"
    base.mkdir(mode=0o700)
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(base),
        "SESSIONWORKERS_SESSION_ID": RULE,
        "SESSIONWORKERS_SHUTDOWN_TIMEOUT": "8",
    }
    with subprocess.Popen(line, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: answers(port), 20, "it serves")
            sid = fetch(port, "POST", "/s").json["sid"]
            first = pid_1(process)
            os.kill(first, signal.SIGHUP)  # passed through to nobody: the manager restarts its workers
            for number in range(1, 30):
                assert fetch(port, "GET", f"/s/{sid}/n").json["n"] == number
            os.kill(first, signal.SIGTERM)
            wait_for(lambda: fetch(port, "GET", "/-/ready").status == 503, 3)
            assert fetch(port, "GET", f"/s/{sid}/n").json["n"] == 30
            fetch(port, "POST", f"/s/{sid}/end")
            assert process.wait(15) == 0
            assert os.listdir(base) == []
        finally:
            process.kill()


def test_orphans_are_buried_by_pid_1(tmp_path: pathlib.Path) -> None:
    port = free_port()
    line = [*name_space(), *LAUNCHER, "run", "tests.hosts.app:app", "--port", str(port), "--workers", "1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SESSIONWORKERS_SESSION_ID": RULE}
    with subprocess.Popen(line, cwd=ROOT, env=env, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            wait_for(lambda: answers(port), 20, "it serves")
            first = pid_1(process)
            children = pathlib.Path(f"/proc/{first}/task/{first}/children")
            (worker,) = map(int, children.read_text().split())
            sid = fetch(port, "POST", "/s").json["sid"]
            fetch(port, "GET", f"/s/{sid}/fork")
            (child,) = map(int, pathlib.Path(f"/proc/{worker}/task/{worker}/children").read_text().split())
            os.kill(worker, signal.SIGKILL)  # its child is now PID 1's
            wait_for(lambda: str(child) in children.read_text().split() or not os.path.exists(f"/proc/{child}"), 5)
            if os.path.exists(f"/proc/{child}"):
                os.kill(child, signal.SIGKILL)
            wait_for(lambda: not os.path.exists(f"/proc/{child}"), 5, "no zombie stays")
            os.kill(first, signal.SIGTERM)
            assert process.wait(15) == 0
        finally:
            process.kill()


def test_the_units_start_by_an_inherited_socket() -> None:
    """What systemd does with the socket unit: the port is open before the service is, and outlives it."""
    text = (DEPLOY / "systemd" / "sessionworkers.service").read_text()
    exec_start = re.findall(r"^ExecStart=\S+ (.*)$", text, re.M)[0].split()
    assert exec_start[:4] == ["run", "app:app", "--fd", "3"]
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        port = listening.getsockname()[1]
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as early:
                early.sendall(b"GET /-/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")  # before it is there
                line = [*LAUNCHER, "run", "tests.hosts.app:app", *exec_start[2:]]
                with subprocess.Popen(
                    [sys.executable, "-c", AS_THREE, str(listening.fileno()), *line],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT), "LISTEN_FDS": "1"},
                    pass_fds=[listening.fileno()],
                    stderr=subprocess.DEVNULL,
                ) as process:
                    try:
                        assert early.recv(64).startswith(b"HTTP/1.1 200")
                        process.send_signal(signal.SIGTERM)
                        assert process.wait(15) == 0
                    finally:
                        process.kill()
