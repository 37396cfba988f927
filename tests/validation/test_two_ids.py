"""Row 5: a start or close whose IDs name two sessions, and a start whose claim moved while it travelled."""

from __future__ import annotations

import pytest

from tests.harness import Server, wait_for
from tests.validation.gym import WINDOW, at, cookie_of, gym, new_id, ok, pids, signed, typed


@pytest.mark.parametrize("path", ["/seed_session", "/close_session"])
@pytest.mark.parametrize("known", [False, True], ids=["new-body-id", "body-id-of-another-session"])
def test_row5_with_one_worker(single: Server, path: str, known: bool) -> None:
    cookie = cookie_of(single.fetch("POST", "/seed_session", typed(new_id())))
    body = typed(new_id())
    if known:
        ok(single.fetch("POST", "/seed_session", body))
    assert single.fetch("POST", path, body, cookie).status == 409
    assert ok(single.fetch("POST", "/call", {}, cookie))["n"] == 1, "the session itself goes on"


@pytest.mark.parametrize("path", ["/seed_session", "/close_session"])
@pytest.mark.parametrize("where", ["nowhere", "same-worker", "another-worker"])
def test_row5_with_several_workers(many: Server, workers: list[int], path: str, where: str) -> None:
    home, other, third = workers
    cookie = cookie_of(at(many, home, "POST", "/seed_session", typed(new_id())))
    body = typed(new_id())
    if where != "nowhere":
        ok(at(many, home if where == "same-worker" else other, "POST", "/seed_session", body))
    for accepting in (home, other, third):
        assert at(many, accepting, "POST", path, body, cookie).status == 409
    assert ok(at(many, third, "POST", "/call", {}, cookie)) == {
        "session": ok(at(many, third, "POST", "/call", {}, cookie))["session"],
        "n": 1,
        "pid": home,
    }


def test_row5_two_ids_of_one_session_are_no_conflict(many: Server, workers: list[int]) -> None:
    """A start whose cookie names another ID than its body made both IDs names of one session."""
    home, other, _ = workers
    sid = new_id()
    seeded = at(many, home, "POST", "/seed_session", typed(sid, cookie_id=new_id()))
    for accepting in (home, other):
        assert ok(at(many, accepting, "POST", "/seed_session", typed(sid), cookie_of(seeded)))["pid"] == home
    assert ok(at(many, other, "POST", "/close_session", typed(sid), cookie_of(seeded)))["held"]


def test_row5_a_start_whose_claim_moved_is_a_conflict() -> None:
    """The accepting worker remembers an owner whose claim has ended; a third worker holds it by now."""
    with gym(3, window=WINDOW) as s:
        home, later, accepting = pids(s)
        sid = new_id()
        ok(at(s, home, "POST", "/seed_session", typed(sid)))
        ok(at(s, accepting, "POST", "/close_session", typed(sid)))
        wait_for(lambda: s.claims() == [], 15, "the claim ended")
        assert ok(at(s, later, "POST", "/seed_session", typed(sid)))["pid"] == later
        assert at(s, accepting, "POST", "/seed_session", typed(sid)).status == 409
        assert ok(at(s, accepting, "POST", "/seed_session", typed(sid)))["pid"] == later, "the next one knows better"
        assert ok(at(s, accepting, "POST", "/call", {}, signed({"session_id": sid})))["pid"] == later
