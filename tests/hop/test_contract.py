"""The owner's app sees the request, and the host the reply, as without a hop."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.hop.ends import Host, Message, body, get, http_scope, pair, post, read, request, run, start, websocket

SCOPES = {
    "plain": {},
    "method": {"method": "PATCH"},
    "odd method": {"method": "M-SEARCH"},
    "raw path": {"path": "/a b/ä", "raw_path": b"/a%20b/%C3%A4"},
    "dots and slashes": {"path": "/a/../b//c", "raw_path": b"/a/../b//c"},
    "escaped slash": {"path": "/a/b", "raw_path": b"/a%2fb"},
    "query": {"query_string": b"a=1&a=2&b=%2F+%20&=&\xff"},
    "duplicate headers": {
        "headers": [(b"x-a", b"1"), (b"host", b"h"), (b"x-a", b"2"), (b"cookie", b"a"), (b"x-a", b"")]
    },
    "latin-1": {"headers": [(b"x-name", "J\xf6rg".encode("latin-1")), (b"x-all", bytes(range(32, 256)))]},
    "many headers": {"headers": [(b"x-%d" % number, b"v" * number) for number in range(300)]},
    "no headers": {"headers": []},
    "IPv6 client": {"client": ("::1", 5), "server": ("::", 443), "scheme": "https"},
    "Unix socket": {"client": None, "server": ("/run/app.sock", None)},
    "HTTP/2": {"http_version": "2"},
    "root path": {"root_path": "/api", "path": "/api/x", "raw_path": b"/api/x"},
    "extensions": {"extensions": {"tls": {"tls_version": 772, "client_cert_chain": []}, "http.response.trailers": {}}},
    "unknown key": {"x.y": {"a": [1, "b", None]}},
}


@pytest.mark.parametrize("name", SCOPES)
def test_scope(loop: str, name: str) -> None:
    seen: list[dict[str, Any]] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        seen.append(scope)
        await send(start(204))
        await send(body())

    async def main() -> None:
        async with pair(handler, state=lambda: {"of": "the owner"}) as ends:
            host = get(**copy.deepcopy(SCOPES[name]))
            host.scope["state"] = {"of": "the acceptor"}
            await ends.carry(host)
            expected = {**host.scope, "state": {"of": "the owner"}}
            assert seen == [expected]
            assert all(type(pair) is tuple for pair in seen[0]["headers"])
            for address in (seen[0]["client"], seen[0]["server"]):
                assert address is None or type(address) is tuple

    run(loop, main())


def test_what_cannot_travel_is_left_out(loop: str) -> None:
    seen: list[dict[str, Any]] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        seen.append(scope)
        await send(start(204))
        await send(body())

    async def main() -> None:
        async with pair(handler) as ends:
            scope = http_scope()
            del scope["state"]
            scope["app"] = object()
            scope["extensions"] = {"http.response.pathsend": {}, "http.response.zerocopysend": {}, "x.y": {}, "tls": {}}
            await ends.carry(Host(scope, request()))

            assert "app" not in seen[0]
            assert "state" not in seen[0]
            assert seen[0]["extensions"] == {"tls": {}}

    run(loop, main())


def test_meta_reaches_the_handler(loop: str) -> None:
    seen: list[dict[str, Any]] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        seen.append(meta)
        await send(start(204))
        await send(body())

    async def main() -> None:
        async with pair(handler) as ends:
            await ends.carry(get(), {"rule": "mcp", "ids": ["a", "b"], "n": 3, "raw": b"\x00"})
            assert seen == [{"rule": "mcp", "ids": ["a", "b"], "n": 3, "raw": b"\x00"}]

    run(loop, main())


REPLIES: dict[str, list[Message]] = {
    "whole": [start(200, [(b"content-length", b"5")]), body(b"hello")],
    "empty": [start(204), body()],
    "no body key": [start(200), {"type": "http.response.body"}],
    "large": [start(200), body(b"x" * 300_000)],
    "start, then body in pieces": [start(200), body(b"a", True), body(b"b", True), body(b"", True), body(b"c")],
    "duplicate headers": [
        start(200, [(b"set-cookie", b"a=1"), (b"Set-Cookie", b"b=2"), (b"x", b"\xe4\xff")]),
        body(b""),
    ],
    "not modified": [start(304, [(b"etag", b'"x"')]), body()],
    "error": [start(500, [(b"content-type", b"text/plain")]), body(b"Internal Server Error")],
    "odd status": [start(299), body(b"?")],
    "headers as lists": [start(200, [[b"a", b"1"], [b"b", b"2"]]), body(b"x")],
    "bytearray": [start(200), body(bytearray(b"abc"))],  # type: ignore[arg-type]
    "memoryview": [start(200), body(memoryview(b"abcdef")[::2])],  # type: ignore[arg-type]
}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("name", REPLIES)
def test_reply(loop: str, name: str, method: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        for message in REPLIES[name]:
            await send(message)

    async def main() -> None:
        async with pair(handler) as ends:
            host = Host(http_scope(method), request())
            await ends.carry(host)
            first = REPLIES[name][0]
            assert host.status == first["status"]
            assert host.headers == [tuple(header) for header in first["headers"]]
            assert all(type(header) is tuple for header in host.headers)
            assert host.body == b"".join(bytes(message.get("body", b"")) for message in REPLIES[name][1:])
            assert host.complete
            assert "trailers" not in host.sent[0]

    run(loop, main())


def test_headers_from_a_generator(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200, ((b"n", b"%d" % number) for number in range(3))))
        await send(body())

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            await ends.carry(host)
            assert host.headers == [(b"n", b"0"), (b"n", b"1"), (b"n", b"2")]

    run(loop, main())


def test_trailers_and_push(loop: str) -> None:
    offered = {"http.response.trailers": {}, "http.response.push": {}, "http.response.early_hint": {}}

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send({"type": "http.response.early_hint", "links": [b"</x>"]})
        await send({"type": "http.response.push", "path": "/x", "headers": [(b"a", b"b")]})
        await send({**start(200), "trailers": True})
        await send(body(b"text"))
        await send({"type": "http.response.trailers", "headers": [(b"sum", b"1")], "more_trailers": True})
        await send({"type": "http.response.trailers", "headers": [(b"end", b"2")]})
        assert (await receive())["type"] == "http.disconnect"

    async def main() -> None:
        async with pair(handler) as ends:
            host = get(extensions=offered)
            await ends.carry(host)
            assert host.sent == [
                {"type": "http.response.early_hint", "links": [b"</x>"]},
                {"type": "http.response.push", "path": "/x", "headers": [(b"a", b"b")]},
                {**start(200, []), "trailers": True},
                body(b"text"),
                {"type": "http.response.trailers", "headers": [(b"sum", b"1")], "more_trailers": True},
                {"type": "http.response.trailers", "headers": [(b"end", b"2")], "more_trailers": False},
            ]

    run(loop, main())


WRONG: dict[str, list[Message]] = {
    "body first": [body(b"x")],
    "start twice": [start(), start()],
    "unknown": [{"type": "http.response.magic"}],
    "unknown after start": [start(), {"type": "http.response.zerocopysend", "file": 3}],
    "path send is not offered": [start(), {"type": "http.response.pathsend", "path": "/etc/passwd"}],
    "trailers are not offered": [start(), {"type": "http.response.trailers", "headers": []}],
    "push is not offered": [start(), {"type": "http.response.push", "path": "/", "headers": []}],
    "after the end": [start(), body(), body()],
    "websocket": [{"type": "websocket.accept"}],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_message_raises_in_the_app(loop: str, name: str) -> None:
    raised: list[Exception] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        try:
            for message in WRONG[name]:
                await send(message)
        except RuntimeError as error:
            raised.append(error)
        await send(start() if WRONG[name][0]["type"] != "http.response.start" else body(b"ok"))
        await send(body(b"ok"))

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            try:
                await ends.carry(host)
            except Exception as error:  # what follows the wrong message may be wrong as well
                assert raised, error
            assert raised

    run(loop, main())


BAD_VALUES: dict[str, Message] = {
    "status as text": {"type": "http.response.start", "status": "200"},
    "no status": {"type": "http.response.start"},
    "header as text": start(200, [("a", "b")]),
    "header of three": start(200, [(b"a", b"b", b"c")]),
    "headers none": start(200, None),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_bad_value_raises_in_the_app_and_the_link_lives_on(loop: str, name: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        try:
            await send(BAD_VALUES[name])
        except (TypeError, ValueError, KeyError):
            await send(start(400))
            await send(body(b"caught"))

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            await ends.carry(host)
            assert (host.status, host.body) == (400, b"caught")
            assert len(ends.links.all) == 1

    run(loop, main())


def test_a_body_that_is_text_raises_in_the_app(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        with pytest.raises(TypeError):
            await send(body("text"))  # type: ignore[arg-type]
        await send(body(b"bytes"))

    async def main() -> None:
        async with pair(handler) as ends:
            host = get()
            await ends.carry(host)
            assert host.body == b"bytes"

    run(loop, main())


def test_context_and_task_of_send_are_the_requests(loop: str) -> None:
    """Whether it waits or not, the host's `send` runs in one context, as the request's own task."""
    import asyncio
    import contextvars

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        await send(body(b"a", True))
        await asyncio.sleep(0.01)
        await send(body(b"b", True))
        await send(body(b"c"))

    async def main() -> None:
        async with pair(handler) as ends:
            await ends.carry(get())
            host = get()
            seen: list[tuple[str, asyncio.Task[Any] | None]] = []

            async def send(message: Message) -> None:
                token = variable.set(variable.get() + "!")
                async with asyncio.timeout(5) if hasattr(asyncio, "timeout") else asyncio.Lock():
                    if message.get("body") in (b"a", b"c"):
                        await asyncio.sleep(0.005)
                    seen.append((variable.get(), asyncio.current_task()))
                variable.reset(token)
                await host.send(message)

            variable.set("request")
            await ends.links.carry("owner", host.scope, host.receive, send, {})
            assert seen == [("request!", asyncio.current_task())] * 4 or {s for s, _ in seen} == {"request!"}
            assert {task for _, task in seen} == {asyncio.current_task()}
            assert host.body == b"abc"

    run(loop, main())


def test_request_bodies(loop: str) -> None:
    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        data = await read(receive)
        await send(start(200))
        await send(body(data))

    async def main() -> None:
        async with pair(handler) as ends:
            for chunks in [
                (b"",),
                (b"small",),
                (b"a", b"b", b""),
                (b"x" * 9000,),
                (b"y" * 200_000,),
                (b"z" * 70_000,) * 3,
            ]:
                host = post(*chunks)
                await ends.carry(host)
                assert host.body == b"".join(chunks)

    run(loop, main())


def test_receive_after_the_reply_says_disconnect(loop: str) -> None:
    seen: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        await send(body(b""))
        seen.extend([(await receive())["type"], (await receive())["type"]])

    async def main() -> None:
        async with pair(handler) as ends:
            await ends.carry(post(b"unread"))
            assert seen == ["http.disconnect"] * 2

    run(loop, main())


def test_websocket_scope(loop: str) -> None:
    seen: list[dict[str, Any]] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        seen.append(scope)
        await send({"type": "websocket.close"})

    async def main() -> None:
        async with pair(handler) as ends:
            host = websocket(subprotocols=["a", "b"], headers=[(b"sec-websocket-protocol", b"a, b")])
            await ends.carry(host)
            assert seen == [host.scope]
            assert "method" not in seen[0]

    run(loop, main())
