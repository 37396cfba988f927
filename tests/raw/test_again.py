"""Requests that came before, to the byte, are carried and served without being parsed or thought over; whatever becomes
of one of them then is what becomes of any other."""

from __future__ import annotations

import signal
import time

import pytest

from tests.raw.servers import Client, Pair, head, pair, wait

Kind = tuple[str, str]
BEFORE = 3
"""As often a request is asked before; a connection that may be handed over is a new one for each of them."""


def before(two: Pair, path: str, *lines: str, body: bytes = b"") -> None:
    """Ask until both workers know the request."""
    for _ in range(BEFORE):
        with Client(two.doors[0]) as client:
            assert client.ask(path, two.sids[1], "POST" if body else "GET", *lines, body=body).json["worker"] == "1"


def test_they_are_answered_alike(two: Pair) -> None:
    for door in range(2):
        for method, body in (("GET", b""), ("POST", b'{"a": 1}'), ("HEAD", b""), ("DELETE", b"")):
            for owner in range(2):
                first: tuple[object, ...] = ()
                for _ in range(6):
                    with Client(two.doors[door]) as client:
                        client.ask("/", two.sids[1 - owner])  # something else in between
                        reply = client.ask(f"/a%2Fb?{door}", two.sids[owner], method, "x-odd: caf\xe9", body=body)
                    seen = reply.json if reply.body else {}
                    seen.pop("client", None)
                    told = (reply.status, seen, [pair for pair in reply.headers if pair[0] not in ("date", "server")])
                    assert told == (first or told)
                    first = told
                    if seen:
                        assert (seen["worker"], seen["size"]) == (str(owner), len(body))


@pytest.mark.parametrize("late", [False, True])
def test_the_owner_dies(kind: Kind, late: bool) -> None:
    path = f"/nth?n={BEFORE + 1}&do=die" + ("&late=1" if late else "")
    with pair(*kind) as two:
        before(two, path)
        with Client(two.doors[0]) as client:
            client.send(head(path, two.sids[1]))
            reply = client.read()
            if late:
                assert (reply.status, reply.body, reply.whole) == (200, b"begun", False)
                assert client.ended()
            else:
                assert reply.status == 410
                assert client.ask(path, two.sids[1]).status == 410
                assert client.ask("/", two.sids[0]).json["worker"] == "0"


@pytest.mark.parametrize("size", [5, 100_000])
def test_the_owner_has_gone_or_takes_no_more(kind: Kind, size: int) -> None:
    """The request turns back and is thought over where it was accepted, with its body."""
    body = b"x" * size
    with pair(*kind, timeout_graceful_shutdown=10) as two:
        before(two, "/", "content-type: text/plain", body=body)
        with Client(two.doors[1]) as busy:
            busy.send(head("/slow?s=1", two.sids[1]))
            wait(lambda: "slow " in two.seen(1)["seen"], "the app has it")
            two.processes[1].send_signal(signal.SIGTERM)
            wait(lambda: not accepts(two.doors[1]), "it takes no more")
            with Client(two.doors[0]) as client:
                reply = client.ask("/", two.sids[1], "POST", "content-type: text/plain", body=body)
                assert reply.status == 410 or reply.json["size"] == size
                assert client.ask("/", two.sids[0]).json["worker"] == "0"
            assert busy.read().body == b"slow 1"
        two.processes[1].wait(10)
        with Client(two.doors[0]) as client:
            reply = client.ask("/", two.sids[1], "POST", "content-type: text/plain", body=body)
            assert reply.status == 410


def accepts(door: int) -> bool:
    try:
        Client(door).sock.close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("started", ["", "&started=1"])
def test_the_app_is_told_that_the_client_left(two: Pair, started: str) -> None:
    name = f"again{bool(started)}{time.monotonic()}"
    path = f"/nth?n={BEFORE + 1}&do=hang&name={name}{started}"
    before(two, path)
    with Client(two.doors[0]) as client:
        client.send(head(path, two.sids[1]))
        wait(lambda: f"waiting {name}" in two.seen(1)["seen"], "the app has it")
    wait(lambda: f"gone {name}" in two.seen(1)["seen"], "the app was told", 3)


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_graceful_shutdown_lets_it_finish(kind: Kind, stopped: int) -> None:
    path = f"/nth?n={BEFORE + 1}&do=slow&s=1&name=x"
    with pair(*kind, timeout_graceful_shutdown=10) as two:
        before(two, path)
        with Client(two.doors[0]) as client:
            client.send(head(path, two.sids[1]))
            wait(lambda: "slow x" in two.seen(1)["seen"], "the app has it")
            two.processes[stopped].send_signal(signal.SIGTERM)
            reply = client.read()
            assert (reply.status, reply.body) == (200, b"slow 1")
            if stopped == 0:
                assert reply.header("connection") == "close" and client.ended()
        two.processes[stopped].wait(10)


@pytest.mark.parametrize("late", ["", "&late=1"])
def test_an_app_that_raises(two: Pair, late: str) -> None:
    path = f"/nth?n={BEFORE + 1}&do=crash{late}&{time.monotonic()}"
    before(two, path)
    with Client(two.doors[0]) as client:
        reply = client.ask(path, two.sids[1])
        if late:
            assert (reply.status, reply.body, reply.whole) == (200, b"begun", False)
        else:
            assert (reply.status, reply.body) == (500, b"Internal Server Error")


def test_pipelined(two: Pair) -> None:
    owners = [1, 0, 1, 1, 0, 1]
    for _ in range(4):
        with Client(two.doors[0]) as client:
            for number, owner in enumerate(owners):
                client.send(head(f"/p{number % 2}", two.sids[owner]))
            replies = [client.read().json for _ in owners]
        assert [(reply["path"], reply["worker"]) for reply in replies] == [
            (f"/p{number % 2}", str(owner)) for number, owner in enumerate(owners)
        ]
