"""The manager's control socket: ``control`` in the runtime directory, mode 0600, HTTP with JSON.

Answers from the plan at once and waits for nothing: who wants to see a restart through asks for the status again. It
lives in the manager's own poll(), so a stuck client costs a descriptor for :data:`PATIENCE` seconds and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sessionworkers.observe.http import BadRequest, Exchange, Request, refusal, reply

NAME = "control"
MOST = 32
"""Connections at a time; the oldest is closed for another."""
PATIENCE = 10.0

Answer = tuple[int, dict[str, Any]]


@dataclass
class _Client:
    sock: socket.socket
    since: float
    exchange: Exchange = field(default_factory=Exchange)
    out: bytes = b""


class ControlSocket:
    """Listens at ``path``; each request goes to ``handler``. ``poll`` is the manager's.

    Servers may share a directory. The last to come has the path then, and `displaced` is True.
    """

    def __init__(self, path: str, handler: Callable[[Request], Answer], poll: select.poll) -> None:
        self.path = path
        self._handler = handler
        self._poll = poll
        self._clients: dict[int, _Client] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.displaced = _answers(path)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a server that was killed, or that shares the directory
            os.fchmod(self._listener.fileno(), 0o600)  # the path gets the socket's mode, less the umask
            self._listener.bind(path)
            os.chmod(path, 0o600)  # where the kernel ignores that; the directory lets nobody else in
            self._listener.listen(16)
            self._listener.setblocking(False)
            self._made = _identity(path)
        except OSError:
            self._listener.close()
            raise
        poll.register(self._listener, select.POLLIN)

    def handle(self, fd: int) -> bool:
        """Something happened on ``fd``; False if that is none of this socket's."""
        if fd == self._listener.fileno():
            self._accept()
            return True
        client = self._clients.get(fd)
        if client is None:
            return False
        try:
            self._write(client) if client.out else self._read(client)
        except OSError:
            self._close(client)
        return True

    def close(self) -> None:
        """Close everything and remove the path."""
        for client in list(self._clients.values()):
            self._close(client)
        self._poll.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(OSError):
            if _identity(self.path) == self._made:  # not another server's by now
                os.unlink(self.path)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        now = time.monotonic()
        for client in list(self._clients.values()):
            if now - client.since > PATIENCE:
                self._close(client)
        if len(self._clients) >= MOST:
            self._close(next(iter(self._clients.values())))
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (0, os.geteuid()):
            sock.close()
            return
        sock.setblocking(False)
        self._clients[sock.fileno()] = _Client(sock, now)
        self._poll.register(sock, select.POLLIN)

    def _read(self, client: _Client) -> None:
        data = client.sock.recv(65_536)
        if not data:
            self._close(client)
            return
        try:
            request = client.exchange.feed(data)
            if request is None:
                return
            client.out = reply(*self._handler(request))
        except BadRequest as error:
            client.out = refusal(error)
        self._poll.modify(client.sock, select.POLLOUT)
        self._write(client)

    def _write(self, client: _Client) -> None:
        try:
            client.out = client.out[client.sock.send(client.out) :]
        except BlockingIOError:
            return
        if not client.out:
            self._close(client)

    def _close(self, client: _Client) -> None:
        self._clients.pop(client.sock.fileno(), None)
        with contextlib.suppress(KeyError):
            self._poll.unregister(client.sock)
        client.sock.close()


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _answers(path: str) -> bool:
    """True if a server that lives listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(path)
        except OSError:
            return False
    return True
