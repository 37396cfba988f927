"""WebSockets: messages both ways, refusals, and the exact way in which they end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from sessionworkers.errors import AppFailed, HopBroken
from sessionworkers.hop import ClientDisconnected
from tests.hop.ends import Message, pair, run, until, websocket

ACCEPT = {"type": "websocket.accept"}
CLOSED = {"type": "websocket.disconnect", "code": 1000, "reason": ""}


def text(data: str) -> Message:
    return {"type": "websocket.receive", "text": data}


async def echo(scope: Any, receive: Any, send: Any, meta: Any) -> None:
    assert await receive() == {"type": "websocket.connect"}
    await send(ACCEPT)
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        message["type"] = "websocket.send"
        await send(message)


def test_echo(loop: str) -> None:
    data: list[Any] = ["", "hello", "ü€😀", b"", b"\x00\xff", "x" * 70_000, b"y" * 1_000_000, "z" * 2_000_000, "end"]

    async def main() -> None:
        async with pair(echo) as ends:
            host = websocket()
            carried = asyncio.create_task(ends.carry(host))
            await until(lambda: host.sent)
            for number, message in enumerate(data):
                kind = "text" if isinstance(message, str) else "bytes"
                host.give({"type": "websocket.receive", kind: message})
                await until(lambda number=number: len(host.sent) > number + 1)
                assert host.sent[-1] == {"type": "websocket.send", kind: message}
            for number in range(1000):
                host.give(text(str(number)))
            await until(lambda: len(host.sent) == 1 + len(data) + 1000)
            assert [message["text"] for message in host.sent[-1000:]] == [str(number) for number in range(1000)]
            host.give(CLOSED)
            await carried

    run(loop, main())


def test_both_keys(loop: str) -> None:
    """Some servers give both, one of them None; so do some apps."""
    seen: list[Message] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(ACCEPT)
        seen.append(await receive())
        await send({"type": "websocket.send", "text": "t", "bytes": None})
        await send({"type": "websocket.send", "text": None, "bytes": b"b"})
        await send({"type": "websocket.close"})

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket({"type": "websocket.receive", "text": None, "bytes": b"x"})
            await ends.carry(host)
            assert seen == [{"type": "websocket.receive", "bytes": b"x"}]
            assert host.sent[1:] == [
                {"type": "websocket.send", "text": "t"},
                {"type": "websocket.send", "bytes": b"b"},
                {"type": "websocket.close"},
            ]

    run(loop, main())


ACCEPTS: list[Message] = [
    ACCEPT,
    {"type": "websocket.accept", "subprotocol": None, "headers": []},
    {"type": "websocket.accept", "subprotocol": "graphql-ws", "headers": [(b"x-a", b"1"), (b"x-a", b"\xe4")]},
]
CLOSES: list[Message] = [
    {"type": "websocket.close"},
    {"type": "websocket.close", "code": 1000},
    {"type": "websocket.close", "code": 1001, "reason": None},
    {"type": "websocket.close", "code": 4321, "reason": "bye ü"},
    {"type": "websocket.close", "code": 1012, "reason": "x" * 123},
]


@pytest.mark.parametrize("accept", range(len(ACCEPTS)))
@pytest.mark.parametrize("close", range(len(CLOSES)))
def test_accept_and_close(loop: str, accept: int, close: int) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(ACCEPTS[accept])
        await send(CLOSES[close])

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket()
            await ends.carry(host)
            assert host.sent == [ACCEPTS[accept], CLOSES[close]]
            assert all(type(pair) is tuple for pair in host.sent[0].get("headers", []))

    run(loop, main())


@pytest.mark.parametrize("close", range(len(CLOSES)))
def test_refused_by_close(loop: str, close: int) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(CLOSES[close])

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket()
            await ends.carry(host)
            assert host.sent == [CLOSES[close]]

    run(loop, main())


@pytest.mark.parametrize("size", [0, 5, 200_000])
def test_refused_by_a_response(loop: str, size: int) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send({"type": "websocket.http.response.start", "status": 401, "headers": [(b"www-authenticate", b"x")]})
        await send({"type": "websocket.http.response.body", "body": b"a" * size, "more_body": True})
        await send({"type": "websocket.http.response.body", "body": b"!"})

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket()
            await ends.carry(host)
            head, *bodies = host.sent
            expected = {
                "type": "websocket.http.response.start",
                "status": 401,
                "headers": [(b"www-authenticate", b"x")],
            }
            assert head == expected
            assert {message["type"] for message in bodies} == {"websocket.http.response.body"}
            assert b"".join(message["body"] for message in bodies) == b"a" * size + b"!"
            assert [message["more_body"] for message in bodies] == [True] * (len(bodies) - 1) + [False]

    run(loop, main())


def test_a_response_that_is_not_offered_raises(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        with pytest.raises(RuntimeError, match="Expected ASGI message"):
            await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
        await send({"type": "websocket.close"})

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket(extensions={})
            await ends.carry(host)
            assert host.sent == [{"type": "websocket.close"}]

    run(loop, main())


ENDS: list[Message] = [
    {"type": "websocket.disconnect", "code": 1000, "reason": ""},
    {"type": "websocket.disconnect", "code": 1001, "reason": "going away"},
    {"type": "websocket.disconnect", "code": 1005, "reason": None},
    {"type": "websocket.disconnect", "code": 1006},
    {"type": "websocket.disconnect", "code": 1012},
    {"type": "websocket.disconnect", "code": 4999, "reason": "ü" * 60},
]


@pytest.mark.parametrize("end", range(len(ENDS)))
@pytest.mark.parametrize("accepted", [True, False])
def test_the_client_closes(loop: str, end: int, accepted: bool) -> None:
    seen: list[Message] = []
    raised: list[Exception] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        if accepted:
            await send(ACCEPT)
            seen.append(await receive())
        seen.append(await receive())
        seen.append(await receive())
        try:
            await send({"type": "websocket.send", "text": "too late"} if accepted else ACCEPT)
        except OSError as error:
            raised.append(error)
            raise

    async def main() -> None:
        async with pair(handler) as ends:
            messages = [text("last words")] if accepted else []
            host = websocket()
            carried = asyncio.create_task(ends.carry(host))
            await until(lambda: host.sent if accepted else ends.server.streams)
            for message in [*messages, ENDS[end]]:
                host.give(message)
            await carried
            await until(lambda: not ends.server.streams)
            assert seen == [*messages, ENDS[end], ENDS[end]]
            assert isinstance(raised[0], ClientDisconnected)

    run(loop, main())


@pytest.mark.parametrize("accepted", [True, False])
def test_the_app_crashes(loop: str, accepted: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Before the handshake its host answers 500, afterwards the client sees 1006: no close message comes."""

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        if accepted:
            await send(ACCEPT)
            await send({"type": "websocket.send", "text": "x"})
        raise LookupError

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket()
            with pytest.raises(HopBroken if accepted else AppFailed):
                await ends.carry(host)
            assert [message["type"] for message in host.sent] == ["websocket.accept", "websocket.send"] * accepted

    with caplog.at_level(logging.ERROR):
        run(loop, main())
    assert len(caplog.records) == 1


def test_the_app_returns_without_a_close(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(ACCEPT)

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket()
            await ends.carry(host)
            assert host.sent == [ACCEPT]

    run(loop, main())


WRONG: dict[str, list[Message]] = {
    "send first": [{"type": "websocket.send", "text": "x"}],
    "accept twice": [ACCEPT, ACCEPT],
    "send after close": [ACCEPT, {"type": "websocket.close"}, {"type": "websocket.send", "text": "x"}],
    "close twice": [ACCEPT, {"type": "websocket.close"}, {"type": "websocket.close"}],
    "http": [ACCEPT, {"type": "http.response.start", "status": 200, "headers": []}],
    "response after accept": [ACCEPT, {"type": "websocket.http.response.start", "status": 200, "headers": []}],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_message_raises_in_the_app(loop: str, name: str) -> None:
    raised: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        for message in WRONG[name][:-1]:
            await send(message)
        try:
            await send(WRONG[name][-1])
        except RuntimeError as error:
            raised.append(str(error))

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket()
            await ends.carry(host)
            assert len(host.sent) == len(WRONG[name]) - 1
            assert WRONG[name][-1]["type"] in raised[0]

    run(loop, main())


def test_a_send_that_finds_the_client_gone(loop: str) -> None:
    """As uvicorn's, the host's `send` raises an OSError; how the client went comes by `receive`."""
    seen: list[Message] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(ACCEPT)
        try:
            while True:
                await send({"type": "websocket.send", "text": "tick"})
                await asyncio.sleep(0.001)
        except OSError:
            seen.append(await receive())

    async def main() -> None:
        async with pair(handler) as ends:
            for code in (4001, 1006):
                host = websocket()
                carried = asyncio.create_task(ends.carry(host))
                await until(lambda host=host: host.sent)
                host.error = OSError()
                if code != 1006:  # else the host never says
                    asyncio.get_running_loop().call_later(
                        0.02, host.give, {"type": "websocket.disconnect", "code": code}
                    )
                await carried
                await until(lambda: not ends.server.streams)
            assert [message["code"] for message in seen] == [4001, 1006]

    run(loop, main())


def test_an_app_that_does_not_read_stops_the_client(loop: str) -> None:
    go = asyncio.Event()
    seen: list[int] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(ACCEPT)
        await go.wait()
        while (message := await receive())["type"] == "websocket.receive":
            seen.append(len(message["text"]))

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket(*[text("x" * 1000) for _ in range(2000)])
            carried = asyncio.create_task(ends.carry(host))
            await until(lambda: host.receives > 200)
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert host.receives < 300  # 256 KiB of messages that cost 1,064 each
            host.give(CLOSED)
            go.set()
            await carried
            await until(lambda: not ends.server.streams)
            assert seen == [1000] * 2000

    run(loop, main())


def test_a_client_that_does_not_read_stops_the_app(loop: str) -> None:
    sent = 0

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        nonlocal sent
        await receive()
        await send(ACCEPT)
        for _ in range(20_000):
            await send({"type": "websocket.send", "text": ""})  # nothing, but not free
            sent += 1

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket()
            host.gate.clear()
            carried = asyncio.create_task(ends.carry(host))
            await until(lambda: sent > 4000)
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert sent < 4200
            host.gate.set()
            await carried
            assert len(host.sent) == 20_001

    run(loop, main())


def test_several_tasks_send_at_once(loop: str) -> None:
    """Large messages, which go in parts, do not mix."""

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await receive()
        await send(ACCEPT)

        async def one(letter: str) -> None:
            for size in (1, 100_000, 300_000, 5, 70_000):
                await send({"type": "websocket.send", "text": letter * size})

        await asyncio.gather(*(one(letter) for letter in "abcdefgh"))
        await send({"type": "websocket.close", "code": 1000})

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket()

            async def send(message: Message) -> None:
                await asyncio.sleep(0)
                await host.send(message)

            await ends.links.carry("owner", host.scope, host.receive, send, {})
            texts = [message["text"] for message in host.sent[1:-1]]
            assert all(len(set(data)) == 1 for data in texts)
            for letter in "abcdefgh":
                mine = [len(data) for data in texts if data[0] == letter]
                assert mine == [1, 100_000, 300_000, 5, 70_000]
            assert host.sent[-1]["type"] == "websocket.close"

    run(loop, main())
