"""A connection that has ended is freed at once. Objects that hold each other would wait for the garbage collector,
which then holds the loop for as long as dozens of connections take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.raw.servers import Pair, head, pair, wait
from tests.raw.test_websocket import at

CONNECTIONS = 20


@pytest.fixture(scope="module", params=["raw", "handover"])
def two(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """On uvloop: asyncio's transports hold themselves, and so does uvicorn's own protocol (ASGI frames)."""
    with pair(request.param, "uvloop") as found:
        yield found


def known(two: Pair) -> None:
    with two.client(0) as client:
        client.ask("/early", two.sids[1])


def once(two: Pair) -> None:
    with two.client(0) as client:
        client.ask("/early?" + two.new(0), two.sids[1])


def body(two: Pair) -> None:
    with two.client(0) as client:
        client.ask("/", two.sids[1], "POST", body=b"x" * 100_000)


def several(two: Pair) -> None:
    """Enough of them that a connection moves if it may."""
    with two.client(0) as client:
        for _ in range(5):
            client.ask("/early", two.sids[1])


def pipelined(two: Pair) -> None:
    """One that leaves with requests outstanding."""
    with two.client(0) as client:
        client.send(head("/slow?s=0.05", two.sids[1]) + head("/early", two.sids[1]) * 3)
        client.read()


def websocket(two: Pair) -> None:
    async def main() -> None:
        async with at(two, "/ws") as ws:
            await ws.recv()

    asyncio.run(main())


@pytest.mark.parametrize("use", [known, once, body, several, pipelined, websocket])
def test_nothing_is_left_to_the_garbage_collector(two: Pair, use: Callable[[Pair], None]) -> None:
    def left(worker: int, path: str) -> int:
        with two.client(worker) as client:
            found: int = client.ask(path, two.sids[worker]).json
            return found

    use(two)
    for worker in range(2):
        wait(lambda worker=worker: left(worker, "/garbage?watch=1") == 0, "all before it is over")  # type: ignore[misc]
    for _ in range(CONNECTIONS):
        use(two)
    found = [left(worker, "/garbage") for worker in range(2)]
    assert max(found) < CONNECTIONS, found
