"""Finding a running server of this user, and asking its control sockets. Plain blocking I/O, for commands.

A server is a runtime directory with a control socket that answers: the manager's, or under another host (gunicorn) its
workers' alone. It is named by that directory or by the pid of its manager, arbiter or of a worker; where only one runs
nothing need be said.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sessionworkers.errors import SessionworkersError
from sessionworkers.members.contents import SOCKETS
from sessionworkers.members.runtime import default_bases

MANAGER = "control"
TIMEOUT = 5.0


class NoServer(SessionworkersError):
    """No server runs where it was looked for, or several do."""

    exit_code = 4


class NoAnswer(SessionworkersError):
    """A control socket does not answer."""

    exit_code = 5


class Refusal(SessionworkersError):
    """A control socket refused what it was asked."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Place:
    """A running server. ``managed``: it has a manager of ours."""

    path: str
    managed: bool

    def manager(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the manager. Raises `NoAnswer`, `Refusal`."""
        if not self.managed:
            raise NoServer("this server has no manager of sessionworkers; use its own (gunicorn: signals, gunicornc)")
        return ask(os.path.join(self.path, MANAGER), method, path, body)

    def workers(self) -> list[str]:
        """The control sockets of its workers."""
        try:
            names = sorted(os.listdir(os.path.join(self.path, SOCKETS)))
        except OSError:
            return []
        return [os.path.join(self.path, SOCKETS, name) for name in names if name.endswith(".c")]

    def each(self, method: str, path: str, body: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """What every worker answers; those that do not are left out (they are just leaving)."""
        found = []
        for sock in self.workers():
            try:
                found.append(ask(sock, method, path, body))
            except (NoAnswer, Refusal):
                continue
        return found


def ask(
    path: str,
    method: str,
    target: str,
    body: dict[str, Any] | None = None,
    *,
    query: dict[str, Any] | None = None,
    timeout: float = TIMEOUT,
) -> dict[str, Any]:
    """One request to the control socket at ``path``; its JSON. Raises `NoAnswer`, `Refusal` (4xx and 5xx)."""
    connection = http.client.HTTPConnection("sessionworkers", timeout=timeout)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect(path)
        connection.sock = sock
        data = json.dumps(body).encode() if body is not None else None
        connection.request(method, target + (f"?{urlencode(query)}" if query else ""), body=data)
        reply = connection.getresponse()
        value = json.loads(reply.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(f"{path} does not answer: {error}") from error
    finally:
        connection.close()
        sock.close()
    if not isinstance(value, dict):
        raise NoAnswer(f"{path} answers with no JSON object")
    if reply.status >= 400:
        raise Refusal(reply.status, str(value.get("error", reply.status)))
    return value


def find(runtime_dir: str | None, pid: int | None, bases: Sequence[str] | None = None) -> Place:
    """The server in ``runtime_dir``, or that of ``pid``, or the only one that runs. Raises `NoServer`."""
    if runtime_dir is not None:
        place = _look(runtime_dir)
        if place is None:
            raise NoServer(f"no server runs in {runtime_dir}")
        if pid is not None and pid not in _pids(place):  # a directory may be shared, one asks for this server
            raise NoServer(f"process {pid} is no part of the server that is asked in {runtime_dir}")
        return place
    places = [place for path in candidates(bases) if (place := _look(path)) is not None]
    if pid is not None:
        places = [place for place in places if pid in _pids(place)]
        if not places:
            raise NoServer(
                f"process {pid} is no server that can be asked (of this user, with two workers or more;"
                " with a directory of its own, name it: --runtime-dir)"
            )
    if not places:
        raise NoServer(
            "no server runs that can be asked (of this user, with two workers or more;"
            " with a directory of its own, name it: --runtime-dir)"
        )
    if len(places) > 1:
        found = ", ".join(place.path for place in places)
        raise NoServer(f"several servers run, name one with --runtime-dir or --pid: {found}")
    return places[0]


def candidates(bases: Sequence[str] | None = None) -> list[str]:
    """Directories that may be runtime directories, in the places where they are made by default."""
    found = []
    for base in default_bases() if bases is None else bases:
        try:
            found += sorted(entry.path for entry in os.scandir(base) if entry.name.startswith("sw-"))
        except OSError:
            continue
    return found


def _look(path: str) -> Place | None:
    manager = os.path.join(path, MANAGER)
    if os.path.exists(manager):
        try:
            ask(manager, "GET", "/-/live")
            return Place(path, True)
        except (NoAnswer, Refusal):
            pass
    place = Place(path, False)
    return place if place.each("GET", "/-/live") else None


def _pids(place: Place) -> set[int]:
    if place.managed:  # others may share the directory: only its own
        status = place.manager("GET", "/v1/status")
        return {status["pid"], *(worker["pid"] for worker in status["workers"])}
    return {about[name] for about in place.each("GET", "/v1/worker") for name in ("pid", "parent")}
