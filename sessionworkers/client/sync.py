"""The client without ``await``: the same names, for scripts and threads.

::

    with Client("http://127.0.0.1:8000") as client:
        with client.session(lifetime=60) as session:
            print(session.request("/generate", {"prompt": "hello"})["response"])

One thread per client runs the asyncio client; every call waits for it. Safe to be used from several threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from sessionworkers.client import session as asynchronous

T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="sessionworkers-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of ``coroutine``."""
        if self.loop.is_closed():
            coroutine.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: the request is given up too
            raise

    def stop(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


class Client:
    """As `sessionworkers.client.Client`; arguments are the same."""

    def __init__(self, url: str, **options: Any) -> None:
        self._client = asynchronous.Client(url, **options)  # first: it may refuse the URL
        self._loop = _Loop()
        self.url = self._client.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread. Sessions stay open."""
        if not self._loop.loop.is_closed():
            self._loop.run(self._client.close())
            self._loop.stop()

    def session(
        self,
        cost: float = 100,
        lifetime: float = 60,
        on_close_route: str | None = None,
        on_close_payload: Any = None,
        timeout: float | None = None,
        *,
        auth_data: Mapping[str, Any] | None = None,
    ) -> Session:
        """Open a session; it is a context manager, too."""

        async def opened() -> asynchronous.Session:
            return await self._client.session(
                cost, lifetime, on_close_route, on_close_payload, timeout, auth_data=auth_data
            )

        return Session(self._loop, self._loop.run(opened()))

    def get_session(self, session_id: str, session_auth: Mapping[str, Any], timeout: float = 10.0) -> Session:
        """Take a session up again."""
        return Session(self._loop, self._loop.run(self._client.get_session(session_id, session_auth, timeout)))

    def request(self, route: str, payload: Any, retry: bool = True, stream: bool = False, **options: Any) -> Any:
        """A request without a session."""
        result = self._loop.run(self._client.request(route, payload, retry, stream, **options))
        return _with_iterator(self._loop, result)


class Session:
    """As `sessionworkers.client.Session`."""

    def __init__(self, loop: _Loop, session: asynchronous.Session) -> None:
        self._loop = loop
        self._session = session

    def __repr__(self) -> str:
        return repr(self._session)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def session_id(self) -> str:
        return self._session.session_id

    @property
    def auth_data(self) -> dict[str, Any]:
        return self._session.auth_data

    @property
    def url(self) -> str:
        return self._session.url

    @property
    def expiration(self) -> float:
        return self._session.expiration

    @property
    def lifetime(self) -> float:
        return self._session.lifetime

    @property
    def open(self) -> bool:
        return self._session.open

    def request(
        self, route: str, payload: Any, retry: bool = True, stream: bool = False, **options: Any
    ) -> dict[str, Any]:
        """POST in the session; with ``stream`` its ``response`` is a plain iterator."""
        result = self._loop.run(self._session.request(route, payload, retry, stream, **options))
        return _with_iterator(self._loop, result)

    def websocket(self, route: str) -> WebSocket:
        """A WebSocket in the session, to be used as a context manager."""

        async def opened() -> Any:
            return await self._session.websocket(route)

        return WebSocket(self._loop, self._loop.run(opened()))

    def is_open(self) -> bool:
        """Ask the server; False once it has ended."""
        return self._loop.run(self._session.is_open())

    def close(self) -> None:
        """End the session; never raises."""
        self._loop.run(self._session.close())


class WebSocket:
    """A WebSocket: ``send_str``, ``send_bytes``, ``receive`` and the other methods of aiohttp's, each waited for."""

    def __init__(self, loop: _Loop, socket: Any) -> None:
        self._loop = loop
        self._socket = socket

    def __enter__(self) -> WebSocket:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._socket, name)
        if not asyncio.iscoroutinefunction(method):
            return method
        return lambda *args, **options: self._loop.run(method(*args, **options))

    def close(self, **options: Any) -> Any:
        """Close it."""
        return self._loop.run(self._socket.close(**options))


def _with_iterator(loop: _Loop, result: dict[str, Any]) -> dict[str, Any]:
    items = result["response"]
    if hasattr(items, "__anext__"):
        result["response"] = _iterate(loop, items)
    return result


def _iterate(loop: _Loop, items: AsyncIterator[Any]) -> Iterator[Any]:
    async def following() -> tuple[bool, Any]:
        try:
            return True, await items.__anext__()
        except StopAsyncIteration:
            return False, None

    while True:
        more, item = loop.run(following())
        if not more:
            return
        yield item
