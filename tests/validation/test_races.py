"""Row 10: what happens at the same time on two workers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.harness import Reply, Server
from tests.validation.gym import WINDOW, at, cookie_of, gym, new_id, ok, pids, typed


def both(first: Callable[[], Reply], second: Callable[[], Reply]) -> tuple[Reply, Reply]:
    """Both at once."""
    barrier = threading.Barrier(2)

    def run(act: Callable[[], Reply]) -> Reply:
        barrier.wait()
        return act()

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(run, (first, second))
    return one, two


def made(s: Server, workers: list[int]) -> Counter[str]:
    return Counter(sid for pid in workers for sid in at(s, pid, "GET", "/state").json["made"])


def live(s: Server, workers: list[int]) -> set[str]:
    return {sid for pid in workers for sid in at(s, pid, "GET", "/state").json["live"]}


def test_row10_two_workers_claim_one_id(many: Server, workers: list[int]) -> None:
    """Both starts reach the winner, or one is told of the conflict; never two sessions."""
    ids = [new_id() for _ in range(40)]
    outcomes: Counter[tuple[int, int]] = Counter()
    for sid in ids:
        one, two = both(
            lambda sid=sid: at(many, workers[0], "POST", "/seed_session", typed(sid)),
            lambda sid=sid: at(many, workers[1], "POST", "/seed_session", typed(sid)),
        )
        outcomes[one.status, two.status] += 1
        assert 200 in (one.status, two.status)
        assert len({reply.json["pid"] for reply in (one, two) if reply.status == 200}) == 1
    assert set(outcomes) <= {(200, 200), (200, 409), (409, 200)}, outcomes
    counted = made(many, workers)
    assert [counted[sid] for sid in ids] == [1] * len(ids)


def test_row10_a_start_and_a_close_of_one_id(many: Server, workers: list[int]) -> None:
    """Either the close ends the session or the start is refused: nothing stays behind."""
    ids = [new_id() for _ in range(40)]
    for sid in ids:
        start, close = both(
            lambda sid=sid: at(many, workers[0], "POST", "/seed_session", typed(sid)),
            lambda sid=sid: at(many, workers[1], "POST", "/close_session", typed(sid)),
        )
        assert close.status == 200, close.text
        assert (start.status == 200) == close.json["held"], (start.status, close.json)
        assert start.status in (200, 409)
    assert not live(many, workers) & set(ids)


def test_row10_a_claim_that_ends_under_a_request(quick: Server) -> None:
    """Requests that arrive just when the claim ends are answered by the app all the same."""
    first, _ = pids(quick)
    ids = [new_id() for _ in range(40)]
    for sid in ids:
        ok(at(quick, first, "POST", "/seed_session", typed(sid)))

    async def late(number: int, sid: str) -> int:
        ok(await quick.afetch("POST", "/close_session", typed(sid)))
        await asyncio.sleep(WINDOW + (number - 20) * 0.005)
        return (await quick.afetch("POST", "/close_session", typed(sid))).status

    async def main() -> list[int]:
        return await asyncio.gather(*(late(number, sid) for number, sid in enumerate(ids)))

    assert Counter(asyncio.run(main())) == Counter({200: len(ids)})


def test_row10_a_server_started_again() -> None:
    """A fresh runtime directory: what the old one claimed is unknown, not gone, and is claimed where it lands."""
    with gym(2) as s:
        cookie = cookie_of(s.fetch("POST", "/seed_session", typed(new_id())))
        assert ok(s.fetch("POST", "/call", {}, cookie))["n"] == 1
        old = s.runtime_dir
    with gym(2) as s:
        assert s.runtime_dir != old
        first, second = pids(s)
        assert s.claims() == []
        again = ok(at(s, second, "POST", "/call", {}, cookie))
        assert (again["pid"], again["n"]) == (second, 1)
        assert ok(at(s, first, "POST", "/call", {}, cookie))["pid"] == second
        assert len(s.claims()) == 1
