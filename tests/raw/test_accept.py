"""Connections that were just accepted, on every path: by the loop and by `hosts.listener`."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import socket
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from sessionworkers.hosts.accepted import alike
from sessionworkers.hosts.moving import MOST_DOUBLINGS, MOST_RUNS, STAYED
from sessionworkers.hosts.protocol import SessionHttpToolsProtocol
from sessionworkers.hosts.uvicorn import SessionConfig, SessionServer
from sessionworkers.settings import Settings
from tests.raw.servers import Client, Pair, head, wait

MORE = 8_000_000
"""Bytes that no socket takes at once."""


@pytest.fixture(params=[0, 1], ids=["here", "elsewhere"])
def owner(request: pytest.FixtureRequest) -> int:
    """The worker that answers; worker 0 accepts."""
    found: int = request.param
    return found


def open_files(two: Pair) -> int:
    return sum(len(os.listdir(f"/proc/{process.pid}/fd")) for process in two.processes)


@pytest.mark.parametrize("turn", range(3))
def test_a_first_answer_longer_than_the_socket_takes(two: Pair, owner: int, turn: int) -> None:
    """Also one whose head came before."""
    with two.client(0) as client:
        client.send(head(f"/noise?seed=first&n={MORE}", two.sids[owner]))
        wait(lambda: buffered(client) > 0, "it has begun")
        reply = client.read()
        assert hashlib.sha256(reply.body).digest() == hashlib.sha256(hashlib.shake_128(b"first").digest(MORE)).digest()
        assert client.ask("/", two.sids[owner]).json["worker"] == str(owner)


def buffered(client: Client) -> int:
    """Bytes that have come and were not read."""
    try:
        return len(client.sock.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return 0


def test_a_second_packet_while_the_first_is_answered(two: Pair, owner: int) -> None:
    name = two.new(owner)
    with two.client(0) as client:
        client.send(head(f"/slow?s=0.2&name={name}", two.sids[owner]))
        wait(lambda: f"slow {name}" in two.seen(owner)["seen"], "it runs")
        client.send(head("/early", two.sids[owner]) + head("/", two.sids[1 - owner]))
        assert [client.read().body for _ in range(2)] == [f"slow {owner}".encode(), f"early {owner}".encode()]
        assert client.read().json["worker"] == str(1 - owner)


def test_several_requests_in_the_first_packet(two: Pair, owner: int) -> None:
    with two.client(0) as client:
        client.send(head("/early", two.sids[owner]) * 3 + head("/", two.sids[1 - owner]))
        assert [client.read().body for _ in range(3)] == [f"early {owner}".encode()] * 3
        assert client.read().json["worker"] == str(1 - owner)


def test_a_request_in_many_packets(two: Pair, owner: int) -> None:
    body = os.urandom(300)
    data = head("/?one", two.sids[owner], "POST", "content-length: 300") + body
    with two.client(0) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), 40):
            client.send(data[at : at + 40])
            two.seen(0)  # it has been read by now
        assert client.read().json["hash"] == hashlib.sha256(body).hexdigest()


def test_a_first_body_longer_than_one_packet(two: Pair, owner: int) -> None:
    body = os.urandom(1_000_000)
    for _ in range(3):
        with two.client(0) as client:
            reply = client.ask("/", two.sids[owner], "POST", body=body).json
            assert (reply["size"], reply["hash"]) == (len(body), hashlib.sha256(body).hexdigest())
            assert client.ask("/", two.sids[owner]).json["worker"] == str(owner)


def test_many_requests(two: Pair, owner: int) -> None:
    """The transport changes somewhere among them, and perhaps the worker."""
    with two.client(0) as client:
        for number in range(40):
            if number % 3:
                assert client.ask(f"/early?{number}", two.sids[owner]).body == f"early {owner}".encode()
            else:
                assert client.ask("/", two.sids[owner], "POST", body=b"b" * number).json["size"] == number


def test_who_says_nothing_for_a_while_is_served_then(two: Pair, owner: int) -> None:
    with two.client(0) as client:
        two.new(0)  # accepted after it
        assert client.ask("/", two.sids[owner]).json["worker"] == str(owner)


def test_the_addresses_are_those_of_the_connection(two: Pair, owner: int) -> None:
    for _ in range(3):
        with two.client(0) as client:
            told = client.ask("/", two.sids[owner]).json
            assert (told["client"], told["server"]) == (["127.0.0.1", client.port], ["127.0.0.1", two.doors[0]])


def reset(client: Client) -> None:
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def leaves_at_once(two: Pair, owner: int) -> None:
    two.client(0).sock.close()


def resets_at_once(two: Pair, owner: int) -> None:
    with two.client(0) as client:
        reset(client)


def leaves_after_an_answer(two: Pair, owner: int) -> None:
    with two.client(0) as client:
        assert client.ask("/early", two.sids[owner]).status == 200


def resets_after_an_answer(two: Pair, owner: int) -> None:
    with two.client(0) as client:
        assert client.ask("/early", two.sids[owner]).status == 200
        reset(client)


def shuts_its_half(two: Pair, owner: int) -> None:
    with two.client(0) as client:
        client.ask("/early", two.sids[owner])
        client.sock.shutdown(socket.SHUT_WR)
        assert client.ended()


def leaves_before_an_answer(two: Pair, owner: int) -> None:
    name = two.new(owner)
    with two.client(0) as client:
        client.send(head(f"/hang?name={name}", two.sids[owner]))
        wait(lambda: f"waiting {name}" in two.seen(owner)["seen"], "it runs")
    wait(lambda: f"gone {name}" in two.seen(owner)["seen"], "the app is told")


def resets_in_an_answer(two: Pair, owner: int) -> None:
    with two.client(0) as client:
        client.send(head(f"/big?n={MORE}", two.sids[owner]))
        wait(lambda: buffered(client) > 0, "it has begun")
        reset(client)


def sends_garbage(two: Pair, owner: int) -> None:
    with two.client(0) as client:
        client.send(b"\x00\r\n\r\n")
        assert client.read().status == 400
        assert client.ended()


def asks_to_be_closed(two: Pair, owner: int) -> None:
    with two.client(0) as client:
        assert client.ask("/early", two.sids[owner], "GET", "connection: close").status == 200
        assert client.ended()


LEAVES = [
    leaves_at_once, resets_at_once, leaves_after_an_answer, resets_after_an_answer, shuts_its_half,
    leaves_before_an_answer, resets_in_an_answer, sends_garbage, asks_to_be_closed,
]  # fmt: skip


@pytest.mark.parametrize("leave", LEAVES)
def test_who_leaves_leaves_nothing(two: Pair, owner: int, leave: Any) -> None:
    leave(two, owner)
    wait(lambda: idle(two), "nothing runs")
    before = open_files(two)
    for _ in range(5):
        leave(two, owner)
    wait(lambda: open_files(two) <= before, "all descriptors are given back")
    assert "Traceback" not in two.log(0)


def idle(two: Pair) -> bool:
    """No connection of a client is open; it waits for those of earlier tests, too."""
    doors = {f"{port:04X}" for port in two.doors}
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return not any(row[1][-4:] in doors and row[3] in ("01", "08") for row in rows)


def test_out_of_descriptors(two: Pair) -> None:
    """What cannot be accepted now is accepted when there are descriptors again."""
    if two.mechanism == "frames":
        pytest.skip("the loop accepts: libuv drops the connection, asyncio does as is tested here")
    wait(lambda: idle(two), "nothing runs")
    pid = two.processes[0].pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    client = late = None
    try:
        client = two.client(0)
        assert client.ask("/early", two.sids[0]).status == 200
        highest = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, hard))
        held = []
        while "No connection can be accepted" not in two.log(0):
            assert len(held) < highest + 2
            held.append(two.client(0))
            client.ask("/early", two.sids[0])  # what is open is served on
        late = two.client(0)
        late.send(head("/early", two.sids[0]))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert late.read().status == 200
        for each in held:
            assert each.ask("/early", two.sids[0]).status == 200
            each.sock.close()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        for each in (client, late):
            if each is not None:
                each.sock.close()


def made(count: int) -> tuple[SessionHttpToolsProtocol, list[Any]]:
    """One connection made as usual, and some made quickly."""
    config = SessionConfig("tests.raw.app:app", settings=Settings(), runtime_dir=None, log_config=None)
    SessionServer(config)
    config.load()
    loop = asyncio.new_event_loop()
    arguments: Any = (config, config.server_state, {}, loop)
    usual = SessionHttpToolsProtocol(*arguments)
    make = alike(*arguments)
    loop.close()
    config.worker.release()
    return usual, [make() for _ in range(count)]


def test_a_connection_made_quickly_is_as_one_of_uvicorns_making() -> None:
    usual, (quick, other) = made(2)
    for name, value in vars(usual).items():
        if name not in ("parser", "scheme", "pipeline"):
            assert getattr(quick, name) is value, name
    assert (quick.parser, quick.scheme, list(quick.pipeline)) == (None, "http", [])
    assert set(vars(quick)) == set(vars(usual))
    assert quick.pipeline is not other.pipeline


@pytest.mark.parametrize(
    ("moves", "stayed", "needed"),
    [(0, 0.0, 3), (1, 0.0, 6), (3, 0.0, 24), (3, STAYED - 0.1, 24), (3, STAYED, 3), (20, 0.0, 3 << MOST_DOUBLINGS)],
)
@pytest.mark.parametrize("explicit", [False, True])
def test_how_many_uses_in_a_row_a_connection_moves_with(moves: int, stayed: float, needed: int, explicit: bool) -> None:
    """By its moves so far, and how long it has stayed since the last one."""
    session: Any = SimpleNamespace(primary=SimpleNamespace(key="session"))
    _, (connection,) = made(1)
    clock = SimpleNamespace(now=100.0)
    connection.loop = SimpleNamespace(time=lambda: clock.now)
    connection.arrive(b"", moves, None)
    clock.now += stayed
    for number in range(1, needed + 1):
        if explicit:
            connection._go_after("owner", "session")
            goes = connection._last_owner == "owner"
        else:
            goes = connection._goes("owner", session, False)
        assert goes == (number == needed), number


@pytest.mark.parametrize(
    ("runs", "needed"), [(0, 3), (1, 3), (3, 3), (4, 4), (20, 20), (MOST_RUNS, MOST_RUNS), (1_000, MOST_RUNS)]
)
@pytest.mark.parametrize("local", [False, True])
def test_who_goes_from_worker_to_worker_must_stay_longer_to_move(runs: int, needed: int, local: bool) -> None:
    """By how many runs of requests for one other worker have ended, with requests of this worker in between or not."""
    session: Any = SimpleNamespace(primary=SimpleNamespace(key="session"))
    _, (connection,) = made(1)
    connection.loop = SimpleNamespace(time=lambda: 100.0)
    for run in range(runs):
        assert not connection._goes(f"other {run}", session, False)
        if local:
            connection._stays()
    assert [connection._goes("owner", session, False) for _ in range(needed)] == [False] * (needed - 1) + [True]
