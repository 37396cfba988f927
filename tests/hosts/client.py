"""What the process tests share: sessions on a worker that is not the one that accepts, and raw connections."""

from __future__ import annotations

import socket
import time
from typing import Any

from tests.harness import GUNICORN, SESSIONWORKERS, Server

APP = "tests.hosts.app:app"
RULE = "path:/s/{id} json:sid end=POST:/s/{id}/end"
BOTH = {"run": SESSIONWORKERS, "gunicorn": GUNICORN}
ENV = {"SESSIONWORKERS_SESSION_ID": RULE}


def start(server: Server) -> tuple[str, int]:
    """A new session: its ID and its owner's pid."""
    reply = server.fetch("POST", "/s").json
    return reply["sid"], reply["pid"]


def owner_of(server: Server, sid: str) -> int:
    """The pid that answers for the session."""
    return int(server.fetch("GET", f"/s/{sid}/n").json["pid"])


def all_pids(server: Server) -> set[int]:
    """The workers that were seen to answer, after all had their chance."""
    pids: set[int] = set()
    deadline = time.monotonic() + 10
    while len(pids) < server.workers and time.monotonic() < deadline:
        pids.add(server.fetch("GET", "/pid").json["pid"])
    return pids


def memory(pid: int) -> int:
    """Resident memory of a process, bytes; its peak since it started is `VmHWM`."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise AssertionError(f"no such process: {pid}")


def connect(server: Server) -> socket.socket:
    """A connection of the test's own, with a time limit."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def head_of(sock: socket.socket) -> bytes:
    """Read up to the end of a reply's head; what came of the body with it is left out."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(1)
        if not piece:
            return data
        data += piece
    return data


def to_end(sock: socket.socket) -> bytes:
    """Read to FIN. A reset raises ConnectionResetError."""
    data = b""
    while True:
        piece = sock.recv(65536)
        if not piece:
            return data
        data += piece


def kwargs(host: str, **more: Any) -> dict[str, Any]:
    """Arguments of `tests.harness.server` for a host, with the tests' rule."""
    return {"command": BOTH[host], "env": {**ENV, **more.pop("env", {})}, **more}
