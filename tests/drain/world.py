"""What the process tests of draining share."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.harness import Server, server, wait_for
from tests.hosts.client import APP
from tests.raw.servers import Client

RULE = "path:/s/{id} json:sid start=POST:/s end=POST:/s/{id}/end"
FULL = bool(os.environ.get("SESSIONWORKERS_FULL"))


@contextlib.contextmanager
def serving(workers: int = 2, *options: str, **more: Any) -> Iterator[Server]:
    """A server of sessions that start and end, with short times."""
    env = {"SESSIONWORKERS_SESSION_ID": RULE, "SESSIONWORKERS_DRAIN_IDLE": "1", **more.pop("env", {})}
    with server(APP, workers=workers, options=options, env=env, **more) as running:
        yield running


def workers(running: Server) -> set[int]:
    """Pids of the manager's children."""
    path = pathlib.Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
    return {int(pid) for pid in path.read_text().split()}


def state(running: Server) -> list[dict[str, Any]]:
    """The workers as the manager sees them."""
    from sessionworkers.observe.place import ask

    return list(ask(os.path.join(running.runtime_dir, "control"), "GET", "/v1/status")["workers"])


def restart(running: Server) -> set[int]:
    """HUP; returns once all new workers serve: the old ones, which drain."""
    before = workers(running)
    running.signal(signal.SIGHUP)

    def done() -> bool:
        states = {each["pid"]: each["state"] for each in state(running)}
        new = [pid for pid, what in states.items() if pid not in before and what == "serving"]
        return len(new) == running.workers and all(states.get(pid, "draining") == "draining" for pid in before)

    wait_for(done, 30, "the new workers serve", interval=0.05)
    return before


def client_of(running: Server, stack: contextlib.ExitStack, wanted: Callable[[int], bool]) -> Client:
    """A connection that was accepted by a worker with such a pid; ``stack`` closes it."""
    while True:
        client = stack.enter_context(Client(running.port))
        if wanted(client.ask("/pid", None).json["pid"]):
            return client


def stream(running: Server, sid: str) -> socket.socket:
    """An endless event stream of the session, its head read."""
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=20)
    sock.sendall(f"GET /s/{sid}/stream HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(1)
    assert b" 200 " in data
    return sock


def ended_after(running: Server, number: int, limit: float) -> float:
    """Send the signal; seconds until the server has ended."""
    begun = time.monotonic()
    running.signal(number)
    running.process.wait(limit)
    return time.monotonic() - begun
