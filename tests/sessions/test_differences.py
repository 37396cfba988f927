"""Where the page and the real worker differ: each decided difference, with four workers and fresh connections.

Those of the client (10, 11, 15) are in ``tests/client/test_client.py`` under the same numbers.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import fetch, wait_for
from tests.sessions.grant_fixture import PUBLIC_PEM, SIGNED
from tests.sessions.kit import AUTH, UNKNOWN, Api, HookServer, sessions


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions("--max-sessions", "0", "--hook-allow", "127.0.0.1") as running:
        yield running


@pytest.fixture
def pool() -> Iterator[concurrent.futures.Executor]:
    with concurrent.futures.ThreadPoolExecutor(40) as executor:
        yield executor


def test_1_the_deadline_is_idle_time_and_requests_do_not_add_up(api: Api) -> None:
    session_id = api.open(lifetime=2)
    for _ in range(10):
        assert api.use(session_id).status == 200
    assert api.get(session_id).json["expiration"] < time.time() + 2.1
    wait_for(lambda: api.get(session_id).status != 200, 6, "a look does not move the deadline")
    assert api.use(session_id).status == 410


def test_1_extend_add_gives_the_accumulating_form() -> None:
    with sessions("--session-extend", "add", workers=2) as api:
        created = api.create(lifetime=2).json
        for _ in range(10):
            assert api.use(created["session_id"]).status == 200
        moved = api.get(created["session_id"]).json["expiration"] - created["expiration"]
        assert moved == pytest.approx(20, abs=0.01)


def test_2_an_end_is_remembered_410_and_one_never_seen_is_400(api: Api) -> None:
    session_id = api.open()
    api.end(session_id)
    assert {api.end(session_id).status for _ in range(8)} == {410}
    assert {api.end(UNKNOWN).status for _ in range(8)} == {400}


def test_3_a_session_past_its_deadline_is_410_at_once(api: Api) -> None:
    session_id = api.open(lifetime=0.3)
    time.sleep(0.32)
    assert api.use(session_id).status == 410
    assert api.end(session_id).status == 410
    assert api.health(session_id).json == {"ok": False}


BAD_LIFETIMES = [0, -5, -0.0, "60", None, True, [1], {"s": 1}, 1e300, 10**400, 8 * 86_400]


@pytest.mark.parametrize("lifetime", BAD_LIFETIMES, ids=lambda value: repr(value)[:12])
def test_3_a_lifetime_that_is_none_is_422(api: Api, lifetime: Any) -> None:
    before = api.load()["total"]["sessions"]
    reply = api.create(lifetime=lifetime)
    assert (reply.status, reply.json["error"]) == (422, "lifetime is not valid")
    assert api.load()["total"]["sessions"] == before


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_3_a_lifetime_that_json_does_not_know_is_422(api: Api, word: str) -> None:
    body = f'{{"auth_data": {{"cost": 1}}, "payload": {{"lifetime": {word}}}}}'.encode()
    assert api.post("/session/create", body, {"content-type": "application/json"}).status == 422


def test_4_a_request_in_flight_holds_the_deadline_off_and_it_counts_from_its_end(api: Api) -> None:
    for _ in range(2):
        session_id = api.open(lifetime=1)
        assert api.use(session_id, "/slow", {"s": 2.5}).status == 200
        assert api.use(session_id).status == 200
        time.sleep(0.7)
        assert api.use(session_id).status == 200


def test_4_streams_hold_it_off_too(api: Api) -> None:
    session_id = api.open(lifetime=0.5)
    reply = api.use(session_id, "/stream", {"n": 12, "gap": 0.1})
    assert reply.text.count("data:") == 13
    assert api.use(session_id).status == 200


def test_5_max_sessions_0_means_no_cap(api: Api) -> None:
    assert [api.create().status for _ in range(60)] == [201] * 60
    assert api.load()["total"]["free_slots"] is None


def test_5_max_sessions_defaults_to_10_a_worker() -> None:
    with sessions() as api:
        assert [api.create().status for _ in range(40)] == [201] * 40
        assert api.create().status == 429
        assert [each["sessions"] for each in api.load()["workers"]] == [10] * 4


BAD_CREATES: list[Any] = [
    [],
    "x",
    5,
    None,
    {},
    {"payload": {}},
    {"auth_data": {}, "payload": {}},
    {"auth_data": [1], "payload": {}},
    {"auth_data": "s", "payload": {}},
    {"auth_data": AUTH},
    {"auth_data": AUTH, "payload": None},
    {"auth_data": AUTH, "payload": []},
    {"auth_data": AUTH, "payload": {"lifetime": "60"}},
    {"auth_data": {"cost": "1"}, "payload": {}},
    {"auth_data": {"cost": -1}, "payload": {}},
    {"auth_data": {"cost": None}, "payload": {}},
    {"auth_data": AUTH, "payload": {"on_close_route": 5}},
    {"auth_data": AUTH, "payload": {"on_close_route": ["/x"]}},
    {"auth_data": AUTH, "payload": {"on_close_route": "/a b"}},
    {"auth_data": AUTH, "payload": {"on_close_route": "ftp://127.0.0.1/x"}},
]


def test_6_a_create_that_cannot_be_is_422_with_a_json_error_and_takes_no_slot() -> None:
    with sessions("--max-sessions", "1", "--hook-allow", "127.0.0.1") as api:
        for body in BAD_CREATES:
            reply = api.post("/session/create", json.dumps(body).encode(), {"content-type": "application/json"})
            assert reply.status == 422, body
            assert reply.json["error"] and reply.json["detail"], body
        assert api.load()["total"]["sessions"] == 0
        assert [api.create().status for _ in range(5)] == [201] * 4 + [429]


def test_6_a_grant_without_cost_counts_as_100(api: Api) -> None:
    before = api.load()["total"]["current_load"]
    session_id = api.open({"url": "http://x"})
    assert api.load()["total"]["current_load"] == before + 100
    api.end(session_id)


def test_7_an_envelope_must_bring_the_sessions_own_credential(api: Api) -> None:
    for _ in range(4):
        created = api.create(lifetime=30).json
        session_id = created["session_id"]
        for auth in ({"cost": 1}, {}, {**AUTH, "more": 1}):
            reply = api.use(session_id, auth=auth)
            assert (reply.status, reply.json["error"]) == (401, "session_auth is not valid")
        found = api.get(session_id).json
        assert found["expiration"] == pytest.approx(created["expiration"], abs=0.001)  # a refusal moves nothing
        assert api.use(session_id).status == 200


def test_8_grants_are_checked_on_create_too(tmp_path: Any) -> None:
    key = tmp_path / "key.pem"
    key.write_text(PUBLIC_PEM)
    with sessions("--grant-public-key", str(key), workers=2) as api:
        forged = {**SIGNED, "url": "http://127.0.0.1:1"}
        for auth in (AUTH, forged, {**SIGNED, "signature": ""}, None):
            assert api.create(auth).status == 401
        assert api.load()["total"]["sessions"] == 0
        session_id = api.open(SIGNED)
        assert api.use(session_id, auth=SIGNED).status == 200
        assert api.use(session_id, auth=forged).status == 401
        assert api.use(None, auth=SIGNED).status == 200
        assert api.use(None, auth=forged).status == 401
        assert api.post("/echo", {"payload": {}}).status == 422
        assert api.post("/echo", b'{"payload": {}}', {"content-type": "text/plain"}).status == 422
        assert api.server.fetch("GET", "/plain", headers={"X-Session-ID": session_id}).status == 200
        assert api.end(session_id, SIGNED).status == 200


def test_9_the_end_server_listens_on_127_0_0_1_alone(api: Api) -> None:
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    listening = {row[1] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == api.port + 1}
    assert {address.split(":")[0] for address in listening} == {"0100007F"}


def test_12_hooks_run_for_any_reason() -> None:
    """Graceful stop, recycling and gunicorn's restart: in ``test_close``; here the whole server's end by INT."""
    with sessions(workers=2) as api:
        session_id = api.open(on_close_route="/hook")
        api.server.process.send_signal(2)
        wait_for(lambda: api.server.process.poll() is not None, 10)
        assert len(api.hooks(session_id)) == 1


def test_13_one_grant_used_twice_counts_twice(api: Api) -> None:
    before = api.load()["total"]["current_load"]
    one, other = api.open({"cost": 50, "reqnum": 7}), api.open({"cost": 50, "reqnum": 7})
    assert api.load()["total"]["current_load"] == before + 100
    api.end(one, {"cost": 50, "reqnum": 7})
    assert api.load()["total"]["current_load"] == before + 50
    api.end(other, {"cost": 50, "reqnum": 7})
    assert api.load()["total"]["current_load"] == before


def test_14_end_answers_before_a_slow_hook_is_done(api: Api) -> None:
    with HookServer(delay=3) as hooks:
        for _ in range(4):
            session_id = api.open(on_close_route=hooks.url + "/slow")
            begun = time.monotonic()
            assert api.end(session_id).status == 200
            assert time.monotonic() - begun < 1
            wait_for(lambda s=session_id: hooks.of(s), 5)  # type: ignore[misc]


def test_14_a_quick_hook_has_run_when_end_answers(api: Api) -> None:
    session_id = api.open(on_close_route="/hook")
    assert api.end(session_id).status == 200
    assert len(api.hooks(session_id)) == 1


def test_14_sessions_that_expire_together_are_closed_together() -> None:
    """Three on one worker, with hooks of 3 s: gone at once, their hooks done within 4 s."""
    with HookServer(delay=3) as hooks, sessions("--hook-allow", "127.0.0.1", workers=1) as api:
        ids = [api.open(lifetime=1, on_close_route=hooks.url + "/h") for _ in range(3)]
        due = time.time() + 1
        wait_for(lambda: all(hooks.of(each) for each in ids), 6)
        begun = [at for _, _, at in hooks.got]
        assert max(begun) - due < 1
        assert math.ceil(max(begun) - min(begun)) <= 1
        assert {api.use(each).status for each in ids} == {410}


def test_14_the_loopback_end_answers_before_a_slow_hook_too(api: Api) -> None:
    with HookServer(delay=3) as hooks:
        session_id = api.open(on_close_route=hooks.url + "/slow")
        begun = time.monotonic()
        body = {"session_id": session_id, "session_auth": AUTH}
        assert fetch(api.port + 1, "POST", "/session/end", body).status == 200
        assert time.monotonic() - begun < 1
