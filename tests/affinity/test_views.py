"""A request is read as Starlette reads it: differential tests against Starlette itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection, cookie_parser

from sessionworkers.affinity.views import ReplyView, RequestView, kind_of, parse_cookies, unquote_cookie


def scope(headers: list[tuple[bytes, bytes]], query: bytes = b"") -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": "/", "query_string": query, "headers": headers, "root_path": ""}


COOKIES = [
    "session=abc",
    "a=1; b=2; a=3",
    'session="quoted=="',
    'session="a\\"b\\054c"',
    "; ;x=1;;",
    "novalue; x=1",
    "x = spaced ; y= z",
    "=nameless",
    "x=a=b=c",
    'x="',
    'x=""',
    "",
]


@pytest.mark.parametrize("line", COOKIES)
def test_cookies_as_starlette(line: str) -> None:
    cookies: dict[str, str] = {}
    parse_cookies(line, cookies)
    assert cookies == cookie_parser(line)


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=80))
def test_any_cookie_as_starlette(line: str) -> None:
    cookies: dict[str, str] = {}
    parse_cookies(line, cookies)
    assert cookies == cookie_parser(line)


@given(st.lists(st.sampled_from([b"a=1; b=2", b"a=2", b'b="x\\"y"', b"c"]), max_size=3))
def test_all_cookie_lines_count_as_in_starlette(lines: list[bytes]) -> None:
    headers = [(b"cookie", line) for line in lines]
    assert RequestView.from_scope(scope(headers)).cookies == HTTPConnection(scope(headers)).cookies


@given(st.binary(max_size=60))
def test_query_as_starlette(query: bytes) -> None:
    request = RequestView.from_scope(scope([], query))
    assert request.params == dict(HTTPConnection(scope([], query)).query_params)


def test_a_query_of_many_values_names_nothing() -> None:
    assert RequestView("GET", "/", b"&".join(b"a=1" for _ in range(1000))).params == {}


def test_the_first_header_line_counts() -> None:
    request = RequestView(headers=[(b"x", b"1"), (b"x", b"2")])
    assert request.header(b"x") == "1"
    assert request.header_values(b"x") == ["1", "2"]
    assert request.header(b"y") is None


def test_json_is_parsed_once_and_never_raises() -> None:
    request = RequestView("POST")
    assert request.json is None
    request.body = b'{"a": 1}'
    assert request.json == {"a": 1}
    assert request.json is request.json
    for body in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"{" * 5000 + b"}" * 5000):
        assert RequestView("POST", body=body).json is None


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/app/x", "/app", "/x"),
        ("/app", "/app", "/"),
        ("/application/x", "/app", "/application/x"),
        ("/x", "/app", "/x"),
        ("/x", "", "/x"),
    ],
)
def test_route_path(path: str, root: str, expected: str) -> None:
    assert RequestView("GET", path, root_path=root).route_path == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("Application/JSON; charset=utf-8", "application/json"), ("", ""), ("text/html", "text/html")],
)
def test_content_type(value: str, expected: str) -> None:
    headers = [(b"content-type", value.encode())]
    assert RequestView("POST", headers=headers).content_type == expected
    assert ReplyView(200, headers).content_type == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/json", "json"),
        (b"application/problem+json; a=b", "json"),
        (b"text/event-stream; charset=utf-8", "events"),
        (b"text/html", "html"),
        (b"text/plain", "text"),
        (b"image/png", "other"),
        (b"", "other"),
    ],
)
def test_kind_of(value: bytes, expected: str) -> None:
    assert kind_of(value) == expected


SET_COOKIES = [
    (b"sid=abc; Path=/; HttpOnly", [("sid", "abc")]),
    (b'sid="a=="; Path=/', [("sid", "a==")]),
    (b"sid=null; path=/; expires=Thu, 01 Jan 1970 00:00:00 GMT; ", []),
    (b"sid=abc; Max-Age=0", []),
    (b"sid=abc; max-age=-1", []),
    (b"sid=abc; expires=Thu, 01-Jan-1970 00:00:00 GMT", []),
    (b"sid=abc; expires=Thu, 01 Jan 2099 00:00:00 GMT; Max-Age=100", [("sid", "abc")]),
    (b"sid=; Path=/", []),
    (b"sid", []),
]


@pytest.mark.parametrize(("line", "expected"), SET_COOKIES)
def test_set_cookies(line: bytes, expected: list[tuple[str, str]]) -> None:
    assert ReplyView(200, [(b"Set-Cookie", line)]).set_cookies == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"vary", b"Cookie")], True),
        ([(b"Vary", b"Accept-Encoding, cookie")], True),
        ([(b"vary", b"Origin")], False),
        ([], False),
    ],
)
def test_vary_cookie(headers: list[tuple[bytes, bytes]], expected: bool) -> None:
    assert ReplyView(200, headers).vary_cookie is expected


def test_unquote_leaves_what_is_not_quoted() -> None:
    assert unquote_cookie('a"b') == 'a"b'
    assert unquote_cookie('"') == '"'
