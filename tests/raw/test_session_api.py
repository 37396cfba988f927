"""With the session API on, what is not of an explicit session goes its usual quick way, and what is does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.raw.servers import Client, Pair, held_ports, pair, wait
from tests.raw.test_shared import LARGE, maps, noise

AUTH = {"cost": 1}


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def two(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair("raw+api", request.param) as found:
        yield found


def post(two: Pair, path: str, document: Any, *lines: str, door: int = 0) -> Any:
    with two.client(door) as client:
        body = json.dumps(document).encode()
        reply = client.ask(path, None, "POST", "content-type: application/json", *lines, body=body)
        return reply.status, json.loads(reply.body)


def test_another_workers_large_reply_comes_by_shared_memory(two: Pair) -> None:
    """Which only raw frames have."""
    with two.client(0) as client:
        for number in range(4):
            assert client.ask(f"/noise?n={LARGE}&seed={number}", two.sids[1]).body == noise(LARGE, number)
    wait(lambda: [maps(each.pid) for each in two.processes] == [1, 1], "both have it")


def test_explicit_sessions_are_found_on_either_door(two: Pair) -> None:
    opened = [post(two, "/session/create", {"auth_data": AUTH, "payload": {}}, door=door) for door in (0, 1) * 4]
    assert {status for status, _ in opened} == {201}
    workers = set()
    for _, made in opened:
        envelope = {"auth_data": AUTH, "session_id": made["session_id"], "payload": {}}
        named = f"x-session-id: {made['session_id']}"
        seen = []
        for door in (0, 1) * 3:
            seen.append(post(two, "/", envelope, door=door)[1]["worker"])
            for method in ("GET", "POST"):
                with two.client(door) as client:
                    seen.append(client.ask("/", None, method, named).json["worker"])
        assert len(set(seen)) == 1, seen
        workers |= set(seen)
    assert workers == {"0", "1"}
    for _, made in opened:
        ended = {"session_id": made["session_id"], "session_auth": AUTH}
        assert post(two, "/session/end", ended)[0] == 200
        assert post(two, "/session/end", ended, door=1)[0] == 410
        for door in (0, 1) * 3:
            with two.client(door) as client:
                assert client.ask("/", None, "GET", f"x-session-id: {made['session_id']}").status == 410


def test_both_kinds_on_one_connection(two: Pair) -> None:
    """One head after the other, each known by its bytes at last."""
    _, made = post(two, "/session/create", {"auth_data": AUTH, "payload": {}})
    with two.client(0) as client:
        for _ in range(6):
            assert client.ask("/", two.sids[1]).json["worker"] == "1"
            explicit = client.ask("/", None, "GET", f"x-session-id: {made['session_id']}")
            assert explicit.status == 200
            assert client.ask("/", two.sids[0]).json["worker"] == "0"
            assert client.ask("/session/load", None).json["total"]["sessions"] >= 1
            assert client.ask("/session/load", two.sids[1]).json["total"]["sessions"] >= 1
            assert client.ask("/session/create", two.sids[1]).status == 405


@pytest.fixture(scope="module")
def moving() -> Iterator[Pair]:
    with pair("handover+api", "uvloop") as found:
        yield found


def opened_on(two: Pair, worker: int) -> str:
    """A new explicit session of that worker."""
    while True:
        _, made = post(two, "/session/create", {"auth_data": AUTH, "payload": {}})
        with two.client(0) as client:
            if client.ask("/", None, "GET", f"x-session-id: {made['session_id']}").json["worker"] == str(worker):
                return str(made["session_id"])


def use(client: Client, session_id: str, how: str) -> str:
    if how == "header":
        reply = client.ask("/", None, "GET", f"x-session-id: {session_id}")
    else:
        body = json.dumps({"auth_data": AUTH, "session_id": session_id, "payload": {}}).encode()
        reply = client.ask("/", None, "POST", "content-type: application/json", body=body)
    return str(reply.json["worker"])


def held(two: Pair, client: Client) -> list[bool]:
    """Which workers have the connection."""
    return [client.port in held_ports(process.pid) for process in two.processes]


@pytest.mark.parametrize("how", ["header", "envelope"])
def test_a_connection_moves_to_the_session_that_it_uses(moving: Pair, how: str) -> None:
    session_id = opened_on(moving, 1)
    with moving.client(0) as client:
        for _ in range(2):
            assert use(client, session_id, how) == "1"
            assert held(moving, client) == [True, False]
        assert use(client, session_id, how) == "1"
        wait(lambda: held(moving, client) == [False, True], "it has moved")
        for _ in range(5):
            assert use(client, session_id, how) == "1"
        assert held(moving, client) == [False, True]


@pytest.mark.parametrize("between", [0, 1, None], ids=["a session here", "another one there", "no session"])
def test_it_stays_where_its_uses_are_not_in_a_row(moving: Pair, between: int | None) -> None:
    session_id = opened_on(moving, 1)
    other = None if between is None else opened_on(moving, between)
    with moving.client(0) as client:
        for number in range(12):
            assert use(client, session_id, "header") == "1"
            if number % 2:
                if other is None:
                    assert client.ask("/early", None).status == 200
                else:
                    assert use(client, other, "header") == str(between)
        assert held(moving, client) == [True, False]
