"""Real servers for tests: start one on a free port, wait until all workers are up, talk to it, stop it, see it gone.

::

    with server("tests.validation.app:app", workers=4, options=["--session-id", "path:/s/{id}"]) as s:
        assert s.fetch("GET", "/s/abc").status == 404

Each server gets a session (setsid), a log file and a base for runtime directories (``XDG_RUNTIME_DIR``) of its own and
a marker in its environment, so that what it leaves behind is found whatever process group it hides in. ``fetch``
opens a new TCP connection per request: one kept-alive connection reaches one worker only and hides every fault of
routing.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Templates: {app} {port} {workers} are filled in; `options` go to the end.
UVICORN = (
    *(sys.executable, "-m", "uvicorn", "{app}"),
    *("--host", "127.0.0.1", "--port", "{port}", "--workers", "{workers}", "--no-access-log"),
)
SESSIONWORKERS = (
    *(sys.executable, "-m", "sessionworkers", "run", "{app}"),
    *("--host", "127.0.0.1", "--port", "{port}", "--workers", "{workers}", "--no-access-log"),
)
# --no-control-socket: gunicorn would put its control socket into XDG_RUNTIME_DIR.
GUNICORN = (
    *(sys.executable, "-m", "gunicorn", "{app}", "-k", "sessionworkers.Worker"),
    *("-b", "127.0.0.1:{port}", "-w", "{workers}", "--no-control-socket"),
)

STARTED = "Application startup complete"
MARK = "SWTEST_MARK"
_DROPPED = re.compile(r"^(SESSIONWORKERS_|UVICORN_|GUNICORN_|WEB_CONCURRENCY$|FORWARDED_ALLOW_IPS$|XDG_RUNTIME_DIR$)")


class Leftovers(AssertionError):
    """A server that was stopped left processes or runtime directories behind."""


@dataclass(frozen=True)
class Reply:
    """A reply as it came: lower-case header names, in order, repeated ones kept."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k == name.lower()), None)

    def all(self, name: str) -> list[str]:
        return [v for k, v in self.headers if k == name.lower()]

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def cookies(self) -> dict[str, str]:
        """name: value of every Set-Cookie, deletions included."""
        pairs = (line.split(";", 1)[0].partition("=") for line in self.all("set-cookie"))
        return {name.strip(): value.strip() for name, _, value in pairs}


def free_port() -> int:
    """A TCP port that was free a moment ago, as was the next one, which the session API takes.

    From below those that the system gives to clients: of these none is taken meanwhile, or still remembered.
    """
    clients = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(200):
        port = random.randrange(clients // 3, clients - 1)
        with socket.socket() as sock, socket.socket() as following, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            following.bind(("127.0.0.1", port + 1))
            return port
    raise RuntimeError("no two free ports in a row")


def wait_for(condition: Callable[[], Any], timeout: float = 10.0, what: str = "", interval: float = 0.02) -> Any:
    """The first true value of ``condition()``; AssertionError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or condition}")
        time.sleep(interval)
    return value


def _encode(body: Any, headers: dict[str, str]) -> bytes:
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    headers.setdefault("content-type", "application/json")
    return json.dumps(body).encode()


def fetch(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float = 20.0,
    uds: str | None = None,
) -> Reply:
    """One request on a connection of its own. ``body``: bytes as they are, anything else as JSON. ``uds``: over that
    Unix socket instead. OSError or http.client.HTTPException if no whole reply comes."""
    sent = {k.lower(): v for k, v in (headers or {}).items()}
    data = _encode(body, sent)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        if uds is not None:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(timeout)
            connection.sock.connect(uds)
        connection.request(method, path, body=data or None, headers={"connection": "close", **sent})
        reply = connection.getresponse()
        content = reply.read()
        return Reply(reply.status, [(k.lower(), v) for k, v in reply.getheaders()], content)
    finally:
        connection.close()


async def afetch(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float = 20.0,
) -> Reply:
    """As ``fetch``, for asyncio code that keeps many requests in flight."""
    sent = {"host": f"127.0.0.1:{port}", "connection": "close", **{k.lower(): v for k, v in (headers or {}).items()}}
    data = _encode(body, sent)
    if data or method in ("POST", "PUT", "PATCH"):
        sent["content-length"] = str(len(data))
    head = "".join(f"{k}: {v}\r\n" for k, v in sent.items())
    raw = await asyncio.wait_for(
        _exchange(port, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + data), timeout
    )
    top, _, content = raw.partition(b"\r\n\r\n")
    first, *lines = top.decode("latin-1").split("\r\n")
    if not first.startswith("HTTP/1.1 "):
        raise ConnectionError(f"no reply: {raw[:80]!r}")
    got = [(k.strip().lower(), v.strip()) for k, _, v in (line.partition(":") for line in lines)]
    named = dict(got)
    if named.get("transfer-encoding", "").lower() == "chunked":
        content = _dechunk(content)
    elif "content-length" in named and len(content) != int(named["content-length"]) and method != "HEAD":
        raise ConnectionError("the reply was cut off")
    return Reply(int(first.split()[1]), got, content)


async def _exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read(-1)
    finally:
        writer.close()


def _dechunk(data: bytes) -> bytes:
    out = bytearray()
    while True:
        size, sep, rest = data.partition(b"\r\n")
        if not sep:
            raise ConnectionError("the reply was cut off")
        length = int(size.split(b";")[0], 16)
        if not length:
            return bytes(out)
        out += rest[:length]
        data = rest[length + 2 :]


def processes(mark: str, session: int = -1) -> list[int]:
    """Pids that run (zombies do not) with ``MARK=mark`` in their environment, or in the session ``session``."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the name, which may hold anything in its brackets: state, ppid, pgrp, session.
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] in "ZX":
                continue
            if int(fields[3]) == session or wanted in stat.with_name("environ").read_bytes().split(b"\0"):
                found.append(int(stat.parent.name))
    return found


@dataclass
class Server:
    """A running server. ``base`` is where its runtime directory is made."""

    port: int
    workers: int
    process: subprocess.Popen[bytes]
    log_path: str
    base: str
    mark: str
    command: list[str] = field(repr=False, default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return pathlib.Path(self.log_path).read_text(errors="replace")

    @property
    def started(self) -> int:
        """How many workers have ever said that their application is up."""
        return self.log.count(STARTED)

    @property
    def runtime_dir(self) -> str:
        """The runtime directory, "" while there is none."""
        found = [e.path for e in os.scandir(self.base) if e.is_dir() and os.path.isdir(os.path.join(e.path, "claims"))]
        return found[0] if found else ""

    def claims(self) -> list[str]:
        """Names of the claims that exist now."""
        path = self.runtime_dir
        return (
            sorted(name for name in os.listdir(os.path.join(path, "claims")) if not name.startswith("."))
            if path
            else []
        )

    def fetch(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **kw: Any
    ) -> Reply:
        return fetch(self.port, method, path, body, headers, **kw)

    async def afetch(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **kw: Any
    ) -> Reply:
        return await afetch(self.port, method, path, body, headers, **kw)

    def processes(self) -> list[int]:
        """Pids of all that this server started and that still run."""
        return processes(self.mark, self.process.pid)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, timeout: float = 15.0) -> int | None:
        """SIGTERM, then SIGKILL to every process after ``timeout``. The exit code; None if it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill_all()
            return None

    def kill_all(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    def leftovers(self) -> list[str]:
        """What is still there of a stopped server, in words."""
        left = [f"process {pid}" for pid in self.processes()]
        return left + [f"file {entry.path}" for entry in os.scandir(self.base)]


def _boot(server: Server, timeout: float) -> bool:
    """True once every worker is up and the port answers; False if the port was taken meanwhile."""
    deadline = time.monotonic() + timeout
    while True:
        if server.process.poll() is not None:
            if "in use" in server.log:
                return False
            raise RuntimeError(f"the server exited with {server.process.returncode}:\n{server.log[-4000:]}")
        if server.started >= server.workers:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 0.5):
                return True
        if time.monotonic() > deadline:
            raise RuntimeError(f"not up within {timeout:g} s:\n{server.log[-4000:]}")
        time.sleep(0.02)


@contextlib.contextmanager
def server(
    app: str,
    *,
    workers: int = 2,
    command: Sequence[str] = SESSIONWORKERS,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = ROOT,
    boot_timeout: float = 40.0,
    stop_timeout: float = 15.0,
    check_leftovers: bool = True,
) -> Iterator[Server]:
    """A running server with all its workers up. Leftovers are raised at the end unless ``check_leftovers`` is False or
    the body failed already. On failure the end of its log is printed, where pytest shows it."""
    home = tempfile.mkdtemp(prefix="swtest-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    base = os.path.join(home, "run")
    os.mkdir(base, 0o700)
    mark = uuid.uuid4().hex
    inherited = {k: v for k, v in os.environ.items() if not _DROPPED.match(k)}
    path = os.pathsep.join(filter(None, [os.fspath(cwd), os.fspath(ROOT), inherited.get("PYTHONPATH", "")]))
    environ = {
        **inherited,
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": path,
        "XDG_RUNTIME_DIR": base,
        MARK: mark,
        **(env or {}),
    }
    running: Server | None = None
    try:
        for attempt in range(3):
            port = free_port()
            line = [
                part.replace("{app}", app).replace("{port}", str(port)).replace("{workers}", str(workers))
                for part in command
            ]
            line += options
            log_path = os.path.join(home, f"log{attempt}")
            with open(log_path, "wb") as log:
                process = subprocess.Popen(
                    line, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
            running = Server(port, workers, process, log_path, base, mark, line)
            if _boot(running, boot_timeout):
                break
        else:
            raise RuntimeError("no free port in three attempts")
        yield running
        code = running.stop(stop_timeout)
        if code is None:
            raise Leftovers(f"did not stop within {stop_timeout:g} s of SIGTERM: {running.command}")
        if check_leftovers:
            with contextlib.suppress(AssertionError):
                wait_for(lambda: not running.leftovers(), 2.0)
            if left := running.leftovers():
                raise Leftovers(f"left behind: {left}")
    except BaseException:
        if running is not None:
            print(f"--- log of {' '.join(running.command)}\n{running.log[-6000:]}", file=sys.stderr)
        raise
    finally:
        if running is not None:
            running.kill_all()
        shutil.rmtree(home, ignore_errors=True)
