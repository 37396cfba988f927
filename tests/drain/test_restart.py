"""A rolling restart: sessions stay with their worker to their end, new ones begin on new code, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
from pathlib import Path

import pytest

from benchmarks import rolling_restart
from tests.drain.world import FULL, RULE, client_of, ended_after, restart, serving, state, stream, workers
from tests.harness import server, wait_for
from tests.hosts.client import connect, head_of, start, to_end
from tests.raw.servers import Client, head, held_ports


@pytest.mark.timeout(700 if FULL else 60)
@pytest.mark.parametrize("what", ["hup", "scale", "recycle"])
def test_no_request_and_no_session_is_lost_under_load(what: str) -> None:
    sizes = ["--full"] if FULL else ["--hups", "1", "--every", "5", "--scalings", "4", "--requests", "200"]
    args = rolling_restart.parse([*sizes, "--servers", "sessionworkers"])
    result = asyncio.run(rolling_restart.measure("sessionworkers", what, args))
    count = result.load.count
    assert not count.wrong, count.first
    assert count.lost == 0 and count.ended == count.begun > 0
    assert all(seconds < 0.1 for seconds in result.old_after), "no session began on old code once new code served"
    assert what != "hup" or len(count.releases) == args.hups + 1


def test_a_session_is_served_by_its_draining_worker_to_its_end() -> None:
    with serving(2) as running:
        sid, pid = start(running)
        old = restart(running)
        assert pid in old and pid in workers(running)
        for number in range(1, 6):
            assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}
            assert start(running)[1] not in old
        assert running.fetch("POST", f"/s/{sid}/end").status == 200
        wait_for(lambda: pid not in workers(running), 15, "its worker leaves")
        assert "its time is up" not in running.log


@pytest.mark.parametrize("began", [False, True], ids=["waiting", "in mid-reply"])
def test_a_worker_drains_while_another_one_answers_for_it(began: bool) -> None:
    """Requests whose heads came before, which hop without a cycle of uvicorn's."""
    with serving(2, "--no-handover") as running, contextlib.ExitStack() as stack:
        sid, owner = start(running)
        clients = [client_of(running, stack, lambda pid: pid != owner) for _ in range(4)]
        for client in clients:
            client.send(head(f"/s/{sid}/{'stream' if began else 'slow?seconds=5'}", None))
            while began and b"\r\n\r\n" not in client.held:
                client.more()
        restart(running)
        assert "Traceback" not in running.log
        for client in clients:
            if began:
                client.held = b""
                assert client.more()
            else:
                reply = client.read()
                assert (reply.json["pid"], reply.header("connection")) == (owner, "close")


@pytest.mark.parametrize("before", [0, 3], ids=["", "with a head that came before"])
@pytest.mark.parametrize("local", [True, False], ids=["local", "forwarded"])
@pytest.mark.parametrize("frames", ["raw", "asgi"])
def test_a_connection_in_mid_reply_serves_one_request_more(before: int, local: bool, frames: str) -> None:
    """The head of the reply has gone out without a word of the end: closed after it, the next request would be lost."""
    options = ["--no-handover", *(["--http", "h11"] if frames == "asgi" else [])]
    with serving(2, *options) as running, contextlib.ExitStack() as stack:
        sid, owner = start(running)
        client = client_of(running, stack, lambda pid: (pid == owner) == local)
        client.ask(f"/s/{sid}/n", None)  # the link is up
        request = head(f"/s/{sid}/download?size={16 << 20}", None, "GET", "x-of-its-own: 1")
        for _ in range(before):
            client.send(request)
            assert len(client.read().body) == 16 << 20
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.send(request)
        while b"\r\n\r\n" not in client.held:
            client.more()
        restart(running)
        reply = client.read()
        assert reply.whole and len(reply.body) == 16 << 20 and reply.header("connection") is None
        reply = client.ask(f"/s/{sid}/n", None)
        assert (reply.json["pid"], reply.header("connection")) == (owner, "close")


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_a_connection_is_never_closed_without_a_word(http: str) -> None:
    """One whose request waits for its reply: that says so, or the next one does."""
    with serving(2, "--http", http) as running, Client(running.port) as client:
        sid, _ = start(running)
        client.send(head(f"/s/{sid}/slow?seconds=4", None))
        restart(running)
        reply = client.read()
        if reply.header("connection") is None:
            reply = client.ask(f"/s/{sid}/n", None)
        assert reply.status == 200 and reply.header("connection") == "close" and client.ended()


def test_streams_and_websockets_are_not_cut_and_a_kept_connection_loses_nothing() -> None:
    with serving(2) as running:
        sid, pid = start(running)
        with stream(running, sid) as sse, connect(running) as kept, connect(running) as ws:
            kept.sendall(b"GET /pid HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"connection: close" not in head_of(kept).lower()
            _upgrade(ws, sid)
            old = restart(running)
            begun = time.monotonic()
            while time.monotonic() - begun < 2.0:
                assert sse.recv(65_536)
            assert _echo(ws)["pid"] == pid
            kept.recv(65_536)
            drains = any(kept.getsockname()[1] in held_ports(each) for each in old)
            kept.sendall(b"GET /pid HTTP/1.1\r\nHost: x\r\n\r\n")
            head = head_of(kept).lower()
            assert b" 200 " in head and json.loads(kept.recv(65_536))["pid"]
            assert (b"connection: close" in head) == drains, "where nothing held its worker back it was handed over"
            running.fetch("POST", f"/s/{sid}/end")


def test_the_deadline_ends_what_is_left() -> None:
    with serving(2, "--drain-timeout", "2") as running:
        sid, pid = start(running)
        with stream(running, sid) as sse:
            begun = time.monotonic()
            restart(running)
            to_end(sse)
            assert time.monotonic() - begun > 1.9
        wait_for(lambda: pid not in workers(running), 4, "its worker leaves")
        assert running.fetch("GET", f"/s/{sid}/n").status == 410
        assert "its time is up" in running.log


@pytest.mark.parametrize("what", ["term", "shutdown", "interrupt"])
def test_a_drain_never_holds_the_server_up(what: str) -> None:
    """HUP with an endless stream open, then the end: within its timeout and two seconds; INT twice within two."""
    timeout = 2.0
    options = ["--timeout-graceful-shutdown", str(int(timeout))]
    if what == "shutdown":
        options = ["--shutdown-timeout", str(timeout)]
    with serving(2, *options) as running:
        sid, _ = start(running)
        with stream(running, sid):
            restart(running)
            if what != "interrupt":
                assert ended_after(running, signal.SIGTERM, 10) < timeout + 2.0
                return
            begun = time.monotonic()
            running.signal(signal.SIGINT)
            wait_for(lambda: time.monotonic() - begun > 0.6)
            running.signal(signal.SIGINT)
            running.process.wait(5)
            assert time.monotonic() - begun < 2.0


def test_a_broken_release_changes_nothing(tmp_path: Path) -> None:
    release = tmp_path / "release"
    release.write_text("good")
    env = {"ROLLING_RELEASE": str(release)}
    options = ["--session-id", "path:/s/{id} json:sid start=POST:/s end=POST:/s/{id}/end"]

    with server("benchmarks.rolling_app:app", workers=2, options=options, env=env) as running:
        made = running.fetch("POST", "/s").json
        before = workers(running)
        release.write_text("broken")
        running.signal(signal.SIGHUP)
        number = 0
        while "restart given up" not in running.log:
            number += 1
            assert running.fetch("GET", f"/s/{made['sid']}/n").json["n"] == number
            assert running.fetch("POST", "/s").status == 201
        assert workers(running) == before and {each["state"] for each in state(running)} == {"serving"}
        assert running.fetch("GET", f"/s/{made['sid']}/n").json["pid"] == made["pid"]


def test_close_callbacks_run_once_at_the_deadline(tmp_path: Path) -> None:
    note = tmp_path / "closed"
    module = tmp_path / "closing_app.py"
    module.write_text(
        "import sessionworkers\n"
        "from tests.hosts.app import app as inner\n"
        "async def app(scope, receive, send):\n"
        "    session = sessionworkers.current_session() if scope['type'] == 'http' else None\n"
        "    if session is not None and scope['path'] == '/s':\n"
        f"        session.on_close(lambda: open({str(note)!r}, 'a').write('closed\\n'))\n"
        "    await inner(scope, receive, send)\n"
    )

    env = {"SESSIONWORKERS_SESSION_ID": RULE}
    with server("closing_app:app", workers=2, options=["--drain-timeout", "1"], env=env, cwd=tmp_path) as running:
        for _ in range(4):
            assert running.fetch("POST", "/s").status == 201
        restart(running)
        wait_for(lambda: note.exists() and note.read_text().count("closed") == 4, 10)
    assert note.read_text().count("closed") == 4


def test_the_limit_of_requests_replaces_a_worker_successor_first() -> None:
    with serving(2, "--limit-max-requests", "20") as running:
        before = workers(running)
        sid, pid = start(running)
        for number in range(1, 60):
            assert running.fetch("GET", f"/s/{sid}/n").json == {"n": number, "pid": pid}
        wait_for(lambda: "its successor is due" in running.log, 5)
        wait_for(lambda: running.started > 2, 15)
        assert running.fetch("GET", f"/s/{sid}/n").json["pid"] == pid
        running.fetch("POST", f"/s/{sid}/end")
        wait_for(lambda: not before <= workers(running), 20, "a worn worker leaves")


def test_old_age_replaces_a_worker() -> None:
    with serving(2, "--max-worker-lifetime", "3") as running:
        before = workers(running)
        wait_for(lambda: not before & workers(running), 20, "both were replaced")
        assert "s old, its successor is due" in running.log


def _upgrade(sock: socket.socket, sid: str) -> None:
    sock.sendall(
        f"GET /s/{sid}/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert b" 101 " in head_of(sock)


def _echo(sock: socket.socket) -> dict[str, int]:
    sock.sendall(bytes([0x81, 0x82]) + bytes(4) + b"xx")
    frame = sock.recv(4096)
    got: dict[str, int] = json.loads(frame[2 : 2 + frame[1]])
    return got
