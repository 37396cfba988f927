"""Rows 2 and 9: what claims, what does not, and when the claim stands."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable

import pytest

from tests.harness import Reply, Server, wait_for
from tests.validation.gym import agent_body, at, cookie_of, new_id, ok, pids, signed, typed

Act = Callable[[Server], Reply]


def typed_start(s: Server) -> Reply:
    return s.fetch("POST", "/seed_session", typed(new_id()))


def typed_start_with_its_cookie(s: Server) -> Reply:
    sid = new_id()
    return s.fetch("POST", "/seed_session", typed(sid), signed({"session_id": sid}))


def untyped_start(s: Server) -> Reply:
    return s.fetch("POST", "/seed_session", {})


def start_that_never_reads_the_session(s: Server) -> Reply:
    return s.fetch("POST", "/seed_quiet", {})


def tool_call_without_a_start(s: Server) -> Reply:
    return s.fetch("POST", "/call", {})


def agent_start(s: Server) -> Reply:
    return s.fetch("POST", "/v1/agent_sessions", agent_body(f"agent-{uuid.uuid4().hex}"))


def close_of_an_unknown_id(s: Server) -> Reply:
    return s.fetch("POST", "/close_session", typed(new_id()))


def cookie_that_nobody_claims(s: Server) -> Reply:
    return s.fetch("POST", "/call", {}, signed({"session_id": str(uuid.uuid4())}))


MAKERS: list[Act] = [
    typed_start,
    typed_start_with_its_cookie,
    untyped_start,
    start_that_never_reads_the_session,
    tool_call_without_a_start,
    agent_start,
    close_of_an_unknown_id,
    cookie_that_nobody_claims,
]


@pytest.mark.parametrize("act", MAKERS, ids=lambda act: act.__name__)
def test_row2_claims_once(many: Server, act: Act) -> None:
    before = set(many.claims())
    ok(act(many))
    assert len(set(many.claims()) - before) == 1


def plain_get(s: Server) -> Reply:
    return s.fetch("GET", "/plain")


def control_post(s: Server) -> Reply:
    return s.fetch("POST", "/plain", {"command": "aggregate"})


def post_with_a_strange_cookie(s: Server) -> Reply:
    return s.fetch("POST", "/plain", {}, signed({"session_id": str(uuid.uuid4())}))


def post_with_a_forged_cookie(s: Server) -> Reply:
    """The app takes it for no cookie, makes a session of its own and says so."""
    return s.fetch("POST", "/plain", {}, {"cookie": "session=eyJzZXNzaW9uX2lkIjogInRoZWlycyJ9.aaaaaa.bbbb"})


def unknown_path(s: Server) -> Reply:
    return s.fetch("POST", "/no/such/path", typed(new_id()))


def agent_request_without_a_session(s: Server) -> Reply:
    return s.fetch("POST", "/v1/responses", {})


@pytest.mark.parametrize(
    "act",
    [
        plain_get,
        control_post,
        post_with_a_strange_cookie,
        post_with_a_forged_cookie,
        unknown_path,
        agent_request_without_a_session,
    ],
    ids=lambda act: act.__name__,
)
def test_row2_claims_nothing(many: Server, act: Act) -> None:
    before = many.claims()
    assert act(many).all("set-cookie") == []
    assert many.claims() == before


def test_row2_the_claim_stands_before_the_reply_arrives(many: Server) -> None:
    """At the first byte of the reply the claim is there, and any worker knows it."""

    async def session() -> None:
        before = set(many.claims())
        reader, writer = await asyncio.open_connection("127.0.0.1", many.port)
        writer.write(b"POST /call HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        await reader.readexactly(1)
        assert len(set(many.claims()) - before) == 1
        writer.close()
        await writer.wait_closed()
        first = await many.afetch("POST", "/call", {})
        used = await asyncio.gather(*(many.afetch("POST", "/call", {}, cookie_of(first)) for _ in range(4)))
        assert {reply.json["pid"] for reply in used} == {first.json["pid"]}
        assert sorted(reply.json["n"] for reply in used) == [2, 3, 4, 5]

    async def main() -> None:
        for _ in range(20):
            await session()

    asyncio.run(main())


def test_row2_a_claim_that_ended_is_made_again(quick: Server) -> None:
    """By the worker that then uses the session."""
    first, second = pids(quick)
    cookie = cookie_of(at(quick, first, "POST", "/call", {}))
    wait_for(lambda: quick.claims() == [], 10, "the claim ended")
    again = ok(at(quick, second, "POST", "/call", {}, cookie))
    assert (again["pid"], again["n"]) == (second, 1)
    assert len(quick.claims()) == 1
    assert ok(at(quick, first, "POST", "/call", {}, cookie))["pid"] == second


@pytest.mark.parametrize("path", ["/seed_session", "/mint"], ids=["by-a-start", "by-another-request"])
def test_row2_an_id_minted_twice_is_a_conflict(many: Server, workers: list[int], path: str) -> None:
    """The second worker's reply must not name it: the client gets 409 and no cookie."""
    for sid in (new_id(), str(uuid.uuid4())):
        body = {"id": sid, "cookie_id": sid}
        ok(at(many, workers[0], "POST", path, body))
        reply = at(many, workers[1], "POST", path, body)
        assert (reply.status, reply.all("set-cookie")) == (409, [])


def test_row2_sessions_minted_at_once_are_distinct(many: Server, workers: list[int]) -> None:
    async def main() -> list[Reply]:
        return await asyncio.gather(*(many.afetch("POST", "/call", {}) for _ in range(100)))

    replies = asyncio.run(main())
    assert len({ok(reply)["session"] for reply in replies}) == 100
    made = Counter(sid for pid in workers for sid in at(many, pid, "GET", "/state").json["made"])
    assert all(made[reply.json["session"]] == 1 for reply in replies)


@pytest.mark.parametrize("act", MAKERS, ids=lambda act: act.__name__)
def test_row9_one_worker_writes_no_claims(single: Server, act: Act) -> None:
    ok(act(single))
    assert single.claims() == []
