"""The hop's contract, over ASGI frames, raw frames and hand-over, on asyncio and uvloop."""

from __future__ import annotations

import json
import socket
import time

import pytest

from tests.raw.servers import Client, Pair, head, wait


def test_the_app_sees_what_it_would_see_without_a_hop(two: Pair) -> None:
    lines = ("X-Odd: caf\xe9", "cookie: b=2; a=1", "x-odd: again", "accept: */*")
    path = "/a%2Fb/%C3%A4?x=1&y=%20&x=2"
    told = []
    for door in range(2):
        with Client(two.doors[door]) as client:
            for _ in range(4):
                found = client.ask(path, two.sids[1], "PATCH", *lines, body=b"body").json
            assert found.pop("client") == ["127.0.0.1", client.port]
            assert found.pop("server") == ["127.0.0.1", two.doors[door]]
            told.append(found)
    assert told[0] == told[1]
    assert told[0]["worker"] == told[0]["mine"] == "1"


def test_a_kept_connection_changes_between_sessions(two: Pair) -> None:
    with Client(two.doors[0]) as client:
        for owner in (0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1):
            assert client.ask("/", two.sids[owner]).json["worker"] == str(owner)
        assert client.ask("/", None).status == 200


@pytest.mark.parametrize("before", [0, 2, 5])
def test_pipelined_requests_are_answered_in_order(two: Pair, before: int) -> None:
    owners = [1, 0, 1, 1, 0, 1, 1, 1, 1]
    with Client(two.doors[0]) as client:
        for _ in range(before):
            client.ask("/", two.sids[1])
        client.send(b"".join(head(f"/{n}", two.sids[owner]) for n, owner in enumerate(owners)))
        replies = [client.read().json for _ in owners]
    assert [(reply["path"], reply["worker"]) for reply in replies] == [(f"/{n}", str(o)) for n, o in enumerate(owners)]


@pytest.mark.parametrize("before", [0, 2, 5])
@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_head_in_pieces(two: Pair, before: int, size: int) -> None:
    with Client(two.doors[0]) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(before):
            client.ask("/", two.sids[1])
        for _ in range(2):
            data = head("/piece", two.sids[1], "POST", "content-length: 5") + b"hello"
            for at in range(0, len(data), size):
                client.send(data[at : at + size])
                time.sleep(0.002)
            found = client.read().json
            assert (found["worker"], found["size"], found["path"]) == ("1", 5, "/piece")


def test_a_pipelined_head_in_pieces(two: Pair) -> None:
    with Client(two.doors[0]) as client:
        for _ in range(2):
            client.ask("/", two.sids[1])
        data = head("/one", two.sids[1]) + head("/two", two.sids[1]) + head("/three", two.sids[1])
        for at in range(0, len(data), 33):
            client.send(data[at : at + 33])
            time.sleep(0.002)
        assert [client.read().json["path"] for _ in range(3)] == ["/one", "/two", "/three"]


def test_the_connection_ends_when_it_should(two: Pair) -> None:
    with Client(two.doors[0]) as client:
        reply = client.ask("/", two.sids[1], "GET", "connection: close")
        assert (reply.json["worker"], reply.header("connection")) == ("1", "close")
        assert client.ended()
    with Client(two.doors[0]) as client:
        client.send(head("/", two.sids[1], version="1.0"))
        reply = client.read()
        assert (reply.json["worker"], reply.json["http_version"]) == ("1", "1.0")
        assert client.ended()
    with Client(two.doors[0]) as client:
        assert client.ask("/closing", two.sids[1]).body == b"bye"
        assert client.ended()


def test_replies_without_a_body(two: Pair) -> None:
    with Client(two.doors[0]) as client:
        for _ in range(2):
            assert client.ask("/big?n=100", two.sids[1], "HEAD").header("content-length") == "100"
            assert client.ask("/empty", two.sids[1]).status == 204
            assert client.ask("/empty?status=304", two.sids[1]).status == 304
            assert client.ask("/?status=404", two.sids[1]).status == 404
            assert client.ask("/", two.sids[1]).json["worker"] == "1"


@pytest.mark.parametrize("before", [0, 2])
def test_expect_continue(two: Pair, before: int) -> None:
    with Client(two.doors[0]) as client:
        for _ in range(before):
            client.ask("/", two.sids[1])
        client.send(head("/", two.sids[1], "POST", "expect: 100-continue", "content-length: 4"))
        assert client.read().status == 100
        client.send(b"body")
        assert client.read().json["size"] == 4
        client.send(head("/early", two.sids[1], "POST", "expect: 100-continue", "content-length: 4"))
        assert client.read().body == b"early 1"  # the app did not ask for it, so no 100


@pytest.mark.parametrize("size", [1, 20_000, 70_000, 200_000, 3_000_000])
def test_uploads(two: Pair, size: int) -> None:
    import hashlib

    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    with Client(two.doors[0]) as client:
        for _ in range(4):
            found = client.ask("/", two.sids[1], "POST", body=body).json
            assert (found["worker"], found["size"]) == ("1", size)
            assert found["hash"] == hashlib.sha256(body).hexdigest()
        client.send(head("/", two.sids[1], "PUT", "transfer-encoding: chunked"))
        for at in range(0, size, 50_000):
            piece = body[at : at + 50_000]
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        client.send(b"0\r\nx-session: trailer\r\n\r\n")
        found = client.read().json
        assert (found["worker"], found["size"], found["hash"]) == ("1", size, hashlib.sha256(body).hexdigest())
        assert sum(name == "x-session" for name, _ in found["headers"]) == 1  # the trailer stayed out


@pytest.mark.parametrize("owner", [0, 1])
def test_an_app_that_does_not_read_holds_the_client_back(two: Pair, owner: int) -> None:
    name, most = f"unread{time.monotonic()}", 40_000_000
    with Client(two.doors[0]) as client:
        client.send(head(f"/deaf?name={name}", two.sids[owner], "POST", f"content-length: {2 * most}") + b"x")
        wait(lambda: f"deaf {name}" in two.seen(owner)["seen"], "the app has it")
        sent = 0
        client.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while sent < most:
                sent += client.sock.send(b"x" * 100_000)
        assert sent < most


@pytest.mark.parametrize("owner", [0, 1])
def test_the_rest_of_a_body_that_was_answered_early_is_passed_over(two: Pair, owner: int) -> None:
    with Client(two.doors[0]) as client:
        for _ in range(3):
            client.send(head("/early", two.sids[owner], "POST", "content-length: 400000") + b"x" * 150_000)
            assert client.read().body == f"early {owner}".encode()
            for _ in range(5):
                client.send(b"x" * 50_000)
            assert client.ask("/", two.sids[owner]).json["worker"] == str(owner)


def test_a_reply_that_does_not_wait_for_the_body(two: Pair) -> None:
    with Client(two.doors[0]) as client:
        client.send(head("/early", two.sids[1], "POST", "content-length: 10"))
        assert client.read().body == b"early 1"
        client.send(b"0123456789")
        assert client.ask("/", two.sids[1]).json["worker"] == "1"


@pytest.mark.parametrize("size", [1, 8_192, 70_000, 5_000_000])
def test_large_replies(two: Pair, size: int) -> None:
    with Client(two.doors[0]) as client:
        for _ in range(4):
            reply = client.ask(f"/big?n={size}", two.sids[1])
            assert reply.whole and len(reply.body) == size and set(reply.body[1:]) <= {ord("x")}
        assert client.ask("/", two.sids[1]).json["worker"] == "1"


def test_a_stalled_client_holds_the_app_back(two: Pair) -> None:
    with Client(two.doors[0]) as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.send(head("/flood?n=600", two.sids[1]))
        wait(lambda: two.seen(1)["sent"] > 2, "it began")
        before = -1
        while before != (before := two.seen(1)["sent"]):
            time.sleep(0.3)
        assert before < 300, "40 MB would wait somewhere"
        with Client(two.doors[0]) as other:
            assert other.ask("/", two.sids[1]).json["worker"] == "1"
        reply = client.read()
        assert reply.whole and len(reply.body) == 600 * 65536


def test_a_stream_comes_as_it_is_made(two: Pair) -> None:
    for accept in ("text/event-stream", "*/*"):
        with Client(two.doors[0]) as client:
            client.send(head("/stream?n=4", two.sids[1], "GET", f"accept: {accept}"))
            while b"data: 0" not in client.held:
                assert client.more()
            assert b"data: 3" not in client.held
            reply = client.read()
            assert reply.whole and reply.body.endswith(b"data: 3 1\n\n")
            assert client.ask("/", two.sids[1]).json["worker"] == "1"


@pytest.mark.parametrize("started", ["", "&started=1"])
@pytest.mark.parametrize("before", [0, 4])
def test_the_app_is_told_that_the_client_left(two: Pair, started: str, before: int) -> None:
    name = f"{bool(started)}{before}{time.monotonic()}"
    with Client(two.doors[0]) as client:
        for _ in range(before):
            client.ask("/", two.sids[1])
        client.send(head(f"/hang?name={name}{started}", two.sids[1]))
        wait(lambda: f"waiting {name}" in two.seen(1)["seen"], "the app has it")
    wait(lambda: f"gone {name}" in two.seen(1)["seen"], "the app was told", 3)


def test_an_app_that_raises(two: Pair) -> None:
    with Client(two.doors[0]) as client:
        reply = client.ask("/crash", two.sids[1])
        assert (reply.status, reply.body) == (500, b"Internal Server Error")
    with Client(two.doors[0]) as client:
        reply = client.ask("/crash?late=1", two.sids[1])
        assert (reply.status, reply.body, reply.whole) == (200, b"begun", False)


def test_a_request_that_is_no_http(two: Pair) -> None:
    for before in (0, 3):
        with Client(two.doors[0]) as client:
            for _ in range(before):
                client.ask("/", two.sids[1])
            client.send(b"NONSENSE\r\n\r\n")
            assert client.read().status == 400
            assert client.ended()


def test_no_line_of_the_log_holds_an_id(two: Pair) -> None:
    sid = two.new(1)
    with Client(two.doors[0]) as client:
        assert client.ask(f"/logged?s={sid}", sid).json["worker"] == "1"
    wait(lambda: "/logged?s=" in two.log(0) + two.log(1), "it is logged")
    lines = [line for line in (two.log(0) + two.log(1)).splitlines() if "/logged?s=" in line]
    assert len(lines) == 1 and lines[0] in two.log(0)
    assert sid not in two.log(0) + two.log(1)
    assert f"127.0.0.1:{client.port}" in lines[0] and "hop " in lines[0]


def test_half_closed_clients_get_their_reply(two: Pair) -> None:
    with Client(two.doors[0]) as client:
        client.send(head("/", two.sids[1]))
        client.sock.shutdown(socket.SHUT_WR)
        if two.mechanism == "frames":
            return  # uvicorn closes at once; a plain app on this worker may be faster, a hop is not
        assert client.read().json["worker"] == "1"
        assert client.ended()


def test_json(two: Pair) -> None:
    """What the helper says about itself: replies of `what` are JSON of one worker."""
    with Client(two.doors[1]) as client:
        assert json.loads(client.ask("/", two.sids[1]).body)["mine"] == "1"
