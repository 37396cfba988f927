"""Large replies through shared memory: every byte, whatever the client does; and nothing of it when a link ends."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionworkers.hop.ring import IDLE
from tests.raw.servers import Client, Pair, head, pair, wait

LARGE = 500_000


def maps(pid: int) -> int:
    """How many pieces of shared memory a process has."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:sessionworkers")


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def two(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair("raw", request.param) as found:
        shared(found)
        yield found


def shared(two: Pair) -> None:
    """Wait until they share memory; the first large reply asks for it."""
    with two.client(0) as client:
        client.ask("/", two.sids[1])
        assert [maps(each.pid) for each in two.processes] == [0, 0]
        assert client.ask(f"/big?n={LARGE}", two.sids[1]).body[1:] == b"x" * (LARGE - 1)
    wait(lambda: [maps(each.pid) for each in two.processes] == [1, 1], "both have it")


@pytest.mark.parametrize("size", [65_000, 66_000, 200_000, LARGE, 1_048_000, 1_100_000, 5_000_000])
def test_every_byte(two: Pair, size: int) -> None:
    """Of replies that differ in each byte, one after the other on one connection and on many at a time."""
    with two.client(0) as client:
        for number in range(3):
            assert client.ask(f"/noise?n={size}&seed={number}", two.sids[1]).body == noise(size, number)
    clients = [two.client(0) for _ in range(6)]
    for number, client in enumerate(clients):
        client.send(head(f"/noise?n={size}&seed={number}", two.sids[1]))
    for number, client in enumerate(clients):
        with client:
            assert client.read().body == noise(size, number)


def test_a_client_that_reads_slowly(two: Pair) -> None:
    """Its socket takes a part at a time; others are served meanwhile."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", two.doors[0]))
        sock.sendall(b"".join(head(f"/noise?n={LARGE}&seed={number}", two.sids[1]) for number in range(3)))
        with two.client(0) as other:
            for number in range(8):
                assert other.ask(f"/noise?n={LARGE}&seed={number}", two.sids[1]).body == noise(LARGE, number)
        slow = Client.__new__(Client)
        slow.sock, slow.held = sock, b""
        for number in range(3):
            assert slow.read().body == noise(LARGE, number)


def test_a_client_that_goes(two: Pair) -> None:
    for _ in range(5):
        with two.client(0) as client:
            client.send(head(f"/noise?n={5_000_000}&seed=1", two.sids[1]))
            client.more()
    with two.client(0) as client:
        assert client.ask(f"/noise?n={LARGE}&seed=2", two.sids[1]).body == noise(LARGE, 2)


def test_a_connection_that_is_to_close(two: Pair) -> None:
    with two.client(0) as client:
        reply = client.ask(f"/noise?n={LARGE}&seed=3", two.sids[1], "GET", "connection: close")
        assert reply.body == noise(LARGE, 3) and reply.header("connection") == "close"
        assert client.ended()


def test_it_is_given_back_when_nobody_needs_it(two: Pair) -> None:
    with two.client(0) as client:
        client.ask(f"/noise?n={LARGE}&seed=1", two.sids[1])
    wait(lambda: resident(two.processes[1].pid) <= 8, "a page or two are left", 4 * IDLE)
    with two.client(0) as client:
        assert client.ask(f"/noise?n={LARGE}&seed=4", two.sids[1]).body == noise(LARGE, 4)


def resident(pid: int) -> int:
    """KB of a process's shared memory."""
    part = Path(f"/proc/{pid}/smaps").read_text().partition("/memfd:sessionworkers")[2]
    return int(part.partition("\nRss:")[2].split()[0])


def test_it_goes_with_the_link() -> None:
    with pair("raw", "uvloop") as two:
        shared(two)
        before = len(os.listdir(f"/proc/{two.processes[0].pid}/fd"))
        two.processes[1].kill()
        two.processes[1].wait()
        wait(lambda: maps(two.processes[0].pid) == 0, "it is gone")
        assert len(os.listdir(f"/proc/{two.processes[0].pid}/fd")) < before


def noise(size: int, seed: int) -> bytes:
    """What the app's ``/noise`` answers."""
    return hashlib.shake_128(b"%d" % seed).digest(size)
