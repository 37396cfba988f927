"""Sessions and autoscaling: cost as load, queue time, caps, placement; with four workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import wait_for
from tests.sessions.kit import AUTH, Api, sessions


@pytest.fixture
def pool() -> Iterator[concurrent.futures.Executor]:
    with concurrent.futures.ThreadPoolExecutor(40) as executor:
        yield executor


def total(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = api.load()["total"]
    return found


def test_the_sessions_cost_counts_toward_its_workers_load_for_its_whole_lifetime() -> None:
    with sessions() as api:
        session_id = api.open({"cost": 77})
        for _ in range(3):
            assert total(api)["current_load"] == 77
            workers = [each["session_load"] for each in api.load()["workers"]]
            assert sorted(workers) == [0, 0, 0, 77]
            assert api.use(session_id, auth={"cost": 77}).status == 200
        api.end(session_id, {"cost": 77})
        assert total(api)["current_load"] == 0


def test_an_expired_sessions_load_is_gone() -> None:
    with sessions(workers=2) as api:
        api.open({"cost": 77}, lifetime=0.5)
        wait_for(lambda: total(api)["current_load"] == 0, 3)


def test_creates_prefer_the_least_loaded_worker() -> None:
    with sessions("--max-sessions", "0") as api:
        heavy = api.open({"cost": 1000})
        heavy_pid = api.use(heavy, auth={"cost": 1000}).json["pid"]
        pids = [api.use(api.open({"cost": 10}), auth={"cost": 10}).json["pid"] for _ in range(12)]
        assert heavy_pid not in pids
        assert sorted(Counter(pids).values()) == [4, 4, 4]


def test_requests_add_their_own_cost_while_they_run(pool: Any) -> None:
    with sessions("--request-cost", "/slow=250", "--request-cost", "7", workers=2) as api:
        session_id = api.open({"cost": 10})
        future = pool.submit(api.use, session_id, "/slow", {"s": 1.5}, {"cost": 10})
        wait_for(lambda: total(api)["in_flight"] == 1, 5)
        assert total(api)["current_load"] == 260
        assert future.result().status == 200
        wait_for(lambda: total(api)["current_load"] == 10, 5)


def test_a_requests_cost_may_be_a_function_of_its_payload(pool: Any) -> None:
    with sessions("--request-cost", "/slow=tests.sessions.app:double", workers=2) as api:
        session_id = api.open({"cost": 1})
        future = pool.submit(api.use, session_id, "/slow", {"s": 1.5, "tokens": 40}, {"cost": 1})
        wait_for(lambda: total(api)["current_load"] == 81, 5)
        assert future.result().json["slept"] == 1.5
        future = pool.submit(api.use, session_id, "/slow", {"s": 1.0}, {"cost": 1})  # it raises: 100
        wait_for(lambda: total(api)["current_load"] == 101, 5)
        future.result()


def test_queue_time_refuses_with_429_by_real_requests_and_never_by_idle_sessions(pool: Any) -> None:
    with sessions("--max-queue-time", "0.5", "--request-cost", "/slow=1000000", workers=1) as api:
        huge = {"cost": 1e11}
        session_id = api.open(huge)
        for _ in range(5):  # something is measured: short requests of cost 100
            assert api.use(None, "/slow", {"s": 0.02}).status in (200, 429)
            assert api.use(session_id, auth=huge).status == 200
        # idle sessions of any cost make nobody wait
        assert api.use(None).status == 200
        future = pool.submit(api.use, None, "/slow", {"s": 3})
        wait_for(lambda: api.load()["workers"][0]["wait"] > 0, 5)
        if api.load()["workers"][0]["wait"] > 0.5:
            expiration = api.get(session_id, huge).json["expiration"]
            ordinary, within = api.use(None), api.use(session_id, auth=huge)
            assert (ordinary.status, within.status) == (429, 429)
            assert int(ordinary.header("retry-after") or 0) >= 1
            assert api.get(session_id, huge).json["expiration"] == pytest.approx(expiration, abs=0.01)
            assert total(api)["rejected"] >= 2
        assert future.result().status in (200, 429)


def test_queue_time_is_off_by_default(pool: Any) -> None:
    with sessions("--request-cost", "/slow=1000000000", workers=1) as api:
        assert api.use(None).status == 200
        future = pool.submit(api.use, None, "/slow", {"s": 1})
        wait_for(lambda: total(api)["in_flight"] >= 1, 5)
        assert api.use(None).status == 200
        future.result()


def test_load_shows_every_worker_and_the_sums_and_metrics_the_same() -> None:
    with sessions("--max-sessions", "3") as api:
        ids = [api.open({"cost": 10}) for _ in range(5)]
        found = api.load()
        assert len(found["workers"]) == 4
        assert found["total"] == {
            "current_load": 50,
            "sessions": 5,
            "in_flight": 0,
            "rejected": 0,
            "max_sessions": 12,
            "free_slots": 7,
        }
        text = api.server.fetch("GET", "/session/load?format=prometheus").text
        rows = [line for line in text.splitlines() if line.startswith("sessionworkers_session_sessions{")]
        assert sum(int(row.split()[-1]) for row in rows) == 5
        assert not any(each in text for each in ids)


def test_a_burst_fills_every_slot_and_not_one_more() -> None:
    """80 creates at once for 4 x 10 slots: 40 get in, 40 are told when to come back."""
    with sessions() as api:

        async def main() -> list[Any]:
            body = {"auth_data": AUTH, "payload": {}}
            return await asyncio.gather(*(api.server.afetch("POST", "/session/create", body) for _ in range(80)))

        replies = asyncio.run(main())
        assert Counter(reply.status for reply in replies) == {201: 40, 429: 40}
        assert all(1 <= int(each.header("retry-after")) <= 10 for each in replies if each.status == 429)
        assert [each["sessions"] for each in api.load()["workers"]] == [10] * 4


def test_many_sessions_opened_at_once_spread_evenly() -> None:
    """200 here; `test_scale` has 1,000."""
    with sessions("--max-sessions", "60") as api:

        async def main() -> list[Any]:
            body = {"auth_data": AUTH, "payload": {}}
            return await asyncio.gather(*(api.server.afetch("POST", "/session/create", body) for _ in range(200)))

        assert {reply.status for reply in asyncio.run(main())} == {201}
        counts = [each["sessions"] for each in api.load()["workers"]]
        assert sum(counts) == 200
        assert max(counts) - min(counts) <= 2


def test_a_client_that_dies_loses_its_sessions_a_lifetime_after_the_last_request() -> None:
    """20 here; `test_scale` has 100."""
    with sessions() as api:
        ids = [api.open(lifetime=1.5, on_close_route="/hook") for _ in range(20)]
        for each in ids:
            assert api.use(each).status == 200
        last = time.time()
        wait_for(lambda: len(api.events("hook")) == 20, 8)
        assert max(each["at"] for each in api.events("hook")) - last < 1.5 + 5
        assert min(each["at"] for each in api.events("hook")) - last > 0
        assert total(api)["sessions"] == 0
