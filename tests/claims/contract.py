"""The contract of ``claims.store`` as tests. A store's test file subclasses this and says how to make stores.

Nothing here knows how a store keeps its claims.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

import pytest

from sessionworkers.claims import ClaimStore

Make = Callable[[], ClaimStore]  # the store of one more worker


def key() -> str:
    return secrets.token_hex(16)


class Contract:
    """``make`` is a fixture that each subclass brings: a function that gives a new worker's store."""

    def test_unclaimed(self, make: Make) -> None:
        store = make()
        assert store.owner(key()) is None
        assert store.keys() == []

    def test_claimed_is_seen_by_all_at_once(self, make: Make) -> None:
        a, b = make(), make()
        k = key()
        assert b.owner(k) is None
        assert a.claim(k) == a.me
        assert a.owner(k) == b.owner(k) == a.me
        assert make().owner(k) == a.me

    def test_first_wins_and_again_is_no_harm(self, make: Make) -> None:
        a, b = make(), make()
        k = key()
        assert [a.claim(k), b.claim(k), a.claim(k), b.claim(k)] == [a.me] * 4

    def test_keys_do_not_touch_each_other(self, make: Make) -> None:
        a, b = make(), make()
        mine, other = key(), key()
        a.claim(mine)
        b.claim(other)
        assert (b.owner(mine), a.owner(other)) == (a.me, b.me)
        assert (a.keys(), b.keys()) == ([mine], [other])
        assert (a.keys(b.me), b.keys(a.me)) == ([other], [mine])

    def test_for_another_worker(self, make: Make) -> None:
        a, b, c = make(), make(), make()
        k = key()
        assert a.claim(k, b.me) == b.me
        assert a.owner(k) == b.owner(k) == b.me
        assert c.claim(k, c.me) == b.me
        assert a.claim(k) == b.me
        assert b.claim(k) == b.me
        assert not a.release(k)
        assert b.release(k)

    def test_release(self, make: Make) -> None:
        a, b = make(), make()
        k = key()
        assert not a.release(k)
        a.claim(k)
        assert not b.release(k)
        assert b.owner(k) == a.me
        assert a.release(k)
        assert not a.release(k)
        assert a.owner(k) is b.owner(k) is None
        assert b.claim(k) == b.me
        assert a.owner(k) == b.me

    def test_move(self, make: Make) -> None:
        a, b, c = make(), make(), make()
        k = key()
        assert not a.move(k, b.me)
        assert a.owner(k) is None
        a.claim(k)
        assert not b.move(k, b.me)
        assert a.owner(k) == a.me
        assert a.move(k, b.me)
        assert a.owner(k) == b.owner(k) == c.owner(k) == b.me
        assert not a.move(k, a.me) and not a.release(k)
        assert b.move(k, b.me)
        assert c.owner(k) == b.me
        assert (a.keys(), b.keys()) == ([], [k])
        assert b.release(k)
        assert c.owner(k) is None

    def test_a_closed_stores_claims_stay(self, make: Make) -> None:
        a, b = make(), make()
        k = key()
        a.claim(k)
        a.close()
        assert b.owner(k) == a.me
        assert b.claim(k) == a.me
        assert not b.release(k)

    @pytest.mark.parametrize(
        "bad", ["", "a" * 31, "a" * 33, "A" * 32, "../" + "a" * 29, "a" * 31 + "/", "a" * 31 + "\0", "a" * 32 + "\n"]
    )
    def test_only_a_key_is_a_key(self, make: Make, bad: str) -> None:
        store = make()
        for call in (store.claim, store.owner, store.release):
            with pytest.raises(ValueError, match="32 lower-case hex digits"):
                call(bad)
        with pytest.raises(ValueError, match="32 lower-case hex digits"):
            store.move(bad, store.me)

    def test_a_thousand_racers_on_each_new_key_have_one_winner(self, make: Make) -> None:
        """8 workers as threads; 1,000 rounds on a fresh key each."""
        stores = [make() for _ in range(8)]
        keys = [key() for _ in range(1000)]
        told: list[list[str]] = [[] for _ in stores]
        start = threading.Barrier(len(stores))

        def race(store: ClaimStore, answers: list[str]) -> None:
            for number, k in enumerate(keys):
                if number % 100 == 0:
                    start.wait()
                answers.append(store.claim(k))

        threads = [threading.Thread(target=race, args=pair) for pair in zip(stores, told, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for k, *answers in zip(keys, *told, strict=True):
            assert len(set(answers)) == 1
            assert stores[0].owner(k) == answers[0]
        assert sum(len(store.keys()) for store in stores) == len(keys)
