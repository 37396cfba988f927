"""Signed cookies and tokens, against Starlette's own `SessionMiddleware` and itsdangerous."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from itsdangerous import TimestampSigner, URLSafeSerializer, URLSafeTimedSerializer
from starlette.middleware.sessions import SessionMiddleware

from sessionworkers.affinity.carriers import ReadID, StarletteCookie, Token, parse_carrier
from sessionworkers.affinity.documents import MISSING
from sessionworkers.affinity.signed import SignedCookie, pick
from sessionworkers.affinity.views import ReplyView, RequestView

SECRET = "s3cret"
ID = "550e8400-e29b-41d4-a716-446655440000"


def through_starlette(
    cookie: str | None, change: dict[str, Any] | None = None, **options: Any
) -> tuple[Any, ReplyView]:
    """The session that an app sees behind the real middleware, and the head of its reply."""
    seen: dict[str, Any] = {}
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope["session"])
        if change is not None:
            scope["session"].update(change)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        return {"type": "http.request"}

    headers = [] if cookie is None else [(b"cookie", cookie.encode("latin-1"))]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    middleware = SessionMiddleware(app, secret_key=SECRET, **options)
    asyncio.run(middleware(scope, receive, send))
    return seen, ReplyView(200, sent[0]["headers"])


def sign(payload: Any, secret: str = SECRET, at: float | None = None) -> str:
    signer = TimestampSigner(secret)
    if at is not None:
        signer.get_timestamp = lambda: int(at)  # type: ignore[method-assign]
    return signer.sign(b64encode(json.dumps(payload).encode())).decode()


def read(value: str, carrier: StarletteCookie) -> ReadID | None:
    return carrier.read(RequestView(headers=[(b"cookie", f"session={value}".encode("latin-1"))]))


def test_what_starlette_sets_is_read() -> None:
    _, reply = through_starlette(None, {"session_id": ID})
    ((name, value),) = reply.set_cookies
    assert name == "session"
    for carrier in (StarletteCookie("session"), StarletteCookie("session", "session_id")):
        assert read(value, carrier) == ReadID(ID, False)
        assert read(f'"{value}"', carrier) == ReadID(ID, False)
        assert read(value, carrier.with_secrets((SECRET,))) == ReadID(ID, True)
        assert read(value, carrier.with_secrets(("old", SECRET))) == ReadID(ID, True)
        assert read(value, carrier.with_secrets(("other",))) is None


@pytest.mark.parametrize(
    "value",
    [
        sign({"session_id": ID}),
        sign({"session_id": ID}, "other"),
        sign({"session_id": ID}, at=time.time() - 3600),
        sign({"session_id": ID}, at=time.time() - 15 * 86_400),
        sign({"session_id": ID}, at=time.time() + 3600),
        sign({"session_id": ID})[:-3],
        sign({"session_id": ID})[3:],
        sign({"session_id": ID}).replace(".", "", 1),
        "x.y.z",
        "..",
        ".",
        "",
        "null",
    ],
)
def test_verified_exactly_when_starlette_accepts(value: str) -> None:
    session, _ = through_starlette(f"session={value}")
    found = read(value, StarletteCookie("session", "session_id", (SECRET,)))
    assert (found is not None) == (session.get("session_id") == ID)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=4), st.integers(0, 200), st.integers(0, 255))
def test_a_changed_cookie_is_accepted_exactly_as_by_itsdangerous(
    payload: dict[str, str], where: int, byte: int
) -> None:
    value = bytearray(sign({**payload, "session_id": ID}).encode())
    value[where % len(value)] = byte
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError:
        return
    try:
        data = TimestampSigner(SECRET).unsign(text, max_age=1209600)
        expected: Any = data
    except Exception:
        expected = None
    document, verified = SignedCookie((SECRET,)).open(text)
    if expected is None:
        assert document is MISSING
    else:
        assert verified or document is MISSING


def test_max_age_none_never_expires() -> None:
    value = sign({"session_id": ID}, at=1_600_000_000)
    assert read(value, StarletteCookie("session", "session_id", (SECRET,))) is None
    assert read(value, StarletteCookie("session", "session_id", (SECRET,), None)) == ReadID(ID)


def test_a_compressed_cookie() -> None:
    value = URLSafeTimedSerializer(SECRET).dumps({"session_id": ID, "pad": "x" * 400})
    assert value.startswith(".")
    assert read(value, StarletteCookie("session", "session_id")) == ReadID(ID, False)


def test_a_compressed_bomb_is_not_unpacked() -> None:
    value = URLSafeTimedSerializer(SECRET).dumps({"session_id": ID, "pad": "x" * 1_000_000})
    assert len(value) < 4096
    assert read(value, StarletteCookie("session", "session_id")) is None


PICKS = [
    ({"session_id": "short"}, "session_id", "short"),
    ({"session_id": ID}, "*", ID),
    ({"sid": ID, "user": 5}, "*", ID),
    ({"id": ID}, "*", ID),
    ({"agent_session_id": ID}, "*", ID),
    ({"chat_session_id": ID, "thread_id": "0123456789abcdef0"}, "*", None),  # two: nobody can say which
    ({"session_id": "alice"}, "*", None),
    ({"user_id": ID}, "*", None),  # a stateless login cookie
    ({"user": {"session_id": ID}}, "*", None),
    ({}, "*", None),
    ({"a": "1", "b": "2"}, "a|b", "1"),
    ({"b": "2"}, "a|b", "2"),
    ({"b": 2}, "a|b", None),
    (ID, "sid", ID),
    ([ID], "*", None),
    (None, "*", None),
]


@pytest.mark.parametrize(("document", "field", "expected"), PICKS)
def test_pick(document: object, field: str, expected: str | None) -> None:
    assert pick(document, field) == expected


SALT = "nemo-gym-mcp-session-token"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"sid": ID, "tools": None}, ID),
        ({"sid": ID, "tools": [f"tool_{n}" for n in range(60)]}, ID),  # compressed
        (ID, ID),  # 0.4.0
        ({"tools": None}, None),
    ],
)
def test_token(payload: Any, expected: str | None) -> None:
    value = URLSafeSerializer("A___b", salt=SALT).dumps(payload)
    request = RequestView(headers=[(b"x-token", value.encode())])
    unverified = Token("X-Token", "sid", salt=SALT)
    verified = unverified.with_secrets(("A___b",))
    assert unverified.read(request) == (None if expected is None else ReadID(expected, False))
    assert verified.read(request) == (None if expected is None else ReadID(expected, True))
    assert unverified.with_secrets(("B___b",)).read(request) is None
    assert unverified.with_secrets(("A___b",), "salt").read(request) is None


def test_token_in_words_and_behind_bearer() -> None:
    value = URLSafeSerializer("k").dumps({"sid": ID})
    request = RequestView(headers=[(b"authorization", f"Bearer {value}".encode())])
    assert parse_carrier("token:authorization/sid").read(request) == ReadID(ID, False)


@pytest.mark.parametrize("value", ["x" * 5000, "a b.c", "\u00e9.x", ""])
def test_malformed_tokens(value: str) -> None:
    request = RequestView(headers=[(b"x-t", value.encode("latin-1"))])
    assert Token("x-t", "sid").read(request) is None
