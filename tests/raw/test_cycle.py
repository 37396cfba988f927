"""The quicker cycle writes what uvicorn's own writes, raises what it raises, and is left in the same state."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sessionworkers.affinity.auto import Auto
from sessionworkers.affinity.ids import claim_key
from sessionworkers.affinity.ruleset import Found, RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import parse_rule
from sessionworkers.claims.memory import MemoryStore
from sessionworkers.hosts import cycle as module
from sessionworkers.hosts.cycle import KNOWN, KnownCycle, QuickCycle, Watched, known
from sessionworkers.ledger.ledger import Ledger
from tests.ledger.test_known import SID, Kit, telling

pytestmark = pytest.mark.skipif(not known(), reason="this uvicorn's cycle is another one, and is used as it is")

DEFAULTS = [(b"date", b"Mon, 30 Nov 2026 10:00:00 GMT"), (b"server", b"uvicorn")]
JSON = (b"content-type", b"application/json")


def head(*headers: Any, status: Any = 200, **more: Any) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers), **more}


def body(data: Any = b"", more: bool | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"type": "http.response.body", "body": data}
    if more is not None:
        message["more_body"] = more
    return message


def length(size: int) -> tuple[bytes, bytes]:
    return (b"content-length", str(size).encode())


class Once:
    """Headers that can be gone through once."""

    def __iter__(self) -> Iterator[Any]:
        yield from [JSON, length(2)]


SEQUENCES: dict[str, list[Any]] = {
    "a length": [head(JSON, length(2)), body(b"{}")],
    "in pieces": [head(length(4)), body(b"ab", True), body(b"", True), body(b"cd", False)],
    "an empty body": [head(length(0)), body()],
    "no length": [head(JSON), body(b"{}")],
    "no length, in pieces": [head(JSON), body(b"ab", True), body(b"cd", True), body()],
    "no headers": [{"type": "http.response.start", "status": 200}, body(b"x")],
    "names in capitals": [
        head((b"Content-Type", b"text/plain"), (b"Content-Length", b"1"), (b"X-A", b"B")),
        body(b"x"),
    ],
    "lists for pairs": [head([b"content-type", b"text/plain"], [b"content-length", b"1"]), body(b"x")],
    "a tuple of headers": [{"type": "http.response.start", "status": 200, "headers": (JSON, length(2))}, body(b"{}")],
    "headers to go through once": [{"type": "http.response.start", "status": 200, "headers": Once()}, body(b"{}")],
    "bytearray": [head((bytearray(b"x-a"), bytearray(b"b")), length(1)), body(bytearray(b"x"))],
    "memoryview": [head(length(3)), body(memoryview(b"abc"))],
    "chunks of every kind": [
        head(JSON),
        body(bytearray(b"ab"), True),
        body(memoryview(b"c" * 300), True),
        body(b"", True),
        body(b"d", False),
    ],
    "chunked, and a length": [head((b"transfer-encoding", b"chunked"), length(3)), body(b"abc", True), body()],
    "a body that is none": [head(JSON), body(None), body(b"x")],
    "204": [head(status=204), body()],
    "304 with a length": [head(length(5), status=304), body()],
    "an unknown status": [head(length(0), status=299), body()],
    "a status that is none": [head(length(0), status=42)],
    "connection: close": [head(length(1), (b"connection", b"keep-alive, Close")), body(b"x")],
    "connection: something else": [head(length(1), (b"connection", b"upgrade")), body(b"x")],
    "chunked by the app": [head((b"transfer-encoding", b"chunked")), body(b"abc", True), body()],
    "both": [head(length(3), (b"transfer-encoding", b"Chunked")), body(b"abc")],
    "two lengths": [head(length(1), length(2)), body(b"x")],
    "a length with a sign": [head((b"content-length", b"+1")), body(b"x")],
    "a length with a nought": [head((b"content-length", b"01")), body(b"x")],
    "a length that is none": [head((b"content-length", b"many")), body(b"x")],
    "too long": [head(length(1)), body(b"ab")],
    "too short": [head(length(3)), body(b"ab")],
    "too long in the second piece": [head(length(3)), body(b"ab", True), body(b"cd", False)],
    "set-cookie twice": [head(length(0), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")), body()],
    "a bad name": [head((b"x y", b"1"), length(0)), body()],
    "a bad value": [head((b"x-a", b"1\r\nx-b: 2"), length(0)), body()],
    "strings": [head(("x-a", "1"), length(0)), body()],
    "a string as value": [head((b"x-a", "1"), length(0)), body()],
    "no pair": [head((b"x-a",), length(0)), body()],
    "a long value": [head((b"x-a", b"v" * 1000), length(0)), body()],
    "trailers announced": [head(length(0), trailers=True), body()],
    "body first": [body(b"x")],
    "head twice": [head(length(1)), head(length(1))],
    "after the end": [head(length(0)), body(), body()],
    "something unknown": [{"type": "http.response.debug"}],
    "something unknown later": [head(length(0)), {"type": "http.response.trailers"}],
    "no type": [{"status": 200}],
    "no status": [{"type": "http.response.start", "headers": [length(0)]}],
    "no body": [head(length(0)), {"type": "http.response.body"}],
}


class Transport:
    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.out.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def run(
    cls: type[RequestResponseCycle], messages: list[Any], method: str, keep_alive: bool, log: Any = None
) -> dict[str, Any]:
    """What came of it."""
    transport, done = Transport(), []
    cycle = cls(
        scope={"type": "http", "method": method, "path": "/p", "raw_path": b"/p", "query_string": b"q=1",
               "client": ("127.0.0.1", 5), "http_version": "1.1", "headers": []},
        transport=transport,  # type: ignore[arg-type]
        flow=FlowControl(transport),  # type: ignore[arg-type]
        logger=logging.getLogger("test"),
        access_logger=log,
        access_log=log is not None,
        default_headers=DEFAULTS,
        message_event=asyncio.Event(),
        expect_100_continue=True,
        keep_alive=keep_alive,
        on_response=lambda: done.append(1),
    )  # fmt: skip
    raised = []
    for message in messages:
        try:
            await cycle.send(message)
        except Exception as error:
            raised.append((type(error), str(error)))
    state = {name: value for name, value in vars(cycle).items() if isinstance(value, (int, str, bytes, type(None)))}
    return {
        "out": transport.out, "closed": transport.closed, "done": done, "raised": raised,
        "event": cycle.message_event.is_set(), **state,
    }  # fmt: skip


LEDGER = Ledger(lambda *_: None, RuleSet([parse_rule("cookie:sid", "r")], Auto()), MemoryStore("me"))  # type: ignore[arg-type, return-value]


class OfASession(KnownCycle):
    """The cycle of a request whose session is known, as the hosts make it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.visit = Watched(LEDGER, None, None, None)  # type: ignore[arg-type]
        self.visit.scope = arguments["scope"]

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return {name: value for name, value in super().__dict__.items() if name != "visit"}


@pytest.mark.parametrize("keep_alive", [True, False], ids=["keep-alive", "close"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("ours", [QuickCycle, KnownCycle, OfASession])
def test_the_same_as_uvicorns(name: str, method: str, keep_alive: bool, ours: type[RequestResponseCycle]) -> None:
    messages = SEQUENCES[name]
    module._lines.clear()
    for _ in ("at first", "once more", "from memory"):
        theirs = asyncio.run(run(RequestResponseCycle, messages, method, keep_alive))
        assert asyncio.run(run(ours, messages, method, keep_alive)) == theirs


def test_the_access_log_too() -> None:
    class Log:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def info(self, text: str, *args: Any) -> None:
            self.lines.append(text % args)

    ours, theirs = Log(), Log()
    for cls, log in ((QuickCycle, ours), (RequestResponseCycle, theirs)):
        asyncio.run(run(cls, SEQUENCES["a length"], "GET", True, log))
    assert ours.lines == theirs.lines == ['127.0.0.1:5 - "GET /p?q=1 HTTP/1.1" 200']


def test_what_is_remembered_is_bounded() -> None:
    module._lines.clear()
    for number in range(3 * module._MOST_LINES):
        assert module._line(b"x-a", b"%d" % number) == b"x-a: %d\r\n" % number
        assert len(module._lines) <= module._MOST_LINES
    assert module._line(b"set-cookie", b"secret") and (b"set-cookie", b"secret") not in module._lines
    module._lines.clear()


def test_another_uvicorn_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not read for this is not replaced."""
    for function in KNOWN:
        with monkeypatch.context() as patch:
            patch.setitem(module.KNOWN, function, "0" * 8)
            assert not known()


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("where", ["json", "header", "cookie", "events", "packed json", "nowhere"])
def test_what_a_known_sessions_reply_tells_is_claimed(where: str, pieces: int) -> None:
    async def main() -> None:
        kit = Kit()
        await kit.ask()
        session = kit.ledger.book.get(claim_key("mine", SID))
        found = kit.ledger.rules.find(RequestView(headers=[(b"cookie", f"sid={SID}".encode())]))
        assert session is not None and isinstance(found, Found)

        async def ask() -> bytes:
            transport = Transport()
            cycle = KnownCycle(
                {"type": "http", "method": "GET", "path": "/", "query_string": b"", "root_path": "", "headers": [
                    (b"cookie", f"sid={SID}".encode())
                ]},
                transport, FlowControl(transport), logging.getLogger("test"), logging.getLogger("test"), False,
                DEFAULTS, asyncio.Event(), False, True, lambda: None,
            )  # type: ignore[arg-type, typeddict-item]  # fmt: skip
            cycle.visit = visit = Watched(kit.ledger, found, session, kit.router)
            await cycle.run_asgi(visit)  # type: ignore[arg-type]
            assert cycle.response_complete and session is not None and session.in_use == 0
            return b"".join(transport.out)

        jobs = [uuid.uuid4().hex for _ in range(3)]
        for job in jobs:  # the same head three times, so that it is looked up at last
            headers, body = telling(where, job) if where != "nowhere" else ([JSON], b'{"word": "-"}')
            if where != "events":
                headers.append(length(len(body)))
            size = -(-len(body) // pieces)
            kit.reply = (headers, [body[at : at + size] for at in range(0, len(body), size)])
            out = await ask()
            told = out.partition(b"\r\n\r\n")[2]
            assert told == body or where == "events"
            claimed = kit.ledger.book.get(claim_key("auto", job))
            assert (claimed is not None) == (where != "nowhere"), job

    asyncio.run(main())


@pytest.mark.parametrize("pieces", [[b""], [b"a"], [b"", b"a"], [b"a", b"bc"], [b"a", b"bc", b"d"]])
def test_what_has_come_of_a_body(pieces: list[bytes]) -> None:
    cycle = RequestResponseCycle.__new__(RequestResponseCycle)
    cycle.body = bytearray()
    for piece in pieces:
        module.take(cycle, piece)
    assert bytes(cycle.body) == b"".join(pieces)
    filled = [piece for piece in pieces if piece]
    assert len(filled) != 1 or bytes(cycle.body) is filled[0]
    assert pieces[0] in (b"", b"a"), "what came is as it was"


def test_an_event_for_who_waits() -> None:
    async def main() -> None:
        told = module.Told()
        waiting = [asyncio.create_task(told.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not told.is_set() and not any(each.done() for each in waiting)
        told.set()
        assert [await each for each in waiting] == [True, True]
        assert told.is_set() and await told.wait()
        told.clear()
        again = asyncio.create_task(told.wait())
        await asyncio.sleep(0)
        assert not again.done()
        told.set()
        assert await again
        assert module.Told(True).is_set() and await module.Told(True).wait()

    asyncio.run(main())
