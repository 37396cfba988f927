"""Deaths, shutdowns, limits and what is particular to connections that moved."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

from tests.raw.servers import Client, head, pair, wait

Kind = tuple[str, str]


@pytest.mark.parametrize("late", [False, True])
def test_the_owner_dies(kind: Kind, late: bool) -> None:
    with pair(*kind) as two:
        with Client(two.doors[0]) as client:
            client.ask("/", two.sids[1])
            client.send(head("/die?late=1" if late else "/die", two.sids[1]))
            reply = client.read()
            if late:
                assert (reply.status, reply.body, reply.whole) == (200, b"begun", False)
                assert client.ended()
            else:
                assert reply.status == 410
        with Client(two.doors[0]) as client:
            assert client.ask("/", two.sids[1]).status == 410
            assert client.ask("/", two.sids[0]).json["worker"] == "0"


def test_the_owner_is_killed_with_a_connection_on_its_way(kind: Kind) -> None:
    """One answer, the gone one; never silence, never two."""
    with pair(*kind) as two:
        with Client(two.doors[0]) as client:
            client.ask("/", two.sids[1])
            client.ask("/", two.sids[1])
            two.processes[1].send_signal(signal.SIGSTOP)
            client.send(head("/", two.sids[1]))  # the third: a connection that may move does now
            time.sleep(0.2)
            two.processes[1].kill()
            two.processes[1].send_signal(signal.SIGCONT)
            assert client.read().status == 410
            assert client.ask("/", two.sids[0]).json["worker"] == "0"


def test_a_moved_connection_outlives_the_worker_that_accepted_it() -> None:
    for loop in ("asyncio", "uvloop"):
        with pair("handover", loop) as two:
            with Client(two.doors[0]) as client:
                for _ in range(4):
                    client.ask("/", two.sids[1])
                two.processes[0].kill()
                two.processes[0].wait()
                assert client.ask("/", two.sids[1]).json["worker"] == "1"
                assert client.ask("/", two.sids[0]).status == 410


def test_a_connection_moves_there_and_back() -> None:
    with pair("handover", "uvloop") as two:
        with Client(two.doors[0]) as client:
            for owner in (1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1):
                assert client.ask("/", two.sids[owner]).json["worker"] == str(owner)
            client.send(head("/hang?name=x", two.sids[1]))
            wait(lambda: "waiting x" in two.seen(1)["seen"], "the app has it")
        wait(lambda: "gone x" in two.seen(1)["seen"], "the app was told")
        before = [len(os.listdir(f"/proc/{process.pid}/fd")) for process in two.processes]
        for _ in range(20):
            with Client(two.doors[0]) as client:
                for _ in range(4):
                    client.ask("/", two.sids[1])

        def none_left() -> bool:
            now = [len(os.listdir(f"/proc/{process.pid}/fd")) for process in two.processes]
            return all(a <= b for a, b in zip(now, before, strict=True))

        wait(none_left, "no descriptor is left behind")


def test_the_keep_alive_timer(kind: Kind) -> None:
    with pair(*kind, timeout_keep_alive=1) as two:
        for count in (1, 4):
            with Client(two.doors[0]) as client:
                for _ in range(count):
                    client.ask("/", two.sids[1])
                began = time.monotonic()
                assert client.ended()
                assert 0.7 < time.monotonic() - began < 3


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_graceful_shutdown_lets_requests_finish(kind: Kind, stopped: int) -> None:
    with pair(*kind, timeout_graceful_shutdown=10) as two:
        with Client(two.doors[0]) as client:
            client.send(head("/slow?s=1&name=x", two.sids[1]))
            wait(lambda: "slow x" in two.seen(1)["seen"], "the app has it")
            two.processes[stopped].send_signal(signal.SIGTERM)
            reply = client.read()
            assert (reply.status, reply.body) == (200, b"slow 1")
            if stopped == 0:
                assert client.ended()
        two.processes[stopped].wait(10)


def test_requests_count_once(kind: Kind) -> None:
    """``limit_max_requests`` counts where a request ran."""
    with pair(*kind, limit_max_requests=1000) as two:
        with Client(two.doors[0]) as client:
            for _ in range(2):
                client.ask("/", two.sids[1])
        assert all(process.poll() is None for process in two.processes)


def test_limit_concurrency(kind: Kind) -> None:
    with pair(*kind, limit_concurrency=8) as two:
        clients = [Client(two.doors[0]) for _ in range(4)]
        try:
            for number, client in enumerate(clients):
                client.send(head(f"/hang?name=l{number}", two.sids[1]))
            wait(lambda: sum("waiting l" in each for each in two.seen(1)["seen"]) == 4, "all have begun")
            with Client(two.doors[0]) as client:
                assert client.ask("/", two.sids[1]).status == 200
        finally:
            for client in clients:
                client.sock.close()


def test_an_owner_that_says_not_mine(kind: Kind) -> None:
    """An ended claim that another worker took meanwhile: the request goes to who holds it, as if at once."""
    with pair(*kind) as two:
        sid = two.new(1)
        with Client(two.doors[0]) as client:
            assert client.ask("/", sid, "POST", body=b"kept").json["size"] == 4


def test_resets_leave_nothing(kind: Kind) -> None:
    with pair(*kind) as two:
        for number in range(30):
            client = Client(two.doors[0])
            client.send(head("/big?n=300000", two.sids[1]) + head("/", two.sids[1]))
            if number % 2:
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.sock.close()
        with Client(two.doors[0]) as client:
            assert client.ask("/", two.sids[1]).json["worker"] == "1"
        if kind[0] != "frames":  # there uvicorn's cycle writes, and on uvloop to a closed transport it raises
            assert "Traceback" not in two.log(0) + two.log(1)
