"""Two workers in one process, joined by a real Unix socket, and a host that records what it is given."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from sessionworkers.hop import Links, PrivateServer
from sessionworkers.hop.served import Handler

T = TypeVar("T")
Message = Any
App = Callable[[Any, Any, Any], Awaitable[None]]

LIMIT = 20.0  # seconds after which a test that hangs fails


def run(kind: str, main: Coroutine[Any, Any, T]) -> T:
    """Runs ``main`` on a new loop of ``kind`` and insists that it leaves no task behind."""
    if kind == "uvloop":
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))

    async def whole() -> T:
        result = await asyncio.wait_for(main, LIMIT)
        for _ in range(3):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"
        return result

    try:
        result = loop.run_until_complete(whole())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    assert not problems, problems
    return result


async def until(condition: Callable[[], object], limit: float = 5.0) -> None:
    """Waits for ``condition`` to hold."""
    deadline = asyncio.get_running_loop().time() + limit
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


def descriptors() -> set[str]:
    """The sockets that this process holds."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith("socket:"):
                found.add(target)
    return found


@contextlib.contextmanager
def private_path() -> Iterator[str]:
    """A path for a Unix socket that is short enough."""
    with tempfile.TemporaryDirectory(prefix="hop") as directory:
        yield os.path.join(directory, "s")


def listen(path: str, backlog: int = 64) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen(backlog)
    return sock


def handler_of(app: App) -> Handler:
    """An ASGI app as a handler that ignores the meta."""

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await app(scope, receive, send)

    return handler


class Pair:
    """``links`` of worker "me" and the private ``server`` of worker "owner"."""

    def __init__(self, links: Links, server: PrivateServer, path: str) -> None:
        self.links = links
        self.server = server
        self.path = path

    async def carry(self, host: Host, meta: dict[str, Any] | None = None) -> None:
        await self.links.carry("owner", host.scope, host.receive, host.send, meta or {})


@contextlib.asynccontextmanager
async def pair(
    handler: Handler, *, state: Callable[[], dict[str, Any]] = dict, timeout: float = 2.0
) -> AsyncIterator[Pair]:
    with private_path() as path:
        server = PrivateServer("owner", listen(path), handler, state=state)
        await server.start()
        links = Links("me", lambda uid: path, lambda uid: True, connect_timeout=timeout, hello_patience=timeout)
        try:
            yield Pair(links, server, path)
        finally:
            await links.close()
            await server.close(0.2)


def http_scope(method: str = "GET", path: str = "/", **changes: Any) -> dict[str, Any]:
    """What uvicorn gives."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 54321),
        "scheme": "http",
        "method": method,
        "root_path": "",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": b"",
        "headers": [(b"host", b"localhost:8000")],
        "state": {},
    }
    scope.update(changes)
    return scope


def websocket_scope(path: str = "/ws", **changes: Any) -> dict[str, Any]:
    scope = http_scope(path=path, type="websocket", scheme="ws", subprotocols=[])
    scope["asgi"] = {"version": "3.0", "spec_version": "2.4"}
    scope["extensions"] = {"websocket.http.response": {}}
    del scope["method"]
    scope.update(changes)
    return scope


class Host:
    """The server side of one request at the acceptor, as uvicorn's: what it gives by `receive`, what `send` got.

    ``messages`` are given in order; then `receive` waits for more by `give`. ``gate``: `send` waits for it when clear.
    """

    def __init__(self, scope: dict[str, Any], *messages: Message) -> None:
        self.scope = scope
        self.sent: list[Message] = []
        self.receives = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self._queue: asyncio.Queue[Message] = asyncio.Queue()
        for message in messages:
            self._queue.put_nowait(message)

    def give(self, message: Message) -> None:
        self._queue.put_nowait(message)

    async def receive(self) -> Message:
        self.receives += 1
        return await self._queue.get()

    async def send(self, message: Message) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> Any:
        return self.sent[0]["headers"]

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent if message["type"] == "http.response.body")

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


def get(path: str = "/", **changes: Any) -> Host:
    return Host(http_scope(**{"path": path, **changes}), request())


def post(*chunks: bytes, path: str = "/", **changes: Any) -> Host:
    """A request whose body comes in ``chunks``, the last of them ending it."""
    messages = [request(chunk, more=True) for chunk in chunks[:-1]]
    return Host(http_scope("POST", path, **changes), *messages, request(chunks[-1] if chunks else b""))


def websocket(*messages: Message, path: str = "/ws", **changes: Any) -> Host:
    return Host(websocket_scope(path, **changes), {"type": "websocket.connect"}, *messages)


def request(body: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def start(status: int = 200, headers: Any = ()) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def read(receive: Any) -> bytes:
    """A request's whole body."""
    data = bytearray()
    while True:
        message = await receive()
        assert message["type"] == "http.request", message
        data += message["body"]
        if not message["more_body"]:
            return bytes(data)
