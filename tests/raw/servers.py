"""Two workers as processes, each with a door of its own, so that every request can be made to hop; and a client that
sees each byte."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sessionworkers.members.runtime import RuntimeDir

LIMIT = 10.0
"""Seconds that anything may take."""


@dataclass
class Pair:
    """``doors[k]``: worker k's own port; ``sids[k]``: a session of worker k."""

    mechanism: str
    doors: list[int]
    processes: list[subprocess.Popen[bytes]]
    logs: list[Path]
    sids: list[str] = field(default_factory=list)
    tls: bool = False

    def client(self, door: int) -> Client:
        return Client(self.doors[door], self.tls)

    def new(self, owner: int) -> str:
        """A new session of that worker."""
        sid = uuid.uuid4().hex
        with self.client(owner) as client:
            assert client.ask("/", sid).json["worker"] == str(owner)
        return sid

    def log(self, worker: int) -> str:
        return self.logs[worker].read_text()

    def seen(self, owner: int) -> dict[str, Any]:
        """What the app of that worker noted."""
        with self.client(owner) as client:
            found: dict[str, Any] = client.ask("/seen", self.sids[owner]).json
            return found


@contextlib.contextmanager
def pair(mechanism: str, loop: str, **options: Any) -> Iterator[Pair]:
    """Start both; ``options`` are uvicorn's. A ``mechanism`` with "+api" has the session API on as well."""
    mechanism, _, api = mechanism.partition("+")
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="swraw-", dir=base) as folder:
        runtime = RuntimeDir.create(folder)
        found = Pair(mechanism, [], [], [], tls="ssl_certfile" in options)
        try:
            for number in range(2):
                door = socket.socket()
                door.bind(("127.0.0.1", 0))
                door.listen(64)
                found.doors.append(door.getsockname()[1])
                log = Path(folder) / f"log{number}"
                found.logs.append(log)
                task = {
                    "worker": str(number), "mechanism": mechanism, "loop": loop, "options": options,
                    "fds": [door.fileno()], "runtime": runtime.path, "api": bool(api),
                }  # fmt: skip
                with log.open("wb") as out:
                    process = subprocess.Popen(
                        [sys.executable, "-m", "tests.raw.worker", json.dumps(task)],
                        pass_fds=[door.fileno()],
                        stdout=out,
                        stderr=out,
                    )
                found.processes.append(process)
                door.close()
            found.sids = [found.new(owner) for owner in range(2)]
            for _ in range(2 if mechanism == "frames" else 1):  # the links are up
                for door_number in range(2):
                    with found.client(door_number) as client:
                        assert client.ask("/", found.sids[1 - door_number]).json["worker"] == str(1 - door_number)
            if mechanism == "handover" and not found.tls:
                for door_number in range(2):
                    wait(lambda n=door_number: moves(found, n), "the channel is there")  # type: ignore[misc]
            yield found
        finally:
            for process in found.processes:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
            runtime.remove()


def moves(found: Pair, door: int) -> bool:
    """True if a connection of that door moves to the other worker."""
    with Client(found.doors[door]) as client:
        for _ in range(4):
            client.ask("/", found.sids[1 - door])
        return any(client.port == port for port in held_ports(found.processes[1 - door].pid))


def held_ports(pid: int) -> set[int]:
    """Remote ports of the TCP connections that the process holds; none if it has ended."""
    inodes = set()
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return set()
    for fd in descriptors:
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        parts = line.split()
        if parts[9] in inodes:
            found.add(int(parts[2].split(":")[1], 16))
    return found


def wait(condition: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit} s: {what}"
        time.sleep(0.02)


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool
    """The body ended as its framing says."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


def head(path: str, sid: str | None, method: str = "GET", *lines: str, version: str = "1.1") -> bytes:
    named = [f"x-session: {sid}"] if sid else []
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: t", *named, *lines, "", ""]).encode("latin-1")


class Client:
    """A connection, byte by byte."""

    def __init__(self, port: int, tls: bool = False) -> None:
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                self.sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self.port = self.sock.getsockname()[1]
        self.held = b""
        if tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self.sock = context.wrap_socket(self.sock)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def more(self) -> bool:
        data = self.sock.recv(1 << 16)
        self.held += data
        return bool(data)

    def ask(self, path: str, sid: str | None, method: str = "GET", *lines: str, body: bytes = b"") -> Reply:
        if body:
            lines = (*lines, f"content-length: {len(body)}")
        self.send(head(path, sid, method, *lines) + body)
        return self.read(method)

    def read(self, method: str = "GET") -> Reply:
        """The next reply; one that breaks off is not ``whole``."""
        while b"\r\n\r\n" not in self.held:
            if not self.more():
                raise ConnectionError(f"the connection ended before a reply: {self.held!r}")
        top, _, self.held = self.held.partition(b"\r\n\r\n")
        first, *rest = top.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1."), first
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in rest)]
        status = int(first.split()[1])
        if status == 100:
            return Reply(100, headers, b"", True)
        found = dict(headers)
        if method == "HEAD" or status in (101, 204, 304):
            return Reply(status, headers, b"", True)
        if "content-length" in found:
            size = int(found["content-length"])
            while len(self.held) < size and self.more():
                pass
            body, self.held = self.held[:size], self.held[size:]
            return Reply(status, headers, body, len(body) == size)
        if found.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                while b"\r\n" not in self.held:
                    if not self.more():
                        return Reply(status, headers, body, False)
                line, _, self.held = self.held.partition(b"\r\n")
                size = int(line, 16)
                while len(self.held) < size + 2:
                    if not self.more():
                        return Reply(status, headers, body, False)
                body += self.held[:size]
                self.held = self.held[size + 2 :]
                if size == 0:
                    return Reply(status, headers, body, True)
        while self.more():
            pass
        body, self.held = self.held, b""
        return Reply(status, headers, body, True)

    def ended(self) -> bool:
        """The server has closed, with nothing more on the way."""
        return not self.held and not self.more()
