"""A start that another worker takes: its kept-alive connection goes after it, or the start does not go."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests.drain.world import serving
from tests.harness import GUNICORN, Server, wait_for
from tests.raw.servers import Client, held_ports

LOGGED = ("--access-log",)
IN_BODIES = {"env": {"SESSIONWORKERS_SESSION_ID": "json:sid start=POST:/s"}}
"""A rule whose ID no head shows: requests of another worker's sessions can only be carried one by one."""


def begin(client: Client) -> tuple[str, int]:
    found = client.ask("/s", None, "POST").json
    return found["sid"], found["pid"]


def count(client: Client, sid: str) -> dict[str, Any]:
    body = json.dumps({"sid": sid}).encode()
    found: dict[str, Any] = client.ask(f"/s/{sid}/n", None, "POST", "content-type: application/json", body=body).json
    return found


def placed(running: Server, client: Client) -> tuple[str, int, int]:
    """A session that began on another worker than the one that holds the connection; that one's pid comes last."""
    first = pid = begin(client)[1]
    sid = ""
    for _ in range(4):
        if pid != first:
            return sid, pid, first
        sid, pid = begin(client)
    raise AssertionError("no start was placed")


@pytest.mark.parametrize("more", [{}, IN_BODIES], ids=["path", "body"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_connection_moves_with_the_start(loop: str, more: dict[str, Any]) -> None:
    with serving(2, *LOGGED, "--loop", loop, **more) as running, Client(running.port) as client:
        sid, pid, before = placed(running, client)
        wait_for(lambda: client.port in held_ports(pid), 5, "the connection is where the session is")
        assert client.port not in held_ports(before)
        for number in range(1, 9):
            assert count(client, sid) == {"n": number, "pid": pid}
        assert "(hop" not in running.log and running.log.count("(here)") >= 8


def test_a_request_that_is_quicker_than_the_move_is_right_too() -> None:
    with serving(2, *LOGGED) as running, Client(running.port) as client:
        sid, pid, _ = placed(running, client)
        for number in range(1, 9):
            assert count(client, sid) == {"n": number, "pid": pid}
        assert client.port in held_ports(pid)
        assert running.log.count("(hop") <= 1, "it moves with the next one at the latest"


def test_a_refused_start_moves_nothing() -> None:
    rule = {"env": {"SESSIONWORKERS_SESSION_ID": "path:/s/{id} json:sid start=POST:/s start=POST:/nothing"}}
    with serving(2, **rule) as running, Client(running.port) as client:
        here = begin(client)[1]
        begin(client)
        reply = client.ask("/nothing", None, "POST")
        assert reply.status == 404 and reply.json["pid"] != here, "placed, and refused by the app"
        assert client.port in held_ports(here)


def certificate(folder: pathlib.Path) -> tuple[str, ...]:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    subject = ["-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", cert]
    try:
        subprocess.run([*command, *subject], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return ("--ssl-keyfile", key, "--ssl-certfile", cert)


@pytest.mark.parametrize("why", ["--no-handover", "--http h11", "tls", "gunicorn"])
def test_where_no_connection_moves_a_start_begins_where_it_arrives(why: str, tmp_path: pathlib.Path) -> None:
    tls = why == "tls"
    options: Sequence[str] = certificate(tmp_path) if tls else why.split()
    more: dict[str, Any] = {}
    if why == "gunicorn":
        options, more = (), {"command": GUNICORN, "env": {"SESSIONWORKERS_HANDOVER": "false"}}
    with serving(2, *options, **more) as running:
        with Client(running.port, tls) as client:
            found = [begin(client) for _ in range(6)]
            assert len({pid for _, pid in found}) == 1, "one connection, one worker"
            for sid, pid in found:
                assert count(client, sid) == {"n": 1, "pid": pid}
        for line in ("connection: close", "Connection: foo, Close"):
            with Client(running.port, tls) as client:
                there = client.ask("/s", None, "POST", line).json["pid"]
                assert there != found[0][1], "this connection ends with its start, which goes to the emptier worker"
