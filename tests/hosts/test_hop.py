"""The hop between real processes: what the app and the client see is what they would see without it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import connect as ws_connect
from websockets.exceptions import ConnectionClosed

from tests.harness import Server, server, wait_for
from tests.hosts.client import APP, BOTH, all_pids, connect, head_of, kwargs, memory, owner_of, start, to_end

FULL = bool(os.environ.get("SESSIONWORKERS_FULL"))
SIZE = 2**30 if FULL else 96 * 2**20
"""Bytes of the big upload and download: 1 GiB in the full run."""
GROWTH = 32 * 2**20
"""Bytes that router and owner may grow while it passes."""


@pytest.fixture(scope="module", params=list(BOTH))
def served(request: pytest.FixtureRequest) -> Iterator[Server]:
    with server(APP, workers=2, **kwargs(request.param)) as running:
        yield running


def hopped(served: Server, sid: str, path: str) -> socket.socket:
    """A raw connection; with two workers and many tries some are accepted by the other one."""
    sock = connect(served)
    sock.sendall(path.encode())
    return sock


def test_each_session_is_right_whoever_accepts(served: Server) -> None:
    assert len(all_pids(served)) == 2
    for _ in range(10):
        sid, pid = start(served)
        for number in range(1, 9):
            reply = served.fetch("GET", f"/s/{sid}/n")
            assert reply.json == {"n": number, "pid": pid}


def test_the_scope_is_the_same_with_and_without_the_hop(served: Server) -> None:
    sid, pid = start(served)
    path = f"/s/{sid}/echo/%2e%2e/a%2Fb?x=1&y=%C3%A9&x=2"
    raw = (
        f"POST {path} HTTP/1.1\r\nHost: Example.test\r\nX-Two: b\r\nx-one: \xe9\xff\r\nX-Two: a\r\n"
        "Cookie: a=1; b=2\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    ).encode("latin-1")
    seen: set[str] = set()
    pids = set()
    for _ in range(24):
        with connect(served) as sock:
            port = sock.getsockname()[1]
            sock.sendall(raw)
            body = to_end(sock).partition(b"\r\n\r\n")[2].decode()
        value = ast.literal_eval(body)
        assert value["body"] == b"hello".hex()
        pids.add(value["pid"])
        assert f"('client', ('127.0.0.1', {port}))" in value["scope"], "the client's own address"
        seen.add(value["scope"].replace(str(port), "PORT"))
    assert pids == {pid}
    assert len(seen) == 1, "24 connections over two workers, one scope"


def test_big_bodies_both_ways_in_bounded_memory(served: Server) -> None:
    sid, pid = start(served)
    other = next(each for each in all_pids(served) if each != pid)
    piece = bytes(range(256)) * 4096
    want = hashlib.sha256()
    for _ in range(SIZE // len(piece)):
        want.update(piece)
    before = {each: memory(each) for each in (pid, other)}
    peak = dict(before)
    hops = 0
    for _ in range(2 if FULL else 6):  # some of these are accepted by the other worker
        with connect(served) as sock:
            sock.settimeout(240)
            sock.sendall(
                f"POST /s/{sid}/upload HTTP/1.1\r\nHost: x\r\nContent-Length: {SIZE}\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            for number in range(SIZE // len(piece)):
                sock.sendall(piece)
                if number % 16 == 0:
                    for each in peak:
                        peak[each] = max(peak[each], memory(each))
            reply = to_end(sock)
        assert want.hexdigest().encode() in reply
        digest, size = hashlib.sha256(), 0
        with connect(served) as sock:
            sock.settimeout(240)
            sock.sendall(f"GET /s/{sid}/download?size={SIZE} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
            head_of(sock)
            chunk = bytearray(1 << 20)
            while got := sock.recv_into(chunk):
                digest.update(memoryview(chunk)[:got])
                size += got
        hops += 1
    assert hops and size >= SIZE
    for each in before:
        assert peak[each] - before[each] < GROWTH, f"{(peak[each] - before[each]) / 2**20:.0f} MiB more"


@pytest.mark.timeout(120)
def test_a_client_that_goes_away_is_told_to_the_owners_app(served: Server) -> None:
    sid, _ = start(served)

    def closed() -> int:
        return sum(served.fetch("GET", "/seen").json["seen"].count("stream closed") for _ in range(1))

    for _ in range(8):  # by whichever worker accepts
        with connect(served) as sock:
            sock.sendall(f"GET /s/{sid}/stream HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head_of(sock)
            sock.recv(10)
    counts: dict[int, int] = {}

    def all_told() -> bool:
        seen = served.fetch("GET", "/seen").json
        counts[seen["pid"]] = seen["seen"].count("stream closed")
        return sum(counts.values()) >= 8

    wait_for(all_told, 10, "the owner's app hears of eight closed streams")


def test_an_early_reply_passes_while_the_body_still_comes(served: Server) -> None:
    sid, _ = start(served)
    for _ in range(6):
        with connect(served) as sock:
            sock.sendall(
                f"POST /s/{sid}/refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n".encode() + b"x" * 65536
            )
            assert b" 413 " in head_of(sock)


def test_expect_100_continue_is_answered_once_and_only_when_the_app_reads(served: Server) -> None:
    sid, _ = start(served)
    for _ in range(6):
        with connect(served) as sock:
            sock.sendall(
                f"POST /s/{sid}/upload HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            assert head_of(sock) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(b"abc")
            reply = to_end(sock)
        assert reply.count(b"HTTP/1.1 ") == 1 and hashlib.sha256(b"abc").hexdigest().encode() in reply
        with connect(served) as sock:
            sock.sendall(
                f"POST /s/{sid}/refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
                "Expect: 100-continue\r\n\r\n".encode()
            )
            assert b" 413 " in head_of(sock), "no 100 where the app does not read"


def test_an_app_that_breaks_answers_500_as_it_does_without_the_hop(served: Server) -> None:
    sid, _ = start(served)
    for _ in range(8):
        assert served.fetch("GET", f"/s/{sid}/break").status == 500
    assert served.fetch("GET", f"/s/{sid}/n").status == 200


def test_keep_alive_and_pipelining_over_the_hop(served: Server) -> None:
    sid, pid = start(served)
    for _ in range(4):
        with connect(served) as sock:
            request = f"GET /s/{sid}/n HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            last = f"GET /s/{sid}/n HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
            sock.sendall(request * 5 + last)
            data = to_end(sock)
        assert data.count(b"HTTP/1.1 200 OK") == 6
        assert data.count(f'"pid": {pid}'.encode()) == 6


def test_websockets_reach_their_owner_with_exact_close_codes(served: Server) -> None:
    async def talk() -> None:
        sid, pid = start(served)
        url = f"ws://127.0.0.1:{served.port}/s/{sid}/ws"
        number = 0
        for _ in range(6):
            async with ws_connect(url) as ws:
                for _ in range(3):
                    number += 1
                    await ws.send("x")
                    got = ast.literal_eval(await ws.recv())
                    assert got == {"n": number, "pid": pid}
            for text, code, reason in (("close", 4321, "bye"), ("crash", None, "")):
                async with ws_connect(url) as ws:
                    await ws.send(text)
                    with pytest.raises(ConnectionClosed) as closed:
                        await ws.recv()
                received = closed.value.rcvd
                if code is None:
                    assert received is None or received.code == 1011, "a crash is no clean end"
                else:
                    assert received is not None and (received.code, received.reason) == (code, reason)

    asyncio.run(talk())


def test_a_chunked_trailer_cannot_name_a_session(served: Server) -> None:
    sid, _ = start(served)
    for _ in range(4):
        with connect(served) as sock:
            sock.sendall(
                f"POST /s/{sid}/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
                "3\r\nabc\r\n0\r\nX-Trailer: evil\r\nCookie: evil=1\r\n\r\n".encode()
            )
            assert b"evil" not in to_end(sock)


# faults


def kill_owner(running: Server, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}") or _zombie(pid), 5)


def _zombie(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"
    return True


def accepted_elsewhere(running: Server, pid: int) -> socket.socket:
    """A connection that is not that worker's."""
    deadline = time.monotonic() + 20
    others: list[socket.socket] = []  # kept open meanwhile: the worker that is idle takes the next one
    try:
        while time.monotonic() < deadline:
            sock = connect(running)
            sock.sendall(b"GET /pid HTTP/1.1\r\nHost: x\r\n\r\n")
            size = int(re.search(rb"content-length: (\d+)", head_of(sock))[1])  # type: ignore[index]
            body = b""
            while len(body) < size:
                body += sock.recv(size - len(body))
            if json.loads(body)["pid"] != pid:
                return sock
            others.append(sock)
        raise AssertionError("one worker accepts all")
    finally:
        for sock in others:
            sock.close()


@pytest.mark.parametrize("host", list(BOTH))
@pytest.mark.timeout(120)
def test_a_killed_owner_is_gone_before_during_and_after_a_reply(host: str) -> None:
    with server(APP, workers=3, **kwargs(host)) as running:
        kept, kept_pid = start(running)
        while True:
            sid, pid = start(running)
            if pid != kept_pid:
                break
        waiting = [connect(running) for _ in range(4)]  # no byte of the reply sent
        waiting += [accepted_elsewhere(running, pid) for _ in range(2)]
        for sock in waiting:
            sock.sendall(f"GET /s/{sid}/slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        streams = [connect(running) for _ in range(6)]  # the reply has begun
        for sock in streams:
            sock.sendall(f"GET /s/{sid}/stream HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head_of(sock)
        kill_owner(running, pid)
        killed = time.monotonic()
        answers = []
        for sock in waiting:
            with sock, contextlib.suppress(ConnectionResetError):
                answers.append(to_end(sock))
        # The killed worker accepted some of these itself: their connections just end. The others get the gone answer.
        answered = [each for each in answers if each]
        assert answered, "some were accepted by others"
        assert all(b" 410 " in each.partition(b"\r\n")[0] for each in answered)
        for sock in streams:
            with sock, contextlib.suppress(ConnectionResetError):
                data = to_end(sock)
                assert not data.endswith(b"0\r\n\r\n"), "never a clean end"
        for _ in range(12):
            reply = running.fetch("GET", f"/s/{sid}/n")
            assert reply.status == 410
        assert time.monotonic() - killed < 10
        assert running.fetch("GET", f"/s/{kept}/n").status == 200, "every other session is untouched"
        wait_for(lambda: running.started >= 4, 20, "the dead worker is replaced")
        assert running.fetch("GET", f"/s/{sid}/n").status == 410, "gone for the new worker too"


def test_a_child_that_the_app_forked_does_not_keep_the_owner_alive() -> None:
    with server(APP, workers=2, **kwargs("run")) as running:
        sid, pid = start(running)
        child = running.fetch("GET", f"/s/{sid}/fork").json["child"]
        try:
            kill_owner(running, pid)
            began = time.monotonic()
            for _ in range(6):
                assert running.fetch("GET", f"/s/{sid}/n").status == 410
            assert time.monotonic() - began < 5
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_stopped_owner_makes_its_requests_wait_and_serves_them_once() -> None:
    with server(APP, workers=2, **kwargs("run")) as running:
        sid, pid = start(running)
        owner_of(running, sid)
        os.kill(pid, signal.SIGSTOP)
        try:
            socks = []
            for _ in range(6):
                sock = connect(running)
                sock.sendall(f"GET /s/{sid}/n HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                socks.append(sock)
            time.sleep(0.3)
        finally:
            os.kill(pid, signal.SIGCONT)
        numbers = sorted(ast.literal_eval(to_end(sock).partition(b"\r\n\r\n")[2].decode())["n"] for sock in socks)
        for sock in socks:
            sock.close()
        assert numbers == list(range(2, 8)), "each served, none doubled"


def test_100_000_made_up_ids_claim_nothing_where_the_app_mints() -> None:
    count = 100_000 if FULL else 2_000
    with server(APP, workers=2, **kwargs("run")) as running:

        async def flood() -> None:
            async def some(number: int) -> None:
                reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
                for each in range(number, count, 20):
                    writer.write(f"GET /s/made-up-{each:08}/n HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert b" 404 " in head
                    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    await reader.readexactly(length)
                writer.close()

            await asyncio.gather(*(some(number) for number in range(20)))

        asyncio.run(flood())
        assert running.claims() == []


def test_made_up_ids_never_pass_the_cap_where_clients_mint_and_none_is_left_after_the_window() -> None:
    count = 100_000 if FULL else 3_000
    cap = 300
    options = ["--session-id", "header:x-sid mint=client idle=3", "--max-claims", str(cap), "--no-auto"]
    with server(APP, workers=2, options=options) as running:
        statuses: dict[int, int] = {}
        most = 0

        async def flood() -> None:
            nonlocal most

            async def some(number: int) -> None:
                nonlocal most
                reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
                for each in range(number, count, 20):
                    writer.write(f"GET /pid HTTP/1.1\r\nHost: x\r\nX-Sid: made-up-{each:08}\r\n\r\n".encode())
                    head = await reader.readuntil(b"\r\n\r\n")
                    status = int(head.split()[1])
                    statuses[status] = statuses.get(status, 0) + 1
                    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    await reader.readexactly(length)
                    if status == 503:
                        assert b"retry-after" in head.lower()
                    if each % 500 == 0:
                        most = max(most, len(running.claims()))
                writer.close()

            await asyncio.gather(*(some(number) for number in range(20)))

        asyncio.run(flood())
        assert set(statuses) == {200, 503}
        assert most <= 2 * cap
        wait_for(lambda: running.claims() == [], 15, "none is left after the window")
