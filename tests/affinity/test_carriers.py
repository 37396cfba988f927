"""Every carrier: what it reads, what is malformed, how it is written."""

from __future__ import annotations

from typing import Any

import pytest

from sessionworkers.affinity.carriers import Only, ReadID, Token, parse_carrier, plain
from sessionworkers.affinity.ids import MAX_ID
from sessionworkers.affinity.views import RequestView

JSON = (b"content-type", b"application/json")


def request(method: str = "GET", path: str = "/", query: bytes = b"", body: bytes | None = None, **headers: str) -> Any:
    lines = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    if body is not None:
        lines.append(JSON)
    return RequestView(method, path, query, lines, body=body)


READS = [
    # word, request, ID
    ("header:X-Session", request(x_session="abc"), "abc"),
    ("header:x-session", request(), None),
    ("header:x-session", request(x_session=""), None),
    ("header:x-session", request(x_session="a b"), None),
    ("header:x-session", request(x_session="caf\u00e9"), None),
    ("header:x-session", request(x_session="x" * MAX_ID), "x" * MAX_ID),
    ("header:x-session", request(x_session="x" * (MAX_ID + 1)), None),
    ("header:x-session", RequestView(headers=[(b"x-session", b"a"), (b"x-session", b"b")]), None),
    ("header:x-session", RequestView(headers=[(b"x-session", b"a"), (b"x-session", b"a")]), "a"),
    ("header:authorization", request(authorization="Bearer abc"), "abc"),
    ("header:authorization", request(authorization="abc"), None),
    ("cookie:sid", request(cookie="a=b; sid=xyz"), "xyz"),
    ("cookie:sid", request(cookie='sid="xyz=="'), "xyz=="),
    ("cookie:sid", request(cookie="sid=1; sid=2"), "2"),
    ("cookie:sid", request(cookie="xsid=1"), None),
    ("cookie:sid", request(cookie="sid="), None),
    ("cookie:sid", request(cookie="sid=a b"), None),
    ("query:sid", request(query=b"a=1&sid=xyz"), "xyz"),
    ("query:sid", request(query=b"s%69d=xyz"), "xyz"),
    ("query:sid", request(query=b"sid=x%20y"), None),
    ("query:sid", request(query=b"sid="), None),
    ("query:sid", request(query=b"sid=a&sid=b"), None),
    ("query:sid", request(query=b"sid=a&sid=a"), "a"),
    ("query:sid", request(query=b"xsid=a"), None),
    ("path:/v1/sessions/{id}", request(path="/v1/sessions/abc/action"), "abc"),
    ("path:/v1/sessions/{id}", request(path="/v1/sessions"), None),
    ("path:/v1/sessions/{id}", request(path="/v1/sessions/a b"), None),
    ("path:/v1/sessions/{id}", request(path="/v1/sessions/caf\u00e9"), None),
    ("json:session_id", request("POST", body=b'{"session_id": "abc"}'), "abc"),
    ("json:session_id", request("POST", body=b'{"session_id": 17}'), "17"),
    ("json:session_id", request("POST", body=b'{"session_id": true}'), None),
    ("json:session_id", request("POST", body=b'{"session_id": "a", "session_id": "b"}'), None),
    ("json:session_id", request("POST", body=b'{"session_id": "a b"}'), None),
    ("json:session_id", request("POST", body=b"not json"), None),
    ("json:session_id", request("POST", body=b""), None),
    ("json:session_id", request("POST"), None),
    (
        "json:session_id",
        RequestView("POST", headers=[(b"content-type", b"image/png")], body=b'{"session_id":"a"}'),
        None,
    ),
    ("json:session_id", RequestView("POST", headers=[(b"content-type", b"a/b+json")], body=b'{"session_id":"a"}'), "a"),
    ("json:session_id", RequestView("POST", body=b'{"session_id":"a"}'), "a"),
    ("json:params.arguments.id", request("POST", body=b'{"params":{"arguments":{"id":"x"}}}'), "x"),
    ("engineio:sid", request(path="/socket.io/", query=b"EIO=4&sid=abc"), "abc"),
    ("engineio:sid", request(path="/socket.io/", query=b"sid=abc"), "abc"),
    ("engineio:sid", request(path="/ws/", query=b"EIO=4&sid=abc"), "abc"),
    ("engineio:sid", request(path="/ws/", query=b"sid=abc"), None),
    ("json:a@/x,/y/*", request("POST", "/x", body=b'{"a":"1"}'), "1"),
    ("json:a@/x,/y/*", request("POST", "/y/z", body=b'{"a":"1"}'), "1"),
    ("json:a@/x,/y/*", request("POST", "/z", body=b'{"a":"1"}'), None),
    ("query:e~[0-9a-f]{4}", request(query=b"e=12ab"), "12ab"),
    ("query:e~[0-9a-f]{4}", request(query=b"e=12abc"), None),
    ("path:/call/*/{id}~[0-9a-f]{4}@/call/**", request(path="/call/x/12ab"), "12ab"),
]


@pytest.mark.parametrize(("word", "view", "expected"), READS)
def test_read(word: str, view: RequestView, expected: str | None) -> None:
    found = parse_carrier(word).read(view)
    assert found == (None if expected is None else ReadID(expected))


@pytest.mark.parametrize("word", sorted({row[0] for row in READS} | {"starlette-cookie:s/a|b", "starlette-cookie:s"}))
def test_a_carrier_is_written_as_it_is_read(word: str) -> None:
    again = parse_carrier(word).word
    assert again == word.replace("X-Session", "x-session")
    assert parse_carrier(again).word == again


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("", "is no carrier"),
        ("header", "is no carrier"),
        ("header:", "is no carrier"),
        ("body:x", "'body' is none of"),
        ("header:a b", "no name of a header"),
        ("cookie:a;b", "no name of a header or cookie"),
        ("path:/v1/sessions", "write {id} where it stands"),
        ("path:v1/{id}", "begin with a slash"),
        ("json:a..b", "joined by dots"),
        ("token:x", "must name a header and a field"),
        ("query:x~[", "no regular expression"),
        ("json:a@/x?y", "plain path"),
    ],
)
def test_no_carrier(word: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("{", r"\{")):
        parse_carrier(word)


def test_bodies_are_wanted_only_where_they_may_hold_the_id() -> None:
    carrier = parse_carrier("json:session_id")
    assert carrier.needs_body
    assert carrier.applies(RequestView("POST", headers=[JSON]))
    assert not carrier.applies(RequestView("GET", headers=[JSON]))
    assert not carrier.applies(RequestView("POST", headers=[(b"content-type", b"multipart/form-data; boundary=x")]))
    assert not carrier.applies(RequestView("POST", headers=[JSON], kind="websocket"))
    only = parse_carrier("json:session_id@/run")
    assert isinstance(only, Only)
    assert only.needs_body
    assert only.applies(RequestView("POST", "/run", headers=[JSON]))
    assert not only.applies(RequestView("POST", "/walk", headers=[JSON]))


def test_a_restricted_carrier_shows_what_is_inside() -> None:
    token = Token("X-T", "sid", ("secret",))
    only = Only(token, ())
    assert plain(only) is token
    assert only.secrets == ("secret",)
