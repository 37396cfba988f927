"""Large and slow bodies: whole, in order, and never more than a window of them anywhere."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import Any

import pytest

from sessionworkers.hop.codec import PIECE, WINDOW
from tests.hop.ends import Host, Message, body, get, http_scope, pair, post, read, request, run, start, until

MANY = 64 * 1024 * 1024
BOUND = 2 * (WINDOW + PIECE)  # what may be on its way: in the stream, and in the reader that got it last


def block(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(4096) * (size // 4096)


def test_64_mib_up(loop: str) -> None:
    sizes = 256 * 1024
    given = 0
    taken = 0
    most = 0

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        nonlocal taken, most
        digest = hashlib.blake2b()
        more = True
        while more:
            message = await receive()
            digest.update(message["body"])
            more = message["more_body"]
            most = max(most, given - taken)
            taken += len(message["body"])
        await send(start(200))
        await send(body(digest.hexdigest().encode()))

    async def main() -> None:
        digest = hashlib.blake2b()
        number = 0

        async def receive() -> Message:
            nonlocal given, number
            if given >= MANY:
                await asyncio.sleep(60)
            data = block(number % 7, sizes)
            digest.update(data)
            given += len(data)
            number += 1
            return request(data, more=given < MANY)

        async with pair(handler) as ends:
            host = Host(http_scope("POST"))
            await ends.links.carry("owner", host.scope, receive, host.send, {})
            assert host.body == digest.hexdigest().encode()
            assert taken == MANY
            assert most <= BOUND + 2 * sizes

    run(loop, main())


@pytest.mark.parametrize("size", [100, 16_384, 1_000_000, MANY])
def test_64_mib_down(loop: str, size: int) -> None:
    total = MANY if size > 100 else 2_000_000
    sent = 0
    got = 0
    most = 0

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        nonlocal sent
        digest = hashlib.blake2b()
        await send(start(200))
        data = block(1, max(size, 4096))[:size]
        while sent < total:
            digest.update(data)
            sent += len(data)
            await send(body(data, True))
        await send(body(digest.digest()))

    async def main() -> None:
        nonlocal got, most
        digest = hashlib.blake2b()
        last = b""

        async def receive() -> Message:
            return await host.receive()

        async def send(message: Message) -> None:
            nonlocal got, most, last
            if message["type"] == "http.response.body":
                digest.update(last)
                last = message["body"]
                most = max(most, sent - got)
                got += len(last)

        async with pair(handler) as ends:
            host = get()
            await ends.links.carry("owner", host.scope, receive, send, {})
            if last != digest.digest():  # joined with the last data
                last, tail = last[:-64], last[-64:]
                digest.update(last)
                assert tail == digest.digest()
            assert got == sent + 64
            assert size == MANY or most <= BOUND + size

    run(loop, main())


def test_a_client_that_does_not_read_stops_the_app(loop: str) -> None:
    sent = 0

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        nonlocal sent
        await send(start(200))
        for _ in range(1000):
            await send(body(b"x" * 10_000, True))
            sent += 10_000
        await send(body())

    async def main() -> None:
        async with pair(handler) as ends:
            host, other = get(), get(path="/other")
            host.gate.clear()
            slow = asyncio.create_task(ends.carry(host))
            await until(lambda: sent > WINDOW)
            stopped = sent
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert sent == stopped <= WINDOW + PIECE
            task = asyncio.create_task(ends.carry(other))  # the link serves others meanwhile
            await until(lambda: other.complete)
            await task
            host.gate.set()
            await slow
            assert len(host.body) == 10_000_000 and host.complete

    run(loop, main())


def test_an_app_that_does_not_read_stops_the_client(loop: str) -> None:
    go = asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await go.wait()
        data = await read(receive)
        await send(start(200))
        await send(body(b"%d" % len(data)))

    async def main() -> None:
        read_from_client = 0

        async def receive() -> Message:
            nonlocal read_from_client
            read_from_client += 10_000
            return request(b"x" * 10_000, more=read_from_client < 5_000_000)

        async with pair(handler) as ends:
            host = Host(http_scope("POST"))
            carried = asyncio.create_task(ends.links.carry("owner", host.scope, receive, host.send, {}))
            await until(lambda: read_from_client > WINDOW)
            stopped = read_from_client
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert read_from_client == stopped <= WINDOW + PIECE
            go.set()
            await carried
            assert host.body == b"5000000"

    run(loop, main())


def test_events_come_one_by_one(loop: str) -> None:
    """Server-sent events: none waits for the next, the head waits for none."""
    turn = asyncio.Semaphore(0)

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200, [(b"content-type", b"text/event-stream")]))
        for number in range(5):
            await turn.acquire()
            await send(body(b"data: %d\n\n" % number, True))
        await turn.acquire()
        await send(body())

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            carried = asyncio.create_task(ends.carry(host))
            await until(lambda: host.sent)
            assert host.status == 200
            for number in range(5):
                turn.release()
                await until(lambda number=number: host.body.endswith(b"data: %d\n\n" % number))
            turn.release()
            await carried
            assert [message["body"] for message in host.sent[1:]] == [b"data: %d\n\n" % n for n in range(5)] + [b""]

    run(loop, main())


def test_events_to_a_slow_reader(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        for number in range(2000):
            await send(body(b"data: %d\n\n" % number, True))
        await send(body())

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            parts: list[bytes] = []

            async def send(message: Message) -> None:
                await asyncio.sleep(0)
                parts.append(message.get("body", b""))

            await ends.links.carry("owner", host.scope, host.receive, send, {})
            assert b"".join(parts) == b"".join(b"data: %d\n\n" % number for number in range(2000))

    run(loop, main())


def test_an_early_answer_ends_the_upload(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(start(413))
        await send(body(b"too large"))

    async def main() -> None:
        async with pair(handler) as ends:
            reads = 0

            async def receive() -> Message:
                nonlocal reads
                reads += 1
                await asyncio.sleep(0)
                return request(b"x" * 100_000, more=True)

            for _ in range(10):
                host = Host(http_scope("POST"))
                await ends.links.carry("owner", host.scope, receive, host.send, {})
                assert (host.status, host.body) == (413, b"too large")
            ended = reads
            for _ in range(5):
                await asyncio.sleep(0.001)
            assert reads == ended
            host = post(b"x")
            await ends.carry(host)
            assert host.status == 413

    run(loop, main())


def test_an_app_that_never_reads_the_body(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        await send(body(b"ok"))

    async def main() -> None:
        async with pair(handler) as ends:
            for size in (0, 10_000, 1_000_000):
                host = post(b"x" * size, b"y" * size)
                await ends.carry(host)
                assert host.body == b"ok"
            assert not ends.server.streams

    run(loop, main())


@pytest.mark.parametrize("reads", [True, False])
def test_the_owners_app_asks_for_an_expected_body(loop: str, reads: bool) -> None:
    """`Expect: 100-continue`: the host's `receive`, which sends the 100, is called when the owner's app reads."""

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        assert asked == []
        if reads:
            assert await read(receive) == b"one two"
            assert asked[:2] == [1, 2]
        await send(start(200 if reads else 403))
        await send(body())

    asked: list[int] = []

    async def main() -> None:
        async with pair(handler) as ends:
            host = Host(http_scope("POST", headers=[(b"host", b"h"), (b"expect", b"100-Continue")]))
            bodies = [request(b"one ", more=True), request(b"two")]

            async def receive() -> Message:
                asked.append(len(asked) + 1)
                if not bodies:
                    await asyncio.sleep(60)
                return bodies.pop(0)

            await ends.links.carry("owner", host.scope, receive, host.send, {})
            assert host.status == (200 if reads else 403)
            assert bool(asked) is reads

    run(loop, main())


def test_200_streams_at_once(loop: str) -> None:
    """Bodies of random sizes both ways over one link: everybody gets their own."""

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        data = await read(receive)
        await asyncio.sleep(random.random() / 100)
        await send(start(200, [(b"x-nonce", scope["query_string"])]))
        at = 0
        while at < len(data):
            size = random.randrange(1, 100_000)
            await send(body(data[at : at + size], True))
            at += size
        await send(body())

    async def main() -> None:
        async with pair(handler) as ends:

            async def one(number: int) -> None:
                chance = random.Random(number)
                nonce = b"%d" % number
                chunks = [nonce] + [chance.randbytes(chance.randrange(1, 40_000)) for _ in range(chance.randrange(6))]
                host = post(*chunks, query_string=nonce)

                async def send(message: Message) -> None:
                    if chance.random() < 0.3:
                        await asyncio.sleep(chance.random() / 200)
                    await host.send(message)

                await ends.links.carry("owner", host.scope, host.receive, send, {})
                assert host.headers == [(b"x-nonce", nonce)]
                assert host.body == b"".join(chunks)

            await asyncio.gather(*(one(number) for number in range(200)))
            await asyncio.gather(*(one(number) for number in range(200)))
            assert len(ends.links.all) == len(ends.server.links) == 1
            assert not ends.server.streams

    run(loop, main())
