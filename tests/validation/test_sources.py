"""Rows 1, 8 and 11: whatever names the session leads to the worker that made it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from itsdangerous import URLSafeSerializer

from tests.harness import Server
from tests.validation.app import SECRET, TOKEN
from tests.validation.gym import agent_body, at, cookie_of, new_id, ok, signed, typed

Owner = Callable[[Server, int, int], Any]
"""Makes a session at one worker (second argument) and uses it by another (third); the JSON of the use."""


def resources_cookie(s: Server, home: int, other: int) -> Any:
    return ok(at(s, other, "POST", "/call", {}, cookie_of(at(s, home, "POST", "/seed_session", typed(new_id())))))


def cookie_of_an_untyped_start(s: Server, home: int, other: int) -> Any:
    return ok(at(s, other, "POST", "/call", {}, cookie_of(at(s, home, "POST", "/seed_session", {}))))


def cookie_of_an_implicit_session(s: Server, home: int, other: int) -> Any:
    used = ok(at(s, other, "POST", "/call", {}, cookie_of(at(s, home, "POST", "/call", {}))))
    assert used["n"] == 2
    return used


def cookie_with_another_id_than_the_body(s: Server, home: int, other: int) -> Any:
    """Aliases: both IDs name the one session."""
    sid = new_id()
    seeded = at(s, home, "POST", "/seed_session", typed(sid, cookie_id=str(uuid.uuid4())))
    used = ok(at(s, other, "POST", "/call", {}, cookie_of(seeded)))
    closed = ok(at(s, other, "POST", "/close_session", typed(sid), cookie_of(seeded)))
    assert closed["pid"] == used["pid"] and closed["held"]
    return used


def mcp_token(s: Server, home: int, other: int) -> Any:
    token = ok(at(s, home, "POST", "/seed_session", typed(new_id())))["token"]
    return ok(at(s, other, "POST", "/mcp", {}, {TOKEN: token}))


def mcp_token_beside_a_strange_cookie(s: Server, home: int, other: int) -> Any:
    """MCP clients send back the cookie of any reply; at /mcp the token decides."""
    token = ok(at(s, home, "POST", "/seed_session", typed(new_id())))["token"]
    strange = cookie_of(at(s, other, "GET", "/health"))
    return ok(at(s, other, "POST", "/mcp", {}, {TOKEN: token, **strange}))


def typed_start_sent_again(s: Server, home: int, other: int) -> Any:
    sid = new_id()
    ok(at(s, home, "POST", "/seed_session", typed(sid)))
    again = ok(at(s, other, "POST", "/seed_session", typed(sid)))
    assert again["starts"] == 2
    return again


def typed_close(s: Server, home: int, other: int) -> Any:
    sid = new_id()
    ok(at(s, home, "POST", "/seed_session", typed(sid)))
    closed = ok(at(s, other, "POST", "/close_session", typed(sid)))
    assert closed["held"]
    return closed


def agent_cookie(s: Server, home: int, other: int) -> Any:
    seeded = at(s, home, "POST", "/v1/agent_sessions", agent_body(f"agent-{uuid.uuid4().hex}"))
    return ok(at(s, other, "POST", "/v1/responses", {}, cookie_of(seeded, "agent")))


def agent_start_sent_again(s: Server, home: int, other: int) -> Any:
    sid = f"agent-{uuid.uuid4().hex}"
    ok(at(s, home, "POST", "/v1/agent_sessions", agent_body(sid)))
    again = ok(at(s, other, "POST", "/v1/agent_sessions", agent_body(sid)))
    assert again["starts"] == 2
    return again


def agent_close(s: Server, home: int, other: int) -> Any:
    sid = f"agent-{uuid.uuid4().hex}"
    ok(at(s, home, "POST", "/v1/agent_sessions", agent_body(sid)))
    closed = ok(at(s, other, "POST", "/v1/agent_sessions/close", agent_body(sid)))
    assert closed["held"]
    return closed


SOURCES: list[Owner] = [
    resources_cookie,
    cookie_of_an_untyped_start,
    cookie_of_an_implicit_session,
    cookie_with_another_id_than_the_body,
    mcp_token,
    mcp_token_beside_a_strange_cookie,
    typed_start_sent_again,
    typed_close,
    agent_cookie,
    agent_start_sent_again,
    agent_close,
]


@pytest.mark.parametrize("use", SOURCES, ids=lambda use: use.__name__)
def test_row1_source_leads_to_the_maker(many: Server, workers: list[int], use: Owner) -> None:
    for home, other in [(0, 1), (1, 2), (2, 0), (1, 1)]:
        assert use(many, workers[home], workers[other])["pid"] == workers[home]


def test_row1_typed_start_gives_its_cookie_its_id(many: Server, workers: list[int]) -> None:
    sid = new_id()
    seeded = at(many, workers[0], "POST", "/seed_session", typed(sid))
    assert ok(at(many, workers[1], "POST", "/call", {}, cookie_of(seeded)))["session"] == sid


def old_cookie(sid: str) -> tuple[str, dict[str, str]]:
    return "/call", signed({"worker": "d34db33f", "session_id": sid})


def old_token(sid: str) -> tuple[str, dict[str, str]]:
    token = URLSafeSerializer(SECRET).dumps({"sid": sid, "worker": "d34db33f", "tools": None})
    assert isinstance(token, str)
    return "/mcp", {TOKEN: token}


def long_token(sid: str) -> tuple[str, dict[str, str]]:
    """Long enough for itsdangerous to compress it."""
    token = URLSafeSerializer(SECRET).dumps({"sid": sid, "tools": ["increment_counter"] * 50})
    assert isinstance(token, str) and token.startswith(".")
    return "/mcp", {TOKEN: token}


@pytest.mark.parametrize("old", [old_cookie, old_token, long_token], ids=lambda old: old.__name__)
def test_row8_more_fields_go_by_the_session_id(
    many: Server, workers: list[int], old: Callable[[str], tuple[str, dict[str, str]]]
) -> None:
    for home in workers:
        sid = new_id()
        ok(at(many, home, "POST", "/seed_session", typed(sid)))
        path, headers = old(sid)
        for other in workers:
            assert ok(at(many, other, "POST", path, {}, headers))["pid"] == home


def test_row11_nine_mebibytes_reach_the_owner(many: Server, workers: list[int]) -> None:
    sid = new_id()
    big = typed(sid, data="x" * 9 * 2**20)
    first = ok(at(many, workers[0], "POST", "/seed_session", big))
    again = ok(at(many, workers[1], "POST", "/seed_session", big))
    assert (first["pid"], again["pid"], again["starts"]) == (workers[0], workers[0], 2)
    assert first["size"] == again["size"] > 9 * 2**20


@pytest.mark.parametrize(
    "sid", [None, "", [1], {"a": "b"}, "x" * 600, "with a space", "ümlaut"], ids=lambda sid: str(sid)[:12]
)
def test_row11_start_without_a_valid_id_is_claimed_where_it_lands(many: Server, workers: list[int], sid: Any) -> None:
    for home, other in [(0, 1), (1, 0), (2, 1)]:
        seeded = at(many, workers[home], "POST", "/seed_session", typed(sid))
        assert ok(seeded)["pid"] == workers[home]
        assert ok(at(many, workers[other], "POST", "/call", {}, cookie_of(seeded)))["pid"] == workers[home]
