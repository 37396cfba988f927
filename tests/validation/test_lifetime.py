"""Rows 3 and 4: when a claim ends. Nothing is asked meanwhile: the claims are counted in their directory.

What must *not* end is held against a session that ended later and whose claim is waited for.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.harness import Reply, Server, wait_for
from tests.validation.gym import WINDOW, agent_body, cookie_of, new_id, ok, signed, typed

ENDS = 10 * WINDOW + 5  # seconds; the sweeper wakes at the deadline, the rest is for a busy machine


def claims_of(s: Server, *acts: Callable[[], Reply]) -> set[str]:
    """The claims that the acts made."""
    before = set(s.claims())
    for act in acts:
        act()
    made = set(s.claims()) - before
    assert made
    return made


def goes(s: Server, claims: set[str]) -> None:
    wait_for(lambda: not claims & set(s.claims()), ENDS, "the claims ended")


def stays(s: Server, claims: set[str]) -> None:
    """The claims outlive a session that ended after their last use."""
    sid = new_id()
    ended = claims_of(
        s,
        lambda: s.fetch("POST", "/seed_session", typed(sid)),
        lambda: s.fetch("POST", "/close_session", typed(sid)),
    )
    goes(s, ended)
    assert claims <= set(s.claims())


def test_row3_an_open_typed_session_stays_until_a_window_after_its_close(quick: Server) -> None:
    sid = new_id()
    claims = claims_of(quick, lambda: quick.fetch("POST", "/seed_session", typed(sid)))
    stays(quick, claims)
    ok(quick.fetch("POST", "/close_session", typed(sid)))
    assert claims <= set(quick.claims())
    goes(quick, claims)


def test_row3_a_new_session_stays_until_a_window_after_its_verify(quick: Server) -> None:
    replies: list[Reply] = []
    claims = claims_of(quick, lambda: replies.append(quick.fetch("POST", "/seed_session", {})) or replies[0])
    cookie = cookie_of(replies[0])
    stays(quick, claims)
    assert ok(quick.fetch("POST", "/verify", {}, cookie))["held"]
    assert claims <= set(quick.claims())
    goes(quick, claims)


def test_row3_a_verify_that_a_close_follows_leaves_it_open(quick: Server) -> None:
    sid = new_id()
    claims = claims_of(quick, lambda: quick.fetch("POST", "/seed_session", typed(sid)))
    ok(quick.fetch("POST", "/verify", {}, {**signed({"session_id": sid}), "x-close-follows": "1"}))
    stays(quick, claims)
    ok(quick.fetch("POST", "/close_session", typed(sid)))
    goes(quick, claims)


def test_row3_a_session_without_a_start_ends_after_its_last_request(quick: Server) -> None:
    replies: list[Reply] = []
    claims = claims_of(quick, lambda: replies.append(quick.fetch("POST", "/call", {})) or replies[0])
    ok(quick.fetch("POST", "/call", {}, cookie_of(replies[0])))
    goes(quick, claims)


@pytest.mark.parametrize("cleaned_up", [False, True], ids=["never-closed", "closed"])
def test_row3_a_failed_start_ends_a_window_after_its_last_request(quick: Server, cleaned_up: bool) -> None:
    sid = new_id()
    claims = claims_of(quick, lambda: quick.fetch("POST", "/seed_session", typed(sid, fail=True)))
    if cleaned_up:
        assert ok(quick.fetch("POST", "/close_session", typed(sid)))["held"]
        assert claims <= set(quick.claims())
    goes(quick, claims)


def test_row3_a_request_in_flight_keeps_the_claim(quick: Server) -> None:
    """Longer than every window: the claim goes only after the request."""
    import threading

    before = set(quick.claims())
    replies: list[Reply] = []
    sid = new_id()
    slow = threading.Thread(
        target=lambda: replies.append(quick.fetch("POST", f"/call?sleep={3 * WINDOW}", {}, signed({"session_id": sid})))
    )
    ok(quick.fetch("POST", "/seed_session", typed(sid)))
    claims = set(quick.claims()) - before
    slow.start()
    ok(quick.fetch("POST", "/close_session", typed(sid)))
    stays(quick, claims)
    slow.join()
    ok(replies[0])
    goes(quick, claims)


def test_row3_an_id_that_never_comes_back_ends_with_the_return_window(quick: Server) -> None:
    """The row that differs by nature: the app sets a cookie that nobody will use."""
    claims = claims_of(quick, lambda: quick.fetch("GET", "/health"))
    assert len(claims) == 1
    goes(quick, claims)


def test_row3_a_close_that_came_first_ends_a_window_later(quick: Server) -> None:
    """Within it the delayed start is refused; after it the ID is new."""
    sid = new_id()
    claims = claims_of(quick, lambda: quick.fetch("POST", "/close_session", typed(sid)))
    assert quick.fetch("POST", "/seed_session", typed(sid)).status == 409
    goes(quick, claims)
    assert ok(quick.fetch("POST", "/seed_session", typed(sid)))["starts"] == 1
    ok(quick.fetch("POST", "/close_session", typed(sid)))


def test_row4_an_agent_session_stays_until_a_window_after_its_close(quick: Server) -> None:
    sid = f"agent-{uuid.uuid4().hex}"
    claims = claims_of(quick, lambda: quick.fetch("POST", "/v1/agent_sessions", agent_body(sid)))
    stays(quick, claims)
    assert ok(quick.fetch("POST", "/v1/agent_sessions/close", agent_body(sid)))["held"]
    assert claims <= set(quick.claims())
    goes(quick, claims)


def test_row4_an_agent_start_that_makes_nothing_leaves_no_claim(many: Server) -> None:
    """At once: this server's windows are five minutes."""
    before = many.claims()
    sid = f"agent-{uuid.uuid4().hex}"
    for _ in range(5):
        assert many.fetch("POST", "/v1/agent_sessions", agent_body(sid, fail=True)).status == 503
        wait_for(lambda: many.claims() == before, 2, "the claim was rolled back")
    assert ok(many.fetch("POST", "/v1/agent_sessions", agent_body(sid)))["starts"] == 1
