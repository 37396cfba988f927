"""The rule end to end, row by row: real routers and ledgers, two workers, a clock set by hand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from sessionworkers.ledger.current import claim, current_session
from tests.ledger.world import Reply, Request, World, as_json

TYPED = "json:sid cookie:sid start=POST:/start end=POST:/end late-start=refuse window=300"
PATH = "path:/s/{id} json:sid end=DELETE:/s/{id} idle=1000"


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


class Dicts:
    """An app with a dict per worker: POST /s mints, /s/ID counts, DELETE /s/ID ends."""

    def __init__(self) -> None:
        self.state: dict[str, dict[str, int]] = {}
        self.ids = (f"id-{number:04}" for number in itertools.count())

    def __call__(self, request: Request) -> Reply:
        mine = self.state.setdefault(request.worker, {})
        if request.path == "/s":
            sid = next(self.ids)
            mine[sid] = 0
            return as_json(201, {"sid": sid})
        sid = request.path.split("/")[2]
        if sid not in mine:
            return as_json(404, {"error": "unknown"})
        if request.method == "DELETE":
            del mine[sid]
            return as_json(200, {})
        mine[sid] += 1
        return as_json(200, {"n": mine[sid]})


def test_a_minted_id_is_claimed_before_its_reply_and_routes() -> None:
    async def test() -> None:
        world = World([PATH], Dicts(), workers=3)
        sid = (await world.ask("w1", "POST", "/s")).json["sid"]
        assert list(world.shared.values()) == ["w1"]
        for number, worker in enumerate(["w0", "w2", "w1", "w0"], 1):
            reply = await world.ask(worker, "POST", f"/s/{sid}/act")
            assert (reply.by, reply.json) == ("w1", {"n": number})

    run(test)


def test_unknown_is_not_gone_and_claims_nothing() -> None:
    async def test() -> None:
        world = World([PATH], Dicts())
        for number in range(200):
            reply = await world.ask("w0", "POST", f"/s/made-up-{number}/act")
            assert (reply.status, reply.by) == (404, "w0")
        assert world.shared == {}

    run(test)


def test_gone_is_answered_for_a_dead_worker_and_only_for_its_sessions() -> None:
    async def test() -> None:
        world = World([PATH], Dicts())
        lost = (await world.ask("w1", "POST", "/s")).json["sid"]
        kept = (await world.ask("w0", "POST", "/s")).json["sid"]
        world.kill("w1")
        for _ in range(3):
            reply = await world.ask("w0", "POST", f"/s/{lost}/act")
            assert (reply.status, reply.by) == (410, None)
            assert lost.encode() not in reply.body
        assert (await world.ask("w0", "POST", f"/s/{kept}/act")).status == 200

    run(test)


def test_the_end_counts_when_the_app_answers_2xx_and_the_claim_lives_for_the_window() -> None:
    async def test() -> None:
        world = World([PATH], Dicts(), workers=3)
        sid = (await world.ask("w1", "POST", "/s")).json["sid"]
        assert (await world.ask("w0", "DELETE", f"/s/{sid}")).status == 200
        await world.pass_time(299)
        assert (await world.ask("w0", "POST", f"/s/{sid}/act")).by == "w1", "late requests still reach the owner"
        await world.pass_time(299)
        assert len(world.shared) == 1, "counted from the last request"
        await world.pass_time(2)
        assert world.shared == {}
        assert (await world.ask("w2", "POST", f"/s/{sid}/act")).by == "w2", "unknown now: the app answers"
        assert (await world.ask("w0", "POST", f"/s/{sid}/act")).status == 404, "w0 still remembers w1: no harm"

    run(test)


def test_return_window_bounds_ids_that_never_come_back() -> None:
    async def test() -> None:
        world = World([PATH], Dicts())
        for _ in range(20):
            await world.ask("w0", "POST", "/s")
        used = (await world.ask("w0", "POST", "/s")).json["sid"]
        await world.ask("w1", "POST", f"/s/{used}/act")
        assert len(world.shared) == 21
        await world.pass_time(301)
        assert len(world.shared) == 1
        await world.pass_time(1000)
        assert world.shared == {}, "idle time after its last request"

    run(test)


class Typed:
    """NeMo's shape: a typed start by the body's ID, whose reply sets a cookie with another; both name the session."""

    def __init__(self) -> None:
        self.status = 200
        self.cookies = (f"c-{number:04}" for number in itertools.count())
        self.cookie = True

    def __call__(self, request: Request) -> Reply:
        headers = []
        if request.path == "/start" and self.cookie and self.status == 200:
            headers = [(b"set-cookie", f"sid={next(self.cookies)}; Path=/".encode())]
        return as_json(self.status, {"ok": True}, headers)


def cookie_of(reply: Reply) -> dict[str, str]:
    value = dict(reply.headers)[b"set-cookie"].decode().split(";")[0]
    return {"cookie": value}


def test_aliases_one_session_by_two_ids_and_its_close_carries_both() -> None:
    async def test() -> None:
        world = World([TYPED], Typed())
        started = await world.ask("w1", "POST", "/start", body={"sid": "typed-1"})
        cookie = cookie_of(started)
        assert (await world.ask("w0", "POST", "/tool", headers=cookie)).by == "w1"
        await world.pass_time(10_000)
        assert len(world.shared) == 2, "an open session does not idle out"
        assert (await world.ask("w0", "POST", "/end", headers=cookie, body={"sid": "typed-1"})).by == "w1"
        await world.pass_time(301)
        assert world.shared == {}

    run(test)


def test_two_ids_of_two_sessions_on_a_start_or_end_are_refused() -> None:
    async def test() -> None:
        for workers in (1, 2):
            app = Typed()
            world = World([TYPED], app, workers=workers)
            other = world.names[-1]
            one = cookie_of(await world.ask("w0", "POST", "/start", body={"sid": "typed-1"}))
            await world.ask(other, "POST", "/start", body={"sid": "typed-2"})
            ran = len(world.ran)
            for path in ("/start", "/end"):
                reply = await world.ask("w0", "POST", path, headers=one, body={"sid": "typed-2"})
                assert reply.status == 409
                # a session that was started under another typed ID cannot be started again under a new one
                reply = await world.ask(other, "POST", path, headers=one, body={"sid": "typed-3"})
                assert reply.status == 409
            assert len(world.ran) == ran, "no app saw it"
            # neither a start nor an end: the first ID decides
            assert (await world.ask("w0", "POST", "/tool", headers=one)).status == 200

    run(test)


def test_a_typed_start_joins_the_implicit_session_of_its_cookie() -> None:
    async def test() -> None:
        world = World([TYPED], lambda request: as_json(200, {}, [(b"set-cookie", b"sid=cookie-1; Path=/")]))
        cookie = cookie_of(await world.ask("w1", "GET", "/health"))
        assert (await world.ask("w0", "POST", "/start", headers=cookie, body={"sid": "typed-1"})).by == "w1"
        assert (await world.ask("w0", "POST", "/end", body={"sid": "typed-1"})).by == "w1"

    run(test)


def test_late_start_is_refused_within_the_window_and_new_after_it() -> None:
    async def test() -> None:
        world = World([TYPED], Typed())
        await world.ask("w1", "POST", "/start", body={"sid": "typed-1"})
        assert (await world.ask("w0", "POST", "/start", body={"sid": "typed-1"})).status == 200, "a retried start"
        await world.ask("w0", "POST", "/end", body={"sid": "typed-1"})
        assert (await world.ask("w0", "POST", "/end", body={"sid": "typed-1"})).status == 200, "a retried end"
        assert (await world.ask("w0", "POST", "/start", body={"sid": "typed-1"})).status == 409
        await world.pass_time(301)
        assert world.shared == {}
        assert (await world.ask("w0", "POST", "/start", body={"sid": "typed-1"})).status == 200

    run(test)


def test_a_close_before_its_start_makes_the_delayed_start_refused_everywhere() -> None:
    async def test() -> None:
        world = World([TYPED], Typed())
        assert (await world.ask("w1", "POST", "/end", body={"sid": "typed-1"})).by == "w1"
        assert (await world.ask("w0", "POST", "/start", body={"sid": "typed-1"})).status == 409

    run(test)


def test_a_refused_end_of_an_id_that_nobody_started_claims_nothing() -> None:
    async def test() -> None:
        app = Typed()
        app.status = 404
        world = World([TYPED], app)
        await world.ask("w1", "POST", "/end", body={"sid": "typed-1"})
        assert world.shared == {}

    run(test)


def test_a_failed_start_keeps_its_claim_for_the_window_or_releases_it() -> None:
    async def test() -> None:
        for words, left in ((TYPED, 1), (TYPED + " failed-start=release", 0)):
            app = Typed()
            app.status = 500
            world = World([words], app)
            await world.ask("w1", "POST", "/start", body={"sid": "typed-1"})
            assert len(world.shared) == left
            app.status = 200
            reply = await world.ask("w0", "POST", "/end", body={"sid": "typed-1"})
            assert reply.by == ("w1" if left else "w0"), "the clean-up close reaches the worker that kept partial state"
            await world.pass_time(301)
            assert world.shared == {}

    run(test)


def test_racing_starts_of_one_id_run_on_one_worker() -> None:
    async def test() -> None:
        world = World([TYPED], Typed(), workers=4)
        replies = await asyncio.gather(
            *(world.ask(name, "POST", "/start", body={"sid": "typed-1"}) for name in world.names * 5)
        )
        assert len({reply.by for reply in replies}) == 1

    run(test)


def test_a_start_and_an_end_at_once_meet_on_one_worker() -> None:
    async def test() -> None:
        world = World([TYPED], Typed())
        first, second = await asyncio.gather(
            world.ask("w0", "POST", "/start", body={"sid": "t"}), world.ask("w1", "POST", "/end", body={"sid": "t"})
        )
        assert {first.by, second.by} - {None} in ({"w0"}, {"w1"})

    run(test)


def test_an_id_minted_on_two_workers_is_answered_409_the_second_time() -> None:
    async def test() -> None:
        world = World([PATH], lambda request: as_json(201, {"sid": "the-same-id-twice"}))
        assert (await world.ask("w0", "POST", "/s")).status == 201
        reply = await world.ask("w1", "POST", "/s")
        assert reply.status == 409
        assert b"the-same-id-twice" not in reply.body

    run(test)


def test_nothing_is_learned_from_errors() -> None:
    async def test() -> None:
        world = World([PATH], lambda request: as_json(500, {"sid": "an-id-in-an-error"}))
        await world.ask("w0", "POST", "/s")
        assert world.shared == {}

    run(test)


def test_the_cap_refuses_new_sessions_only() -> None:
    async def test() -> None:
        world = World([PATH], Dicts(), max_claims=3)
        sids = [(await world.ask("w0", "POST", "/s")).json["sid"] for _ in range(3)]
        refused = await world.ask("w0", "POST", "/s")
        assert refused.status == 503
        assert dict(refused.headers)[b"retry-after"]
        for sid in sids:
            assert (await world.ask("w1", "POST", f"/s/{sid}/act")).status == 200
        assert len(world.shared) == 3
        await world.pass_time(2000)
        assert (await world.ask("w0", "POST", "/s")).status == 201

    run(test)


def test_a_claim_whose_time_came_while_a_request_runs_stays() -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def app(request: Request) -> Reply:
            if request.path.endswith("/wait"):
                await gate.wait()
            return as_json(200, {"sid": "s-1"} if request.path == "/s" else {})

        world = World([PATH], app)
        await world.ask("w0", "POST", "/s")
        waiting = asyncio.create_task(world.ask("w1", "POST", "/s/s-1/wait"))
        while len(world.ran) < 2:
            await asyncio.sleep(0)
        await world.pass_time(50_000)
        assert len(world.shared) == 1
        gate.set()
        assert (await waiting).by == "w0"
        await world.pass_time(1001)
        assert world.shared == {}

    run(test)


def test_a_moved_claim_shows_as_not_mine_and_is_read_once_more() -> None:
    async def test() -> None:
        app = Dicts()
        world = World([PATH, TYPED], app, workers=3)
        sid = (await world.ask("w1", "POST", "/s")).json["sid"]
        await world.ask("w0", "POST", f"/s/{sid}/act")  # w0 remembers w1
        key = next(iter(world.shared))
        record = world.ledgers["w1"].book.get(key)
        assert record is not None
        world.ledgers["w1"].book._by_key.clear()
        world.shared[key] = "w2"
        app.state.setdefault("w2", {})[sid] = 41
        reply = await world.ask("w0", "POST", f"/s/{sid}/act")
        assert (reply.by, reply.json) == ("w2", {"n": 42})

    run(test)


def test_a_start_whose_claim_moved_meanwhile_is_refused() -> None:
    async def test() -> None:
        world = World([TYPED], Typed(), workers=3)
        await world.ask("w1", "POST", "/start", body={"sid": "t"})
        await world.ask("w0", "POST", "/tool", body={"sid": "t"})
        key = next(key for key, owner in world.shared.items() if world.routers["w0"]._owners.get(key) == owner)
        world.ledgers["w1"].book._by_key.clear()
        world.shared[key] = "w2"
        assert (await world.ask("w0", "POST", "/start", body={"sid": "t"})).status == 409

    run(test)


def test_with_one_worker_nothing_hops_and_the_same_refusals_hold() -> None:
    async def test() -> None:
        world = World([TYPED], Typed(), workers=1)
        await world.ask("w0", "POST", "/start", body={"sid": "t"})
        await world.ask("w0", "POST", "/end", body={"sid": "t"})
        assert (await world.ask("w0", "POST", "/start", body={"sid": "t"})).status == 409

    run(test)


def test_current_session_state_and_close_callbacks() -> None:
    async def test() -> None:
        closed: list[str] = []

        def app(request: Request) -> Reply:
            session = current_session()
            assert session is not None
            if request.path == "/s":
                session.state["n"] = 0
                session.on_close(lambda: closed.append("closed"))
                return as_json(201, {"sid": "minted"})
            session.state["n"] += 1
            return as_json(200, {"n": session.state["n"], "id": session.id, "owner": session.owner})

        world = World([PATH], app)
        await world.ask("w1", "POST", "/s")
        for number in (1, 2):
            reply = await world.ask("w0", "POST", "/s/minted/act")
            assert reply.json == {"n": number, "id": "minted", "owner": "w1"}
        assert closed == []
        await world.ask("w0", "DELETE", "/s/minted")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert closed == ["closed"]
        await world.pass_time(301)
        assert closed == ["closed"], "once"
        assert world.shared == {}

    run(test)


def test_a_close_callback_that_raises_keeps_the_record_and_is_tried_again_a_window_later() -> None:
    async def test() -> None:
        tries: list[float] = []
        world: World

        def release() -> None:
            tries.append(world.now)
            if len(tries) < 3:
                raise RuntimeError("not yet")

        def app(request: Request) -> Reply:
            session = current_session()
            assert session is not None
            if request.path == "/s":
                session.on_close(release)
                return as_json(201, {"sid": "minted"})
            return as_json(200, {})

        world = World([PATH], app)
        await world.ask("w0", "POST", "/s")
        await world.ask("w0", "DELETE", "/s/minted")
        for _ in range(3):
            await asyncio.sleep(0)
        for _ in range(4):
            await world.pass_time(301)
        assert tries == [1000.0, 1301.0, 1602.0]
        assert world.shared == {}

    run(test)


def test_discard_leaves_nothing_behind() -> None:
    async def test() -> None:
        def app(request: Request) -> Reply:
            session = current_session()
            assert session is not None
            session.on_close(lambda: (_ for _ in ()).throw(AssertionError("a discarded session closes nothing")))
            session.discard()
            return as_json(200, {})

        world = World([TYPED], app)
        await world.ask("w0", "POST", "/start", body={"sid": "t"})
        assert world.shared == {}

    run(test)


def test_end_by_the_app_refuses_late_starts() -> None:
    async def test() -> None:
        def app(request: Request) -> Reply:
            session = current_session()
            if request.path == "/tool" and session is not None:
                session.end()
            return as_json(200, {})

        world = World([TYPED], app)
        await world.ask("w1", "POST", "/start", body={"sid": "t"})
        await world.ask("w0", "POST", "/tool", body={"sid": "t"})
        assert (await world.ask("w0", "POST", "/start", body={"sid": "t"})).status == 409

    run(test)


def test_claim_by_the_app_for_ids_that_cannot_be_read() -> None:
    async def test() -> None:
        def app(request: Request) -> Reply:
            if request.path == "/proto":
                claim("inside-protobuf")
            return Reply(200)

        world = World([PATH], app)
        await world.ask("w1", "POST", "/proto")
        assert (await world.ask("w0", "GET", "/s/inside-protobuf/x")).by == "w1"

    run(test)


def test_an_end_by_a_later_alias_ends_that_alone() -> None:
    async def test() -> None:
        def app(request: Request) -> Reply:
            if request.path == "/s":
                return as_json(201, {"sid": "first"})
            if request.path.endswith("/fork"):
                return as_json(201, {"sid": "second"})
            return as_json(200, {})

        world = World([PATH], app)
        await world.ask("w1", "POST", "/s")
        await world.ask("w0", "POST", "/s/first/fork")
        assert (await world.ask("w0", "POST", "/s/second/act")).by == "w1"
        await world.ask("w0", "DELETE", "/s/second")
        await world.pass_time(301)
        assert len(world.shared) == 1
        assert (await world.ask("w0", "POST", "/s/first/act")).by == "w1"

    run(test)


def test_a_session_ends_and_its_later_alias_lives_on() -> None:
    async def test() -> None:
        def app(request: Request) -> Reply:
            if request.path == "/s":
                return as_json(201, {"sid": "first"})
            if request.path.endswith("/fork"):
                return as_json(201, {"sid": "second"})
            return as_json(200, {})

        world = World([PATH], app)
        await world.ask("w1", "POST", "/s")
        await world.ask("w0", "POST", "/s/first/fork")
        await world.ask("w0", "POST", "/s/second/act")
        await world.ask("w0", "DELETE", "/s/first")
        await world.pass_time(301)
        assert len(world.shared) == 1
        assert (await world.ask("w0", "POST", "/s/second/act")).by == "w1"

    run(test)


# auto


def test_auto_routes_what_replies_hand_out_and_forgets_what_two_workers_hand_out() -> None:
    async def test() -> None:
        minted = iter(f"{number:032x}" for number in (0xABCDEF0123456789 + i * 0x9E3779B97F4A7C15 for i in range(99)))

        def app(request: Request) -> Reply:
            if request.path == "/new":
                return as_json(200, {"session_id": next(minted), "build_id": "x"})
            if request.path == "/same":
                return as_json(200, {"run_id": "feedface" * 4})
            return as_json(200, {})

        world = World([], app, workers=3)
        world.boot_with_auto()
        sid = (await world.ask("w1", "POST", "/new")).json["session_id"]
        assert (await world.ask("w0", "GET", f"/thing/{sid}/x")).by == "w1"
        assert (await world.ask("w2", "GET", f"/q?session_id={sid}")).by == "w1"
        world.kill("w1")
        assert (await world.ask("w0", "GET", f"/thing/{sid}/x")).by == "w0", "an inferred ID never refuses"
        await world.ask("w0", "POST", "/same")
        await world.ask("w2", "POST", "/same")
        assert (await world.ask("w2", "GET", "/x?run_id=" + "feedface" * 4)).by == "w2", "no session: it goes nowhere"

    run(test)


def test_auto_claims_session_like_request_values_on_sight_and_drops_them_when_the_app_refuses() -> None:
    async def test() -> None:
        status = [200]
        world = World([], lambda request: as_json(status[0], {}), workers=2)
        world.boot_with_auto()
        for answer, left in ((404, 0), (200, 1)):
            status[0] = answer
            await world.ask("w1", "POST", "/chat", headers={"x-session-id": "conversation-0001-abc"})
            assert len(world.shared) == left
        assert (await world.ask("w0", "POST", "/chat", headers={"x-session-id": "conversation-0001-abc"})).by == "w1"

    run(test)
