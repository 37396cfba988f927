"""The page's statements that no other test here is named after: failure modes, lifetimes, sessions and autoscaling.

``test_routes`` has its table of routes, ``test_load`` its statements on load, ``tests/client`` what the SDK does.
"""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import fetch, wait_for
from tests.sessions.kit import AUTH, Api, sessions


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions("--max-sessions", "0") as running:
        yield running


def test_a_session_is_pinned_until_it_is_closed(api: Api) -> None:
    session_id = api.open(lifetime=30)
    pids = {api.use(session_id).json["pid"] for _ in range(30)}
    assert len(pids) == 1
    assert api.end(session_id).status == 200
    assert api.use(session_id).status == 410


def test_sessions_spread_as_requests_would(api: Api) -> None:
    pids = {api.use(api.open(lifetime=30)).json["pid"] for _ in range(12)}
    assert len(pids) == 4


def test_every_request_pushes_the_expiration_out(api: Api) -> None:
    created = api.create(lifetime=10).json
    time.sleep(0.5)
    api.use(created["session_id"])
    moved = api.get(created["session_id"]).json["expiration"] - created["expiration"]
    assert 0.4 < moved < 3


def test_get_and_health_do_not(api: Api) -> None:
    created = api.create(lifetime=10).json
    time.sleep(0.3)
    api.health(created["session_id"])
    found = api.get(created["session_id"]).json
    assert found["expiration"] == pytest.approx(created["expiration"], abs=0.01)


def test_an_actively_used_session_never_expires(api: Api) -> None:
    session_id = api.open(lifetime=1)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        assert api.use(session_id).status == 200
        time.sleep(0.4)


def test_an_abandoned_session_is_closed_within_five_seconds_of_its_deadline(api: Api) -> None:
    session_id = api.open(lifetime=1, on_close_route="/hook")
    begun = time.time()
    wait_for(lambda: api.hooks(session_id), 7)
    assert 0.9 < api.hooks(session_id)[0]["at"] - begun < 1.0 + 5


def test_a_session_blocks_a_slot_until_it_expires() -> None:
    with sessions("--max-sessions", "1", workers=2) as api:
        for _ in range(2):
            api.open(lifetime=1)
        assert api.create().status == 429
        wait_for(lambda: api.create(lifetime=1).status == 201, 5)


def test_the_session_resumes_for_anyone_who_has_both_halves(api: Api) -> None:
    session_id = api.open(lifetime=30)
    found = api.get(session_id, json.loads(json.dumps(AUTH))).json
    assert api.use(found["session_id"], auth=found["auth_data"]).status == 200


def test_close_cancels_what_is_in_flight_and_stops_the_load(api: Api) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        before = api.load()["total"]["current_load"]
        session_id = api.open({"cost": 50})
        future = pool.submit(api.use, session_id, "/slow", {"s": 30}, {"cost": 50})
        wait_for(lambda: api.load()["total"]["in_flight"] == 1, 5)
        assert api.load()["total"]["current_load"] == before + 150
        api.end(session_id, {"cost": 50})
        assert future.result(5).status == 410
        wait_for(lambda: api.load()["total"]["current_load"] == before, 5)


def test_the_completion_webhook_of_the_page(api: Api) -> None:
    """What a job posts: the merged ``extra_params``, in any order, with keys of its own."""
    session_id = api.open(lifetime=30)
    body = {"id": "job", "output": [], "session_auth": AUTH, "session_id": session_id, "status": "completed"}
    assert fetch(api.port + 1, "POST", "/session/end", body).status == 200
    assert api.use(session_id).status == 410


def test_touch_keeps_a_session_alive_for_work_that_no_request_waits_for(api: Api) -> None:
    session_id = api.open(lifetime=0.8, on_close_route="/hook")
    begun = time.time()
    assert api.use(session_id, "/touch-later", {"times": 5, "gap": 0.4}).status == 200
    wait_for(lambda: api.hooks(session_id), 8)
    assert 2.6 < api.hooks(session_id)[0]["at"] - begun < 4


def test_lifetimes_of_many_kinds(api: Api) -> None:
    given: Any
    for given in (0.001, 1, 1.5, 86_400, 7 * 86_400):
        reply = api.create(lifetime=given)
        assert reply.status == 201
