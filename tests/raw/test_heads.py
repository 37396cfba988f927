"""A head that was parsed before is not parsed again, and the app cannot tell.

Both protocols get the same packets, uvicorn's (with no trailers in the headers) as the measure, and an app that notes
what it is given and spoils it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from sessionworkers.errors import FrameError
from sessionworkers.hop.codec import (
    open_again,
    packed_fields,
    packed_line,
    packed_peer,
    read_again,
    read_packed_fields,
    read_packed_line,
    read_packed_peer,
)
from sessionworkers.hosts import heads as module
from sessionworkers.hosts.cycle import known
from sessionworkers.hosts.heads import LONGEST, MOST, Heads
from sessionworkers.hosts.protocol import PlainHttpToolsProtocol, SessionHttpToolsProtocol

pytestmark = pytest.mark.skipif(not known(), reason="this uvicorn's protocol is another one, and is used as it is")


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """`Config` sets the loggers' levels for the whole process."""
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def get(path: str = "/a?b=1", *lines: str, method: str = "GET", version: str = "1.1") -> bytes:
    head = [f"{method} {path} HTTP/{version}", "Host: here", *lines, "", ""]
    return "\r\n".join(head).encode("latin-1")


def post(body: bytes, *lines: str, path: str = "/rpc", method: str = "POST") -> bytes:
    return get(path, *lines, f"Content-Length: {len(body)}", method=method) + body


KEPT = {
    "a GET": get(),
    "a cookie": get("/", "Cookie: sid=abc", "Accept: */*"),
    "escapes in the path": get("/a%20b/%C3%A4?x=%20"),
    "keep-alive in words": get("/", "Connection: Keep-Alive"),
    "a name in capitals": get("/", "X-TOKEN: AbC", "x-token: two"),
    "a POST": post(b'{"a": 1}'),
    "a POST without a body": post(b""),
    "a DELETE": get("/s/1", method="DELETE"),
    "HEAD": get("/", method="HEAD"),
}
PARSED = {
    "HTTP/1.0": get("/", version="1.0"),
    "HTTP/1.0 kept alive": get("/", "Connection: keep-alive", version="1.0"),
    "an upgrade to nothing known": get("/", "Connection: upgrade", "Upgrade: h2c"),
    "connection: with more": get("/", "Connection: keep-alive, x"),
    "expect": post(b"abc", "Expect: 100-continue"),
    "chunked": get("/", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n",
    "trailers": get("/", "Transfer-Encoding: chunked", method="POST") + b"1\r\na\r\n0\r\nX-T: 1\r\n\r\n",
    "a long head": get("/", "X-Long: " + "v" * LONGEST),
    "a GET with a body": get("/", "Content-Length: 2") + b"hi",
    "a PUT": post(b"abc", method="PUT"),
    "a long body": post(b"x" * (module.MOST_BODY + 1)),
}
LAST = {
    "connection: close": get("/", "Connection: close"),
    "no HTTP": b"nonsense\r\n\r\n",
    "a bad length": get("/", "Content-Length: many", method="POST") + b"abc",
    "two lengths": get("/", "Content-Length: 1", "Content-Length: 2", method="POST") + b"ab",
}


class Transport:
    def __init__(self) -> None:
        self.out = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.out += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1234), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def set_protocol(self, protocol: Any) -> None: ...

    pause_reading = resume_reading = abort = lambda self: None

    def get_write_buffer_size(self) -> int:
        return 0


class App:
    """Notes what it gets, and changes it."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        self.got.append(({**scope, "headers": list(scope["headers"]), "state": dict(scope["state"])}, body))
        scope["headers"].append((b"x-spoiled", b"1"))
        scope["path"] += "/spoiled"
        scope["state"]["spoiled"] = True
        scope["asgi"]["spoiled"] = True
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


async def run(protocol: Any, connections: list[list[bytes]], heads: Heads | None) -> list[Any]:
    """What the app got and the client was answered; each packet waits for what the one before has caused."""
    app, found = App(), []
    config = Config(app, root_path="/root", log_level="critical", log_config=None)
    config.load()
    config.loaded_app = app
    config.accepting = None  # type: ignore[attr-defined]
    config.heads = heads  # type: ignore[attr-defined]
    state = ServerState()
    state.default_headers = [(b"server", b"x")]
    for packets in connections:
        transport = Transport()
        served = protocol(config, state, {"from": "lifespan"}, asyncio.get_running_loop())
        served.connection_made(transport)
        for packet in packets:
            if transport.closed:
                break
            served.data_received(packet)
            for _ in range(8):
                await asyncio.sleep(0)
        closed = transport.closed
        served.connection_lost(None)
        found.append((transport.out, closed))
    return [app.got, found]


def same(connections: list[list[bytes]]) -> Heads:
    """Runs them under both; the heads that were kept."""
    heads = Heads("/root")
    theirs = asyncio.run(run(PlainHttpToolsProtocol, connections, None))
    ours = asyncio.run(run(SessionHttpToolsProtocol, connections, heads))
    assert ours == theirs
    return heads


@pytest.mark.parametrize("name", KEPT)
def test_a_head_is_kept_at_its_second_sight(name: str) -> None:
    packet = KEPT[name]
    assert len(same([[packet]])) == 0
    assert len(same([[packet] * 5])) == 1
    assert len(same([[packet]] * 5)) == 1, "connections share them"


@pytest.mark.parametrize("name", [*PARSED, *LAST])
def test_what_means_more_than_its_bytes_is_parsed_each_time(name: str) -> None:
    packet = {**PARSED, **LAST}[name]
    kept = same([[packet] * 4, [get(), packet, get(), packet, get()], [packet]])
    assert kept.get(packet) is None and kept.find(packet) is None and len(kept) <= 1


def test_a_body_is_not_taken_for_granted() -> None:
    """The same head with its body in another packet, cut short, or with more behind it."""
    head, body = post(b"")[: -len("Content-Length: 0\r\n\r\n")] + b"Content-Length: 4\r\n\r\n", b"abcd"
    whole = head + body
    same([[whole, whole, whole, head, body, whole, head + b"ab", b"cd", whole, whole + get(), whole + whole, whole]])
    bodied = get("/", "Content-Length: 2")
    same([[bodied + b"hi"] * 3 + [bodied, b"ho", bodied + b"hi", get()]])


def test_a_head_in_pieces_is_not_mistaken() -> None:
    packet = get()
    for cut in range(1, len(packet)):
        same([[packet] * 3 + [packet[:cut], packet[cut:], packet, packet[:cut], packet[cut:] + packet, packet]])


def test_a_head_within_a_body_is_not_mistaken() -> None:
    inner = get()
    outer = get("/", f"Content-Length: {len(inner)}", method="PUT")
    same([[inner] * 3 + [outer, inner, inner]])


@pytest.mark.parametrize("seed", range(30))
def test_any_order_and_any_cut(seed: int) -> None:
    rng = random.Random(seed)
    good = [*KEPT.values(), *(PARSED[each] for each in ("chunked", "trailers", "a GET with a body", "a PUT"))]
    few = rng.sample(good, 5)
    connections = []
    for _ in range(4):
        packets = rng.choices(few, k=30)
        stream: list[bytes] = []
        for packet in packets:
            cut = rng.randrange(1, len(packet))
            stream += rng.choice([[packet]] * 4 + [[packet[:cut], packet[cut:]]])
            if rng.random() < 0.15 and len(stream) > 1:
                stream[-2:] = [stream[-2] + stream[-1]]
        connections.append(stream)
    same(connections)


def test_what_is_kept_is_bounded() -> None:
    heads = Heads()
    for number in range(3 * MOST):
        packet = get(f"/{number}")
        for _ in range(2):
            if heads.seen(packet):
                scope = {
                    "method": "GET", "path": f"/{number}", "raw_path": b"", "query_string": b"", "http_version": "1.1",
                    "headers": [(b"host", b"here")],
                }  # fmt: skip
                heads.keep(packet, scope)
        assert len(heads) <= MOST and len(heads._marks) <= 4 * MOST
    assert heads.get(get(f"/{3 * MOST - 1}")) is not None


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 70_000])
def test_a_head_that_came_before_travels_in_parts(body: bytes) -> None:
    headers = ((b"host", b"here"), (b"cookie", b"sid=\xff" + b"a" * 40))
    head = ("POST", "/ä/b", b"/%C3%A4/b", b"q=1")
    for client, server in ((("127.0.0.1", 54321), ("::1", 80)), (None, ("/run/app.sock", None))):
        line, peer = packed_line(*head), packed_peer(client, server, "http")
        packed = line + packed_fields(headers)
        frame = open_again(7, 3, packed, len(line), peer, body)
        assert read_again(frame[9:]) == (3, packed, len(line), peer, body)
        assert read_packed_line(line) == head
        assert read_packed_fields(packed[len(line) :]) == list(headers)
        assert read_packed_peer(peer) == (client, server, "http")
        for size in (0, 4, 30, len(frame) - 9 - len(body) - 1):
            with pytest.raises(FrameError):
                read_again(frame[9 : 9 + size])


def test_the_running_one_of_pipelined_requests_is_told_that_its_client_is_gone() -> None:
    async def main() -> None:
        told: list[str] = []
        go = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await go.wait()
            told.append((await receive())["type"])
            await send({"type": "http.response.start", "status": 200, "headers": []})

        config = Config(app, log_level="critical", log_config=None)
        config.load()
        config.loaded_app = app
        config.accepting = config.heads = None  # type: ignore[attr-defined]
        protocol = SessionHttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())
        transport = Transport()
        protocol.connection_made(transport)  # type: ignore[arg-type]
        protocol.data_received(get() + get())
        await asyncio.sleep(0)
        transport.closed = True
        protocol.connection_lost(ConnectionResetError())
        go.set()
        while protocol.tasks:
            await asyncio.sleep(0)
        assert told == ["http.disconnect"] and transport.out == b""

    asyncio.run(asyncio.wait_for(main(), 10))


def like(line: str, body: bytes = b"") -> bytes:
    """A request that differs from others of its kind in its first line alone."""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{line}\r\nHost: here\r\nCookie: sid=abc\r\n{length}\r\n".encode("latin-1") + body


ORDINARY = [
    "GET / HTTP/1.1", "GET /a/b/c HTTP/1.1", "GET /a? HTTP/1.1", "GET /?a=1&b=2 HTTP/1.1", "DELETE /s/1;v=2 HTTP/1.1",
    "GET /%C3%A4/%20?q=%C3%A4 HTTP/1.1", "GET /%zz%?%zz% HTTP/1.1", "GET /a//b/../c HTTP/1.1", "OPTIONS /-._~ HTTP/1.1",
    "GET /!$&'()*+,;=:@?!$&'()*+,;=:@/ HTTP/1.1", "HEAD /a HTTP/1.1", "PUT /a HTTP/1.1", "PATCH /a HTTP/1.1",
    "POST /a HTTP/1.1",
]  # fmt: skip
EXTRAORDINARY = [
    "GET /a?b?c HTTP/1.1", "GET /a#f HTTP/1.1", "GET /a?b#c HTTP/1.1", "GET //other/a HTTP/1.1", "GET * HTTP/1.1",
    "GET http://other/a?b HTTP/1.1", "GET /ä HTTP/1.1", "GET /a|b HTTP/1.1", "GET /a\\b HTTP/1.1", "GET /a\"b HTTP/1.1",
    "GET /a b HTTP/1.1", "GET  /a HTTP/1.1", "GET /a  HTTP/1.1", "GET\t/a HTTP/1.1", "GET /a HTTP/1.1 ",
    " GET /a HTTP/1.1",
    "GET /a HTTP/1.0", "GET /a HTTP/1.2", "GET /a HTTP/2.0", "GET /a http/1.1", "GET /a", "get /a HTTP/1.1",
    "GETS /a HTTP/1.1", "TRACE /a HTTP/1.1", "CONNECT other:1 HTTP/1.1", "GET /a\x00 HTTP/1.1", "GET /a\x7f HTTP/1.1",
    "GET /a\rb HTTP/1.1", "GET /a\nX: y HTTP/1.1", "", "GET a HTTP/1.1", "GET ?a HTTP/1.1",
]  # fmt: skip


@pytest.mark.parametrize("line", [*ORDINARY, *EXTRAORDINARY])
def test_a_first_line_of_its_own(line: str) -> None:
    before = [like("GET /1 HTTP/1.1"), like("GET /2?x HTTP/1.1"), like("GET /3 HTTP/1.1")]
    packet = like(line)
    kept = same([[*before, packet, like("GET /4 HTTP/1.1")]])
    assert (kept.find(packet) is not None) == (line in ORDINARY)
    same([[*before, *[packet] * 4, *before, packet]])
    bodied = [like(f"POST /{number} HTTP/1.1", b"abc") for number in range(3)]
    same([[*bodied, like(line, b"xyz"), like("POST /x HTTP/1.1", b"def")]])


@pytest.mark.parametrize("seed", range(20))
def test_any_first_line(seed: int) -> None:
    rng = random.Random(seed)
    before = [like(f"GET /{number} HTTP/1.1") for number in range(3)]
    connections = []
    for _ in range(60):
        path = "".join(rng.choices([*map(chr, range(33, 127)), "/", "?", "%", "a", "ä"], k=rng.randrange(12)))
        line = f"{rng.choice(['GET', 'GET', 'DELETE', 'POST', 'PURGE'])} /{path} HTTP/1.1"
        connections.append([*before, like(line), before[0]])
    same(connections)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_first_lines(seed: int) -> None:
    rng = random.Random(seed)
    lines = rng.sample([*ORDINARY, *EXTRAORDINARY[:14]], 6)
    connections = []
    for _ in range(6):
        packets = [like(line, rng.choice([b"", b"", b"abc", b"x" * 90_000])) for line in rng.choices(lines, k=20)]
        stream: list[bytes] = []
        for packet in packets:
            cut = rng.randrange(1, len(packet))
            stream += rng.choice([[packet]] * 4 + [[packet[:cut], packet[cut:]]])
        connections.append(stream)
    same(connections)
