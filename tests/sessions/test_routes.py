"""The page's table of routes, with four workers and a new connection for each request."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import SESSIONWORKERS, fetch, wait_for
from tests.sessions.kit import AUTH, UNKNOWN, Api, sessions


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions("--max-sessions", "0") as running:
        yield running


TRIES = 8  # on four workers each request of a row is accepted by another one now and then


# POST /session/create


def test_create_is_201_with_session_id_and_expiration(api: Api) -> None:
    before = time.time()
    reply = api.create(lifetime=20, on_close_route="/hook", on_close_payload={"a": 1})
    assert reply.status == 201
    assert set(reply.json) == {"session_id", "expiration"}
    assert re.fullmatch(r"sw_[A-Za-z0-9_-]{43}", reply.json["session_id"])
    assert before + 19 < reply.json["expiration"] < time.time() + 21


def test_create_without_a_credential_mints_one(api: Api) -> None:
    reply = api.create(None, lifetime=20)
    assert reply.status == 201
    auth = reply.json["session_auth"]
    assert len(auth["token"]) == 43
    session_id = reply.json["session_id"]
    assert api.get(session_id, auth).json["auth_data"] is None  # kept as a digest alone
    assert api.health(session_id, {"token": "x"}).status == 401
    assert api.end(session_id, auth).status == 200


def test_create_defaults_to_sixty_seconds(api: Api) -> None:
    session_id = api.open()
    assert api.get(session_id).json["lifetime"] == 60


def test_create_drops_a_hook_payload_without_a_route(api: Api) -> None:
    found = api.get(api.open(on_close_payload={"a": 1})).json
    assert (found["on_close_route"], found["on_close_payload"]) == (None, None)


def test_create_tolerates_a_query_string(api: Api) -> None:
    assert api.post("/session/create?api_key=k", {"auth_data": AUTH, "payload": {}}).status == 201


def test_create_is_429_when_every_worker_is_full_and_says_when_to_come_back() -> None:
    with sessions("--max-sessions", "2") as api:
        opened = [api.open(lifetime=4) for _ in range(8)]
        reply = api.create(lifetime=4)
        assert reply.status == 429
        assert 1 <= int(reply.header("retry-after") or 0) <= 4
        assert api.load()["total"]["free_slots"] == 0
        assert api.load()["total"]["rejected"] >= 1
        assert api.end(opened[3]).status == 200
        assert api.create(lifetime=4).status == 201


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b"\xff\xfe{}",
        b'{"auth_data": {"cost": NaN}, "payload": {}}',
        b"[" * 100_000,
    ],
    ids=["empty", "cut off", "text", "not UTF-8", "NaN", "deep"],
)
@pytest.mark.parametrize("route", ["create", "end", "get", "health"])
def test_malformed_json_is_422(api: Api, route: str, body: bytes) -> None:
    reply = api.post(f"/session/{route}", body, {"content-type": "application/json"})
    if body.startswith(b"[[") and route != "create":
        assert reply.status == 413  # 64 KiB at the most
        return
    assert (reply.status, reply.json["error"]) == (422, "invalid JSON")


# POST /session/end


def test_end_is_200_with_the_removed_session(api: Api) -> None:
    for _ in range(TRIES):
        session_id = api.open()
        reply = api.end(session_id)
        assert (reply.status, reply.json) == (200, {"ended": True, "removed_session": session_id})


def test_end_of_an_unknown_session_is_400(api: Api) -> None:
    for session_id in (UNKNOWN, "aB3xY7kLm9Qz1", 5):
        assert api.end(session_id).status == 400


def test_end_with_a_bad_session_auth_is_401_and_ends_nothing(api: Api) -> None:
    session_id = api.open()
    for auth in (None, {}, {**AUTH, "cost": -1}, {**AUTH, "more": 1}, "s", {"signature": "s"}):
        reply = api.end(session_id, auth)
        assert (reply.status, reply.json["error"]) == (401, "session_auth is not valid")
    assert api.post("/session/end", {"session_id": session_id}).status == 401
    assert api.health(session_id).json == {"ok": True}


def test_end_of_a_closed_session_is_410(api: Api) -> None:
    session_id = api.open()
    assert api.end(session_id).status == 200
    assert [api.end(session_id).status for _ in range(TRIES)] == [410] * TRIES


def test_session_auth_is_compared_as_json(api: Api) -> None:
    session_id = api.open({"cost": 100, "a": {"b": [1, 2]}})
    assert api.health(session_id, {"a": {"b": [1.0, 2]}, "cost": 100.0}).json == {"ok": True}
    assert api.health(session_id, {"a": {"b": [2, 1]}, "cost": 100}).status == 401


# POST /session/get


def test_get_is_200_with_the_whole_session(api: Api) -> None:
    now = time.time()
    created = api.create(lifetime=30, on_close_route="/hook", on_close_payload={"a": [1, None]}).json
    for _ in range(TRIES):
        reply = api.get(created["session_id"])
        assert reply.status == 200
        found = reply.json
        assert abs(found.pop("created_at") - now) < 5
        assert abs(found.pop("expiration") - created["expiration"]) < 0.001  # get does not move it
        assert found == {
            "session_id": created["session_id"],
            "auth_data": AUTH,
            "lifetime": 30,
            "on_close_route": "/hook",
            "on_close_payload": {"a": [1, None]},
        }


def test_get_of_an_unknown_or_ended_session_is_400(api: Api) -> None:
    session_id = api.open()
    api.end(session_id)
    for each in (UNKNOWN, session_id):
        reply = api.get(each)
        assert (reply.status, reply.json["error"]) == (400, "session does not exist")


def test_get_with_a_bad_session_auth_is_401(api: Api) -> None:
    reply = api.get(api.open(), {"cost": 1})
    assert (reply.status, reply.json["error"]) == (401, "session_auth is not valid")


# POST /session/health


def test_health_is_200_ok_true(api: Api) -> None:
    session_id = api.open()
    assert [api.health(session_id).json for _ in range(TRIES)] == [{"ok": True}] * TRIES


def test_health_of_an_unknown_or_ended_session_is_200_ok_false(api: Api) -> None:
    session_id = api.open()
    api.end(session_id)
    for each, auth in ((UNKNOWN, AUTH), (session_id, AUTH), (session_id, None)):
        reply = api.health(each, auth)
        assert (reply.status, reply.json) == (200, {"ok": False})


def test_health_with_a_bad_session_auth_is_401(api: Api) -> None:
    assert api.health(api.open(), {}).status == 401


# all of them


@pytest.mark.parametrize("route", ["end", "get", "health"])
@pytest.mark.parametrize("body", [{}, {"session_id": ""}, {"session_id": None}, {"session_id": [1]}, [], "x", 5, True])
def test_a_missing_session_id_or_another_body_is_422(api: Api, route: str, body: Any) -> None:
    reply = api.post(f"/session/{route}", json.dumps(body).encode(), {"content-type": "application/json"})
    assert reply.status == 422
    assert reply.json["error"]


@pytest.mark.parametrize("route", ["create", "end", "get", "health"])
def test_another_method_is_405(api: Api, route: str) -> None:
    reply = api.server.fetch("GET", f"/session/{route}")
    assert (reply.status, reply.header("allow")) == (405, "POST")


def test_a_body_that_is_too_large_is_413(api: Api) -> None:
    assert api.end("x" * 70_000).status == 413
    assert api.create({**AUTH, "x": "x" * 2**20}).status == 413


def test_the_apps_own_routes_below_the_prefix_are_its_own(api: Api) -> None:
    assert api.server.fetch("GET", "/session/other").json["path"] == "/session/other"
    assert api.server.fetch("GET", "/session/nothing").status == 404
    assert api.server.fetch("GET", "/session").status == 404


def test_openapi_describes_the_routes(api: Api) -> None:
    document = api.server.fetch("GET", "/session/openapi.json").json
    assert document["openapi"].startswith("3.1")
    assert sorted(document["paths"]) == [f"/session/{name}" for name in ("create", "end", "get", "health", "load")]


def test_the_prefix_is_a_setting() -> None:
    with sessions("--session-prefix", "/v1/worker", workers=2) as api:
        made = api.post("/v1/worker/create", {"auth_data": AUTH, "payload": {}})
        assert made.status == 201
        body = {"session_id": made.json["session_id"], "session_auth": AUTH}
        assert api.post("/v1/worker/health", body).json == {"ok": True}
        assert fetch(api.port + 1, "POST", "/v1/worker/end", body).status == 200
        assert api.post("/session/create", {"auth_data": AUTH, "payload": {}}).status == 404


def test_no_session_id_stands_in_any_log() -> None:
    command = [*(part for part in SESSIONWORKERS if part != "--no-access-log"), "--session-api"]
    with sessions(workers=2, command=command) as api:
        session_id = api.open(on_close_route="/hook")
        api.use(session_id)
        api.post(f"/session/get?api_key=secret-key&x={session_id}", {"session_id": session_id, "session_auth": AUTH})
        api.end(session_id)
        wait_for(lambda: api.hooks(session_id), 5)
        assert "POST /session/get" in api.server.log
        assert session_id not in api.server.log
        assert "secret-key" not in api.server.log
