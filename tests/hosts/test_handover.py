"""Both ends of a channel for sockets in one process: who serves a connection whose new owner is about to leave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sessionworkers.hop.codec import FrameReader
from sessionworkers.hosts.handover import Channel, Handover
from tests.hop.ends import descriptors, until

Serve = tuple[bytes, Callable[[], None] | None]


@dataclass
class Ends:
    """``served``: what the new owner took, with its acknowledgement; ``kept``: what came back to the sender."""

    channel: Channel
    taking: Handover
    served: list[Serve] = field(default_factory=list)
    kept: list[Serve] = field(default_factory=list)

    def send(self, data: bytes) -> None:
        mine, client = socket.socketpair()
        with mine, client:
            assert self.channel.send(mine.fileno(), data, 0)


@contextlib.asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    def collect(where: list[Serve]) -> Any:
        def adopt(sock: socket.socket, data: bytes, moves: int, acknowledge: Callable[[], None] | None) -> None:
            sock.close()
            where.append((data, acknowledge))

        return adopt

    served: list[Serve] = []
    kept: list[Serve] = []
    loop = asyncio.get_running_loop()
    before = descriptors()
    left, right = socket.socketpair()
    taking = Handover("owner", lambda uid: "", collect(served))
    taking.take(right)
    assert FrameReader().feed(left.recv(4096))  # its hello
    left.setblocking(False)
    channel = Channel(loop, left, collect(kept))
    try:
        yield Ends(channel, taking, served, kept)
    finally:
        await taking.close()
        channel.close()
        assert descriptors() == before


def run(case: Callable[[Ends], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ends() as both:
            await case(both)

    asyncio.run(main())


def test_what_it_has_begun_with_is_acknowledged_and_served_once() -> None:
    async def case(both: Ends) -> None:
        both.send(b"begun")
        await until(lambda: both.served)
        both.taking.take_no_more()
        await asyncio.sleep(0)
        assert not both.channel.closed, "the sender would serve it, too"
        acknowledge = both.served[0][1]
        assert acknowledge is not None
        acknowledge()
        await until(lambda: both.channel.closed)
        assert [data for data, _ in both.served] == [b"begun"] and both.kept == []

    run(case)


def test_what_it_has_not_read_comes_back() -> None:
    async def case(both: Ends) -> None:
        both.send(b"one")
        both.send(b"two")
        both.taking.take_no_more()
        await until(lambda: both.channel.closed)
        assert both.kept == [(b"one", None), (b"two", None)] and both.served == []

    run(case)


@pytest.mark.parametrize("begun", [False, True])
def test_it_stops_with_an_acknowledgement_outstanding(begun: bool) -> None:
    """Of a connection that is never made, because the loop ends before: closing does not wait for it for long."""

    async def case(both: Ends) -> None:
        if begun:
            both.send(b"begun")
            await until(lambda: both.served)
        await asyncio.wait_for(both.taking.close(), 5)
        await until(lambda: both.channel.closed)
        assert [data for data, _ in both.kept] == ([b"begun"] if begun else [])

    run(case)


def test_afterwards_no_channel_is_taken() -> None:
    async def case(both: Ends) -> None:
        both.taking.take_no_more()
        left, right = socket.socketpair()
        with left:
            both.taking.take(right)
            assert left.recv(1) == b""

    run(case)
