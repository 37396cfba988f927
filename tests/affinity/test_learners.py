"""Every learner: heads, bodies in pieces, packed bodies, WebSocket messages."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable

import pytest

from sessionworkers.affinity.carriers import parse_carrier
from sessionworkers.affinity.learners import Learner, OnlyTo, derived, parse_learner
from sessionworkers.affinity.presets import PRESETS, PresetContext
from sessionworkers.affinity.scanners import MAX_HTML, EventScanner, JsonScanner, PatternScanner
from sessionworkers.affinity.views import ReplyView, RequestView

UUID = "550e8400-e29b-41d4-a716-446655440000"


def reply(kind: str = "", status: int = 200, **headers: str) -> ReplyView:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return ReplyView(status, ([(b"Content-Type", kind.encode())] if kind else []) + lines)


HEADS = [
    ("header:Mcp-Session-Id", reply(mcp_session_id="abc"), ["abc"]),
    ("header:mcp-session-id", ReplyView(200, [(b"Mcp-Session-Id", b"abc")]), ["abc"]),
    ("header:mcp-session-id", reply(), []),
    ("cookie:sid", reply(set_cookie="sid=abc; Path=/"), ["abc"]),
    ("cookie:sid", reply(set_cookie="other=abc"), []),
    ("cookie:sid", reply(set_cookie="sid=abc; Max-Age=0"), []),
    ("starlette-cookie:s/session_id", reply(set_cookie="s=eyJzZXNzaW9uX2lkIjogImFiYyJ9.x.y; path=/"), ["abc"]),
    ("starlette-cookie:s", reply(set_cookie="s=eyJ1c2VyIjogMX0=.x.y; path=/"), []),
    ("starlette-cookie:s", reply(set_cookie="s=null; path=/"), []),
    ("location:path:/jobs/{id}", reply(location="/jobs/17?x=1"), ["17"]),
    ("location:path:/jobs/{id}", reply(location="https://host:8000/jobs/a%2Bb"), ["a+b"]),
    ("location:query:sid", reply(location="/x?sid=abc"), ["abc"]),
    ("location:path:/jobs/{id}", reply(location="http://[bad"), []),
    ("location:path:/jobs/{id}", reply(), []),
]


@pytest.mark.parametrize(("word", "view", "expected"), HEADS)
def test_from_head(word: str, view: ReplyView, expected: list[str]) -> None:
    learner = parse_learner(word)
    assert list(learner.from_head(view)) == expected
    assert learner.scanner(view) is None
    assert list(learner.from_message(0, "{}")) == []


def feed(learner: Learner, view: ReplyView, pieces: Iterable[bytes]) -> list[list[str]] | None:
    """What each piece gave; None if the body is not read."""
    scanner = learner.scanner(view)
    if scanner is None:
        return None
    pieces = list(pieces)
    return [list(scanner.feed(piece, index < len(pieces) - 1)) for index, piece in enumerate(pieces)]


DOCUMENT = b'{"session_id": "abc", "n": 1}'
SSE = "text/event-stream"
BODIES = [
    # word, head, pieces, what each gives
    ("json:session_id", reply("application/json"), [DOCUMENT], [["abc"]]),
    ("json:session_id", reply("application/json", content_length="29"), [DOCUMENT, b""], [["abc"], []]),
    ("json:session_id", reply("application/json"), [DOCUMENT + b"\n", b""], [["abc"], []]),
    ("json:session_id", reply("application/json"), [DOCUMENT[:10], DOCUMENT[10:], b""], [[], ["abc"], []]),
    ("json:session_id", reply("application/json"), [b"", DOCUMENT, b"", b""], [[], ["abc"], [], []]),
    ("json:session_id", reply("application/json"), [b"[1]"], [[]]),
    ("json:session_id", reply("application/problem+json"), [DOCUMENT], [["abc"]]),
    ("json:session_id", reply("text/html"), [DOCUMENT], None),
    ("json:session_id", reply("application/json", content_length="9999999"), [DOCUMENT], None),
    ("json:session_id", reply("application/json", content_encoding="br"), [DOCUMENT], None),
    ("json:session_id", reply("application/json", content_encoding="gzip"), [gzip.compress(DOCUMENT)], [["abc"]]),
    ("json:session_id", reply("application/json", content_encoding="deflate"), [zlib.compress(DOCUMENT)], [["abc"]]),
    (
        "json:session_id",
        reply("application/json", content_encoding="deflate"),
        [zlib.compress(DOCUMENT)[2:-4]],
        [["abc"]],
    ),
    ("json:session_id", reply("application/json", content_encoding="gzip"), [DOCUMENT], [[]]),
    ("json:session_id", reply(SSE), [b'data: {"session_id": "abc"}\n\n', b"data: x\n\n"], [["abc"], []]),
    ("json:data.id", reply("application/json"), [b'{"data": {"id": 17}}'], [["17"]]),
    ("sse:query:session_id", reply(SSE), [b"event: endpoint\r\ndata: /m/?session_id=a1\r\n\r\n"], [["a1"]]),
    (
        "sse:query:session_id",
        reply(SSE),
        [b": ping\n\nevent: endpoint\ndata: /m/?session_", b"id=a1\n\n"],
        [[], ["a1"]],
    ),
    ("sse:query:session_id", reply(SSE), [b"data: \n\ndata: /m?session_id=a1\n\n", b""], [["a1"], []]),
    ("sse:query:session_id", reply(SSE), [b"data: /m?session_id=a1\r", b"\n\r", b"\n"], [[], [], ["a1"]]),
    ("sse:query:session_id", reply(SSE), [b"data: hello\n\ndata: /m?session_id=a1\n\n"], [[]]),
    ("sse:query:session_id", reply("text/plain"), [b""], None),
    ("engineio:", reply("text/plain; charset=UTF-8"), [b'0{"sid":"aB-1","upgrades":[]}'], [["aB-1"]]),
    ("engineio:", reply("text/plain"), [b'40{"sid":"s1"}\x1e40/admin,{"sid":"s2"}\x1e42["x"]'], [["s1", "s2"]]),
    ("engineio:", reply("text/plain"), [b'97:0{"sid":"old","upgrades":[]}2:40'], [["old"]]),
    ("engineio:", reply("text/plain"), [b'42["x",{"sid":"no"}]'], [[]]),
    ("engineio:", reply("application/json"), [b""], None),
    ("html:x='([a-z]+)'", reply("text/html; charset=utf-8"), [b"<p>x=", b"'abc'</p>"], [[], ["abc"]]),
    ("html:x='([a-z]+)'", reply("text/html", content_encoding="gzip"), [gzip.compress(b"<p>x='abc'</p>")], [["abc"]]),
    ("html:x='([a-z]+)'", reply("text/html"), [b" " * MAX_HTML + b"x='abc'"], [[]]),
    ("html:x='([a-z]+)'", reply("application/json"), [b""], None),
]


@pytest.mark.parametrize(("word", "view", "pieces", "expected"), BODIES)
def test_from_body(word: str, view: ReplyView, pieces: list[bytes], expected: list[list[str]] | None) -> None:
    assert feed(parse_learner(word), view, pieces) == expected


@pytest.mark.parametrize("size", [1, 2, 7])
def test_bodies_in_small_pieces(size: int) -> None:
    for word, view, pieces, expected in BODIES:
        whole = b"".join(pieces)
        if expected is None or not whole:
            continue
        cut = [whole[i : i + size] for i in range(0, len(whole), size)]
        given = feed(parse_learner(word), view, cut)
        assert given is not None
        # Many tiny pieces may tell it later, but never another ID, and never after the last piece.
        assert [id for piece in given for id in piece] == [id for piece in expected for id in piece], (word, whole)


def test_gzip_in_pieces_tells_with_the_piece_that_completes_it() -> None:
    packer = zlib.compressobj(wbits=31)
    first = packer.compress(b'{"session_id": "abc"') + packer.flush(zlib.Z_SYNC_FLUSH)
    second = packer.compress(b"}") + packer.flush(zlib.Z_SYNC_FLUSH)
    last = packer.flush()
    view = reply("application/json", content_encoding="gzip")
    assert feed(parse_learner("json:session_id"), view, [first, second, last]) == [[], ["abc"], []]


MESSAGES = [
    ("json:session_id", 0, '{"session_id": "abc"}', ["abc"]),
    ("json:session_id", 0, b'{"session_id": "abc"}', ["abc"]),
    ("json:session_id", 0, "hello", []),
    ("engineio:", 0, '0{"sid":"abc","upgrades":[]}', ["abc"]),
    ("engineio:", 2, '40/chat,{"sid":"s9"}', ["s9"]),
    ("engineio:", 0, "3probe", []),
    ("engineio:", 0, b"\x00\x01", []),
    ("sse:query:x", 0, "data: /?x=1", []),
]


@pytest.mark.parametrize(("word", "index", "data", "expected"), MESSAGES)
def test_from_message(word: str, index: int, data: str | bytes, expected: list[str]) -> None:
    assert list(parse_learner(word).from_message(index, data)) == expected


def test_only_to_paths() -> None:
    learner = parse_learner("json:event_id@/queue/join,/call/*")
    assert isinstance(learner, OnlyTo)
    assert learner.applies(RequestView("POST", "/queue/join"))
    assert learner.applies(RequestView("POST", "/call/predict"))
    assert not learner.applies(RequestView("POST", "/queue/data"))
    assert learner.word == "json:event_id@/queue/join,/call/*"


DERIVED = [
    ("header:x-session", ["header:x-session"]),
    ("header:authorization", []),
    ("cookie:sid", ["cookie:sid"]),
    ("starlette-cookie:session/session_id", ["starlette-cookie:session/session_id"]),
    ("json:a.b", ["json:a.b"]),
    ("json:a@/x", ["json:a"]),
    ("path:/jobs/{id}", ["location:path:/jobs/{id}"]),
    ("query:sid", ["location:query:sid"]),
    ("token:x-t/sid", []),
    ("engineio:sid", []),
]


@pytest.mark.parametrize(("word", "expected"), DERIVED)
def test_what_carriers_teach(word: str, expected: list[str]) -> None:
    assert [learner.word for learner in derived([parse_carrier(word)])] == expected


@pytest.mark.parametrize(
    "word", ["", "json", "token:x/y", "path:/a/{id}", "html:(", "html:abc", "sse:nothing", "location:"]
)
def test_no_learner(word: str) -> None:
    with pytest.raises(ValueError):
        parse_learner(word)


def test_nicegui_page() -> None:
    page = f"<html><script>query: {{'client_id': '{UUID}', 'next_message_id': 0}}</script>".encode()
    (rule,) = PRESETS["nicegui"].rules(PresetContext())
    (learner,) = rule.learners
    head = reply("text/html; charset=utf-8", x_nicegui_content="page")
    assert feed(learner, head, [page[:60], page[60:]]) == [[], [UUID]]
    assert feed(learner, reply("text/html"), [page]) is None


RESULTS = [
    ({"structuredContent": {"game": UUID, "n": 1}, "content": []}, [UUID]),
    ({"structuredContent": {"result": UUID}, "content": [{"type": "text", "text": UUID}]}, [UUID, UUID]),
    ({"structuredContent": {"item": "1", "name": "alice"}}, []),
    ({"content": [{"type": "text", "text": f"your id is {UUID}"}]}, []),
    ({"requestState": "v1.abc_DEF-" + "x" * 600}, ["v1.abc_DEF-" + "x" * 600]),
    ({"tools": []}, []),
    ("text", []),
]


@pytest.mark.parametrize(("result", "expected"), RESULTS)
def test_mcp_results(result: object, expected: list[str]) -> None:
    rule = next(rule for rule in PRESETS["mcp"].rules(PresetContext()) if rule.name == "mcp-handles")
    (learner,) = rule.learners
    data = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()
    assert feed(learner, reply("application/json"), [data]) == [expected]
    event = b'data: {"jsonrpc":"2.0","method":"notifications/x"}\r\n\r\nevent: message\r\ndata: ' + data + b"\r\n\r\n"
    assert feed(learner, reply(SSE), [event]) == [expected]


def test_memory_is_bounded() -> None:
    scanner = JsonScanner(lambda data: (), limit=1000)
    for _ in range(20):
        scanner.feed(b"x" * 100, True)
    assert scanner.done
    events = EventScanner(lambda data: (), 5, limit=1000)
    for _ in range(20):
        events.feed(b"data: " + b"x" * 100, True)
    assert events.done
    import re

    pattern = PatternScanner(re.compile(b"(never)"), limit=1000)
    for _ in range(20):
        pattern.feed(b"x" * 100, True)
    assert pattern.done


def test_a_decompression_bomb_stops() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    scanner = parse_learner("json:session_id").scanner(reply("application/json", content_encoding="gzip"))
    assert scanner is not None
    assert list(scanner.feed(bomb, True)) == []
    assert scanner.done
