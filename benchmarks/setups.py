"""The set-ups that are compared, each a group of processes that is stopped while another one is measured."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

IDS = 64
"""Sessions per worker."""


@dataclass
class Setup:
    """Running processes. ``port`` is the public one; ``doors[k]`` reaches worker k directly; ``ids[k]`` are worker
    k's sessions."""

    name: str
    folder: Path
    workers: int
    port: int = 0
    doors: list[int] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ids: list[list[str]] = field(default_factory=list)

    def pids(self) -> list[int]:
        """All processes, children of theirs (nginx) included."""
        found: list[int] = []
        for process in self.processes:
            found.append(process.pid)
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
                found += [int(each) for each in text.split()]
        return found

    def cpu(self) -> float:
        """Seconds of run time so far, summed over all processes and threads."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        return total / 1e9

    def hold(self) -> None:
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        self.go()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def file(self, owners: list[int]) -> str:
        """A file with the sessions of these workers, in turn."""
        path = self.folder / f"{self.name}-{'-'.join(map(str, owners))}.ids"
        if not path.exists():
            path.write_text("\n".join(id for row in zip(*(self.ids[k] for k in owners), strict=True) for id in row))
        return str(path)


def listen(path: str | None = None) -> socket.socket:
    """A listening TCP socket on a free port, or a Unix one; inheritable."""
    if path is not None:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(path)
        os.chmod(path, 0o666)
    else:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
    sock.listen(2048)
    sock.set_inheritable(True)
    return sock


def ask(port: int, id: str, path: str = "/") -> str:
    """One request; the reply's body. Raises unless it is a 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Cookie": f"sid={id}", "Connection": "close"})
        reply = connection.getresponse()
        text = reply.read().decode()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {text[:200]}")
        return text
    finally:
        connection.close()


def _wait(setup: Setup, port: int) -> None:
    """Until it answers. What does not is stopped."""
    deadline = time.monotonic() + 20
    while True:
        try:
            ask(port, "warm-up-0123456789abcdef")
            return
        except (OSError, http.client.HTTPException):
            if time.monotonic() > deadline:
                setup.stop()
                raise
            time.sleep(0.05)
        except RuntimeError:
            setup.stop()
            raise


def _id(owner: int) -> str:
    return f"w{owner}-{secrets.token_hex(12)}"


def _spawn(setup: Setup, kind: str, worker: str, fds: list[int], **more: object) -> None:
    task = {
        "kind": kind, "worker": worker, "app": "app", "fds": fds, "runtime": None, "loop": "auto",
        "mechanism": "handover", "rules": "cookie", **more,
    }  # fmt: skip
    setup.processes.append(
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serve", json.dumps(task)],
            pass_fds=fds,
            cwd=Path(__file__).parent.parent,
            process_group=0,
        )
    )


def plain(name: str, folder: Path, workers: int, app: str, loop: str) -> Setup:
    """uvicorn by itself; several workers share the port, no session has an owner then."""
    setup = Setup(name, folder, workers)
    shared = listen()
    setup.port = shared.getsockname()[1]
    for number in range(workers):
        _spawn(setup, "plain", str(number) if workers == 1 else "-", [shared.fileno()], app=app, loop=loop)
    shared.close()
    _wait(setup, setup.port)
    setup.doors = [setup.port] * workers
    setup.ids = [[_id(owner) for _ in range(IDS)] for owner in range(workers)]
    return setup


def ours(name: str, folder: Path, workers: int, app: str, loop: str, mechanism: str, rules: str = "cookie") -> Setup:
    """sessionworkers; ``mechanism`` as in `benchmarks.serve`. The sessions are made at their owners' own doors."""
    from sessionworkers.members.runtime import RuntimeDir

    setup = Setup(name, folder, workers)
    shared = listen()
    setup.port = shared.getsockname()[1]
    runtime = RuntimeDir.create(str(folder))
    for number in range(workers):
        door = listen()
        setup.doors.append(door.getsockname()[1])
        fds = [shared.fileno(), door.fileno()]
        _spawn(
            setup, "ours", str(number), fds, app=app, loop=loop, mechanism=mechanism, runtime=runtime.path, rules=rules
        )
        door.close()
    shared.close()
    for door_port in setup.doors:
        _wait(setup, door_port)
    setup.ids = [[_id(owner) for _ in range(IDS)] for owner in range(workers)]
    for owner in range(workers):
        for id in setup.ids[owner]:
            ask(setup.doors[owner], id)
    for door_port in setup.doors:  # the links are up before anything is measured
        for owner in range(workers):
            ask(door_port, setup.ids[owner][0])
    return setup


NGINX = """
daemon off; worker_processes {processes}; error_log {folder}/nginx.log; pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_timeout 75; keepalive_requests 1000000; client_body_buffer_size 256k; proxy_buffers 64 16k;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder};
  scgi_temp_path {folder};
  map $http_upgrade $up {{ default upgrade; '' ''; }}
  upstream app {{ hash $cookie_sid consistent; {servers} keepalive 64; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{port} backlog=2048; location / {{
    proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection $up;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Host $host; }} }}
}}
"""
HAPROXY = """
global
  nbthread {processes}
defaults
  mode http
  timeout connect 5s
  timeout client 75s
  timeout server 75s
  http-reuse always
frontend in
  bind 127.0.0.1:{port}
  default_backend app
backend app
  balance hash req.cook(sid)
  hash-type consistent
{servers}
"""
CADDY = """
{{ admin off
  auto_https off }}
http://127.0.0.1:{port} {{ reverse_proxy {servers} {{ lb_policy cookie_hash sid }} }}
"""


def proxy(kind: str, folder: Path, workers: int, app: str, loop: str) -> Setup | None:
    """nginx or HAProxy with a cookie hash over single-worker uvicorns on Unix sockets; None where not installed."""
    binary = shutil.which(kind) or shutil.which(kind, path="/usr/sbin")
    if binary is None or kind == "caddy":
        return None  # Caddy's cookie policy sets a cookie of its own and hashes no foreign one
    setup = Setup(f"{kind}", folder, workers)
    paths = [str(folder / f"{kind}{number}.sock") for number in range(workers)]
    for number, path in enumerate(paths):
        sock = listen(path)
        _spawn(setup, "plain", str(number), [sock.fileno()], app=app, loop=loop)
        sock.close()
    free = listen()
    setup.port = free.getsockname()[1]
    free.close()
    setup.doors = [setup.port] * workers
    processes = 1 if workers <= 2 else 2
    if kind == "nginx":
        servers = " ".join(f"server unix:{path};" for path in paths)
        config, arguments = NGINX, ["-p", str(folder), "-e", str(folder / "nginx.log"), "-c"]
    else:
        servers = "\n".join(f"  server w{number} unix@{path}" for number, path in enumerate(paths))
        config, arguments = HAPROXY, ["-db", "-f"]
    file = folder / f"{kind}.conf"
    file.write_text(config.format(folder=folder, port=setup.port, servers=servers, processes=processes))
    setup.processes.append(subprocess.Popen([binary, *arguments, str(file)], process_group=0))
    _wait(setup, setup.port)
    setup.ids = [[] for _ in range(workers)]
    while any(len(ids) < IDS for ids in setup.ids):
        for owner, ids in enumerate(setup.ids):
            id = _id(owner)
            if len(ids) < IDS and json.loads(ask(setup.port, id))["worker"] == owner:
                ids.append(id)
    return setup


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A short directory on tmpfs for sockets, configurations and claims."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="swb-", dir=base) as name:
        os.chmod(name, 0o700)
        yield Path(name)
