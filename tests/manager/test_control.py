"""The control socket's HTTP, and what it answers."""

from __future__ import annotations

import os
import pathlib
import select
import socket
import stat
from collections.abc import Mapping
from typing import Any

import pytest

from sessionworkers.manager.actions import Drain
from sessionworkers.manager.control import ControlSocket
from sessionworkers.manager.orders import Orders
from sessionworkers.manager.plan import Fleet
from sessionworkers.manager.slots import State
from sessionworkers.observe.http import MAX_BODY, MAX_HEAD, BadRequest, Exchange, Request, reply


def feed(*pieces: bytes) -> Request | None:
    exchange = Exchange()
    found = None
    for piece in pieces:
        found = exchange.feed(piece)
    return found


@pytest.mark.parametrize(
    ("pieces", "request_"),
    [
        ([b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"], Request("GET", "/v1/status")),
        ([b"GET /a?b=1&c=x%20y HTTP/1.0\r\n\r\n"], Request("GET", "/a", {"b": "1", "c": "x y"})),
        ([b"POST /a HTTP/1.1\r\nContent-Le", b'ngth: 9\r\n\r\n{"a"', b": 12}"], Request("POST", "/a", {}, {"a": 12})),
        ([b"GET /a HTTP/1.1\r\n"], None),
        ([b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\n{}"], None),
    ],
)
def test_a_request_is_read_however_it_comes(pieces: list[bytes], request_: Request | None) -> None:
    assert feed(*pieces) == request_


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / SPDY/3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{x", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * MAX_HEAD, 431),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as refused:
        feed(data)
    assert refused.value.status == status


def up(workers: int = 2, **more: Any) -> Fleet:
    fleet = Fleet(workers, **more)
    fleet.step(0.0)
    for key in list(fleet.slots):
        fleet.serving(key, 0.0)
    fleet.step(0.0)
    return fleet


def orders(fleet: Fleet) -> Orders:
    def about(key: int) -> Mapping[str, Any]:
        return {"pid": 100 + key, "uid": f"u{key}"}

    return Orders(fleet, about, 0.0)


def ask(fleet: Fleet, method: str, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    return orders(fleet).answer(Request(method, path, {}, body), 1.0)


def test_the_status_shows_server_and_workers() -> None:
    status, value = ask(up(), "GET", "/v1/status")
    assert status == 200 and value["state"] == "serving" and value["wanted"] == 2
    assert [(worker["pid"], worker["state"]) for worker in value["workers"]] == [(101, "serving"), (102, "serving")]


def test_orders_change_the_plan() -> None:
    fleet = up()
    assert ask(fleet, "POST", "/v1/scale", workers=3) == (202, {"wanted": 3}) and fleet.target == 3
    assert ask(fleet, "POST", "/v1/reload") == (202, {"generation": 2})
    assert ask(fleet, "GET", "/v1/status")[1]["state"] == "restarting"
    assert ask(fleet, "GET", "/-/ready") == (200, {"ready": True, "workers": 2})
    assert ask(fleet, "GET", "/-/live")[0] == 200
    assert ask(fleet, "POST", "/v1/stop")[0] == 202 and fleet.stopping
    assert ask(fleet, "GET", "/-/ready")[0] == 503
    assert ask(fleet, "POST", "/v1/reload")[0] == 409
    assert ask(fleet, "POST", "/v1/scale", workers=2)[0] == 409


def test_one_worker_is_drained_successor_first() -> None:
    fleet = up()
    assert ask(fleet, "POST", "/v1/drain", pid=101)[0] == 202
    fleet.step(1.0)
    assert [slot.state for slot in fleet.slots.values()] == [State.SERVING, State.SERVING, State.STARTING]
    fleet.serving(3, 2.0)
    assert fleet.step(2.0) == [Drain(1, 300.0)]
    assert ask(fleet, "POST", "/v1/drain", pid=101)[0] == 409
    assert ask(fleet, "POST", "/v1/drain", pid=999)[0] == 404


def test_the_whole_server_is_drained() -> None:
    fleet = up()
    assert ask(fleet, "POST", "/v1/drain", timeout=60) == (202, {"timeout": 60})
    assert fleet.step(1.0) == [Drain(1, 60.0, all=True), Drain(2, 60.0, all=True)]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v2/status", {}, 404),
        ("DELETE", "/v1/status", {}, 405),
        ("POST", "/v1/scale", {"workers": 0}, 422),
        ("POST", "/v1/scale", {"workers": True}, 422),
        ("POST", "/v1/scale", {}, 422),
        ("POST", "/v1/drain", {"timeout": -1}, 422),
    ],
)
def test_what_makes_no_sense_is_refused(method: str, path: str, body: dict[str, Any], status: int) -> None:
    assert ask(up(), method, path, **body)[0] == status


def test_the_socket_is_private_serves_and_goes(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "control")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)  # of a server that was killed
    poll = select.poll()
    control = ControlSocket(path, lambda request: (200, {"path": request.path}), poll)
    try:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        clients = []
        for _ in range(40):  # more than it keeps: the oldest are let go
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(5)
            client.connect(path)
            clients.append(client)
            serve(control, poll)
        clients[-1].sendall(b"GET /hello HTTP/1.1\r\n\r\n")
        serve(control, poll)
        assert clients[-1].recv(4096) == reply(200, {"path": "/hello"})
        clients[-2].sendall(b"nonsense\r\n\r\n")
        serve(control, poll)
        assert clients[-2].recv(4096).startswith(b"HTTP/1.1 400 ")
        assert clients[0].recv(4096) == b""
        assert control.handle(999) is False
        for client in clients:
            client.close()
    finally:
        control.close()
    assert not os.path.exists(path)


def test_of_two_in_one_directory_the_later_has_the_path(tmp_path: pathlib.Path) -> None:
    path, poll = str(tmp_path / "control"), select.poll()
    first = ControlSocket(path, lambda request: (200, {}), poll)
    second = ControlSocket(path, lambda request: (200, {}), poll)
    try:
        assert (first.displaced, second.displaced) == (False, True)
    finally:
        first.close()
        assert os.path.exists(path), "it is the second's by now"
        second.close()
    assert not os.path.exists(path)


def serve(control: ControlSocket, poll: select.poll) -> None:
    while ready := poll.poll(50):
        for fd, _ in ready:
            control.handle(fd)
