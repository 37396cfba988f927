"""The claim store fails: new sessions are refused with Retry-After, existing ones go on, nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

from sessionworkers.claims.memory import MemoryStore
from sessionworkers.errors import StoreUnavailable
from tests.ledger.test_rule import PATH, TYPED, Dicts, Typed
from tests.ledger.world import Reply, Request, World, as_json


class FullDisk(MemoryStore):
    """A store whose disk is full or gone while ``broken`` holds."""

    broken = ""

    def claim(self, key: str, worker: str | None = None) -> str:
        self._check("claim")
        return super().claim(key, worker)

    def owner(self, key: str) -> str | None:
        self._check("owner")
        return super().owner(key)

    def release(self, key: str) -> bool:
        self._check("release")
        return super().release(key)

    def _check(self, what: str) -> None:
        if what in self.broken:
            raise StoreUnavailable(f"no space left for {what}")


def world_on_full_disks(words: str, app: Any) -> tuple[World, dict[str, FullDisk]]:
    world = World([words], app)
    stores = {}
    for name, ledger in world.ledgers.items():
        stores[name] = FullDisk(name, world.shared)
        ledger.book.store = stores[name]
    return world, stores


def test_a_full_disk_refuses_new_sessions_and_serves_the_others() -> None:
    async def test() -> None:
        world, stores = world_on_full_disks(PATH, Dicts())
        sid = (await world.ask("w0", "POST", "/s")).json["sid"]
        stores["w0"].broken = "claim"
        refused = await world.ask("w0", "POST", "/s")
        assert refused.status == 503
        assert dict(refused.headers)[b"retry-after"]
        for _ in range(3):
            assert (await world.ask("w0", "POST", f"/s/{sid}/act")).status == 200
        stores["w0"].broken = ""
        assert (await world.ask("w0", "POST", "/s")).status == 201

    asyncio.run(test())


def test_a_typed_start_on_a_full_disk_is_refused_before_the_app_runs() -> None:
    async def test() -> None:
        world, stores = world_on_full_disks(TYPED, Typed())
        stores["w0"].broken = "claim"
        assert (await world.ask("w0", "POST", "/start", body={"sid": "typed-1"})).status == 503
        assert world.ran == []

    asyncio.run(test())


def test_a_claim_that_cannot_be_read_is_neither_guessed_mine_nor_unclaimed() -> None:
    async def test() -> None:
        world, stores = world_on_full_disks(PATH, Dicts())
        sid = (await world.ask("w1", "POST", "/s")).json["sid"]
        stores["w0"].broken = "owner"
        ran = len(world.ran)
        assert (await world.ask("w0", "POST", f"/s/{sid}/act")).status == 503
        assert len(world.ran) == ran
        assert (await world.ask("w1", "POST", f"/s/{sid}/act")).status == 200, "the owner reads nothing"

    asyncio.run(test())


def test_a_claim_that_could_not_be_ended_is_ended_by_a_later_sweep() -> None:
    async def test() -> None:
        world, stores = world_on_full_disks(PATH, Dicts())
        await world.ask("w0", "POST", "/s")
        stores["w0"].broken = "release"
        await world.pass_time(301)
        assert len(world.shared) == 1
        stores["w0"].broken = ""
        await world.pass_time(6)
        assert world.shared == {}

    asyncio.run(test())


def test_an_inferred_id_never_refuses() -> None:
    async def test() -> None:
        def app(request: Request) -> Reply:
            return as_json(200, {"session_id": "0123456789abcdef0123456789abcdef"})

        world = World([], app)
        world.boot_with_auto()
        for name, ledger in world.ledgers.items():
            ledger.book.store = FullDisk(name, world.shared)
            ledger.book.store.broken = "claim"
        assert (await world.ask("w0", "POST", "/anything")).status == 200

    asyncio.run(test())
