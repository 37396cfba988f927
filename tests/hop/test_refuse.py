"""The owner refuses: nothing was answered, and the request can be read once more from its beginning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessionworkers.errors import AppFailed, HopRefused, NotMine, OwnerGone
from tests.hop.ends import Host, body, get, http_scope, pair, post, read, request, run, start, websocket


async def not_mine(scope: Any, receive: Any, send: Any, meta: Any) -> None:
    if meta.get("read"):
        await read(receive)
    if meta.get("wait"):
        await asyncio.sleep(0.01)
    raise NotMine("another")


@pytest.mark.parametrize("meta", [{}, {"wait": True}, {"read": True}])
@pytest.mark.parametrize(
    "chunks", [(b"",), (b"small",), (b"a", b"b", b"c" * 1000), (b"x" * 50_000, b"y" * 9000), (b"z" * 250_000,)]
)
def test_not_mine_and_once_more(loop: str, chunks: tuple[bytes, ...], meta: dict[str, Any]) -> None:
    async def main() -> None:
        async with pair(not_mine) as ends:
            host = post(*chunks)
            with pytest.raises(NotMine) as refused:
                await ends.carry(host, meta)
            assert refused.value.owner == "another"
            assert host.sent == []
            assert refused.value.replay is not None
            assert await read(refused.value.replay) == b"".join(chunks)
            # and on to the next owner with what was given back
            with pytest.raises(NotMine) as refused:
                host = post(*chunks)
                try:
                    await ends.carry(host, meta)
                except NotMine as first:
                    assert first.replay is not None
                    await ends.links.carry("owner", host.scope, first.replay, host.send, meta)
            assert refused.value.replay is not None
            assert await read(refused.value.replay) == b"".join(chunks)

    run(loop, main())


def test_a_body_still_to_come_is_given_back_too(loop: str) -> None:
    async def main() -> None:
        async with pair(not_mine) as ends:
            host = Host(http_scope("POST"), request(b"first ", more=True))
            with pytest.raises(NotMine) as refused:
                await ends.carry(host, {"wait": True})
            host.give(request(b"second"))
            assert refused.value.replay is not None
            assert await read(refused.value.replay) == b"first second"

    run(loop, main())


def test_more_than_a_window_cannot_be_given_back(loop: str) -> None:
    async def main() -> None:
        async with pair(not_mine) as ends:
            with pytest.raises(NotMine) as refused:
                await ends.carry(post(*[b"x" * 50_000] * 20), {"read": True})
            assert refused.value.replay is None

    run(loop, main())


def test_not_mine_for_a_websocket(loop: str) -> None:
    async def main() -> None:
        async with pair(not_mine) as ends:
            host = websocket({"type": "websocket.receive", "text": "early"})
            with pytest.raises(NotMine) as refused:
                await ends.carry(host, {"wait": True})
            assert host.sent == []
            assert refused.value.replay is not None
            assert [await refused.value.replay() for _ in range(2)] == [
                {"type": "websocket.connect"},
                {"type": "websocket.receive", "text": "early"},
            ]

    run(loop, main())


def test_not_mine_too_late_is_an_error(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        raise NotMine("another")

    async def main() -> None:
        async with pair(handler) as ends:
            with pytest.raises(Exception, match="after its reply had begun"):
                await ends.carry(get())

    run(loop, main())
    assert len(caplog.records) == 1


def test_a_head_that_cannot_travel(loop: str) -> None:
    """Refused by this end, before anything went out; the link serves on."""

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        await send(body(await read(receive)))

    async def main() -> None:
        async with pair(handler) as ends:
            for bad in ({"path": "/\ud800"}, {"headers": [(b"x", b"v" * 17_000_000)]}):
                host = post(b"data", **bad)
                with pytest.raises(HopRefused) as refused:
                    await ends.carry(host)
                assert refused.value.replay is not None
                assert await read(refused.value.replay) == b"data"
            with pytest.raises(HopRefused):
                await ends.carry(get(), {"meta": object()})
            host = post(b"data")
            await ends.carry(host)
            assert host.body == b"data"
            assert len(ends.links.all) == 1

    run(loop, main())


def test_a_head_that_the_owner_cannot_read(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        raise AssertionError("the app was reached")

    async def main() -> None:
        async with pair(handler) as ends:
            for bad in ({"client": "text"}, {"headers": [("a", "b")]}, {"http_version": 1.1}):
                host = post(b"data", **bad)
                with pytest.raises(HopRefused) as refused:
                    await ends.carry(host)
                assert refused.value.replay is not None
                assert await read(refused.value.replay) == b"data"
            assert len(ends.links.all) == 1

    run(loop, main())


def test_a_closing_owner_refuses_new_requests_and_ends_the_open_ones(loop: str) -> None:
    go = asyncio.Event()
    begun = asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        begun.set()
        await go.wait()
        await send(body(b"to the end"))

    async def main() -> None:
        async with pair(handler) as ends:
            open_one = get()
            carried = asyncio.create_task(ends.carry(open_one))
            await begun.wait()
            closing = asyncio.create_task(ends.server.close(5))
            late = post(b"late")
            with pytest.raises(OwnerGone) as gone:
                while True:  # the owner says so, or the link does, or nobody listens any more
                    await asyncio.sleep(0)
                    await ends.carry(late)
            assert gone.value.replay is not None
            assert await read(gone.value.replay) == b"late"
            with pytest.raises(OwnerGone):
                await ends.carry(get())
            assert not closing.done()
            go.set()
            await carried
            await closing
            assert open_one.body == b"to the end"
            assert not ends.links.all

    run(loop, main())


def test_an_error_of_the_app_gives_nothing_back(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        raise KeyError

    async def main() -> None:
        async with pair(handler) as ends:
            with pytest.raises(AppFailed) as failed:
                await ends.carry(post(b"x"))
            assert failed.value.replay is None

    run(loop, main())
