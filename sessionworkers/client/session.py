"""`Client` and `Session`: open a session, send requests that reach its worker, end it."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from sessionworkers.client import retry as retries
from sessionworkers.client.results import result_of
from sessionworkers.client.transport import Answer, Transport, WebSocket
from sessionworkers.errors import ClientError, NoRoom, Rejected, SessionClosed, Unreachable

log = logging.getLogger("sessionworkers.client")

REQUEST_TIMEOUT = 600.0
SHORT_TIMEOUT = 10.0
"""Seconds for create, get and end."""

T = TypeVar("T")


class Opening(Generic[T]):
    """What opens something: ``x = await opening``, or ``async with opening as x``, which also closes it."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._coroutine
        return self._opened

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        opened: Any = self._opened
        if opened is not None:
            await opened.close()


class Client:
    """A server with the session API. ``url`` with or without a path; ``prefix`` as the server's --session-prefix.

    ``ssl`` as in aiohttp; ``headers`` go with every request. Use it as an async context manager, or call `close`.
    """

    def __init__(
        self, url: str, *, prefix: str = "/session", ssl: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no URL of a server: it begins with http:// or https://")
        self.url = url.rstrip("/")
        self._prefix = prefix
        self._transport = Transport(ssl=ssl, headers=headers)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Sessions stay open: end them yourself."""
        await self._transport.close()

    def session(
        self,
        cost: float = 100,
        lifetime: float = 60,
        on_close_route: str | None = None,
        on_close_payload: Any = None,
        timeout: float | None = None,
        *,
        auth_data: Mapping[str, Any] | None = None,
    ) -> Opening[Session]:
        """Open a session: ``await`` it, or use it in ``async with``.

        ``cost``: the load it means to its worker while it is open. ``lifetime``: seconds it may be idle.
        ``on_close_route``, ``on_close_payload``: what the server POSTs when it is over, for whatever reason.
        ``timeout``: seconds to wait for a worker with room, None for ever. ``auth_data``: a credential of your own
        (a platform's grant); without it the server mints one. Raises `NoRoom`, `Rejected`, `Unreachable`.
        """
        payload: dict[str, Any] = {"lifetime": lifetime, "cost": cost}
        if on_close_route is not None:
            payload |= {"on_close_route": on_close_route, "on_close_payload": on_close_payload}
        return Opening(self._create({"auth_data": auth_data, "payload": payload}, lifetime, timeout))

    async def _create(self, document: dict[str, Any], lifetime: float, timeout: float | None) -> Session:
        give_up = None if timeout is None else time.monotonic() + timeout
        attempt = failed = 0
        while True:
            attempt += 1
            left = SHORT_TIMEOUT if give_up is None else max(0.1, min(SHORT_TIMEOUT, give_up - time.monotonic()))
            asked: float | None = None
            try:
                answer = await self._post("create", document, left)
            except Unreachable as error:
                failed += 1
                if error.sent or failed >= retries.TRIES:
                    raise
                text = str(error)
            else:
                if answer.status in (200, 201):
                    made = json.loads(answer.body)
                    auth = made.get("session_auth", document["auth_data"])
                    return Session(self, made["session_id"], auth, lifetime, made["expiration"])
                if answer.status not in retries.RETRIED:
                    raise _rejected(answer)
                text, asked = answer.text, retries.retry_after(answer.headers)
            wait = retries.pause(attempt, asked, random.random())
            if give_up is not None and time.monotonic() + wait > give_up:
                await asyncio.sleep(max(0.0, give_up - time.monotonic()))
                raise NoRoom(f"no worker had room within {timeout:g} s: {text}")
            await asyncio.sleep(wait)

    async def get_session(
        self, session_id: str, session_auth: Mapping[str, Any], timeout: float = SHORT_TIMEOUT
    ) -> Session:
        """Take a session up again, from another process or after a restart.

        Raises `SessionClosed` if it is over, `Rejected` (401) if the credential is wrong, `Unreachable`.
        """
        session = Session(self, session_id, dict(session_auth), 0.0, 0.0)
        await session.refresh(timeout)
        return session

    async def request(
        self,
        route: str,
        payload: Any,
        retry: bool = True,
        stream: bool = False,
        *,
        timeout: float = REQUEST_TIMEOUT,
    ) -> dict[str, Any]:
        """A request without a session, in the same envelope, answered by any worker. As `Session.request`."""
        document = {"auth_data": None, "session_id": None, "payload": payload}
        begun = time.monotonic()
        answer = await self._send(route, document, retry, False, stream, timeout)
        return result_of(answer, begun, self._items(answer, None) if stream else None, None)

    # for sessions

    async def _post(self, name: str, document: Any, timeout: float) -> Answer:
        return await self._transport.post(f"{self.url}{self._prefix}/{name}", document, timeout=timeout)

    async def _send(self, route: str, document: Any, retry: bool, resend: bool, stream: bool, timeout: float) -> Answer:
        """POST to a route of the app. Sent again only where it cannot have run, or the caller says it may."""
        url = f"{self.url}/{route.lstrip('/')}"
        attempt = 0
        while True:
            attempt += 1
            last = not retry or attempt >= retries.TRIES
            asked = None
            try:
                answer = await self._transport.post(url, document, timeout=timeout, stream=stream)
            except Unreachable as error:
                if last or (error.sent and not resend):
                    raise
            else:
                if answer.status not in retries.RETRIED or last:
                    return answer
                asked = retries.retry_after(answer.headers)
            await asyncio.sleep(retries.pause(attempt, asked, random.random()))

    async def _items(self, answer: Answer, session: Session | None) -> AsyncIterator[Any]:
        """JSON objects of a stream: ``data:`` lines of events, or JSON lines. Other lines are passed over."""
        if answer.stream is None:
            return
        try:
            async for line in self._transport.lines(answer):
                text = line.decode("utf-8", "replace").strip()
                text = text[5:].strip() if text.startswith("data:") else text
                try:
                    item = json.loads(text)
                except ValueError:
                    continue
                yield item
        except Unreachable:
            if session is not None and not await session._still_open():
                raise SessionClosed("the session ended during the stream") from None
            raise


class Session:
    """An open session, pinned to one worker.

    ``session_id`` and ``auth_data`` are its credential: who has both can use and end it. ``expiration`` in seconds of
    the epoch, as last heard. ``open`` is False once this object knows that the session is over.
    """

    def __init__(
        self, client: Client, session_id: str, auth_data: dict[str, Any], lifetime: float, expiration: float
    ) -> None:
        self._client = client
        self.session_id = session_id
        self.auth_data = auth_data
        self.lifetime = lifetime
        self.expiration = expiration
        self.url = client.url
        self.open = True
        self._over = False
        """The server said so; otherwise `close` still tells it."""
        self._closing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Session of {self.url}, {'open' if self.open else 'closed'}>"

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        await self.close()

    def request(
        self,
        route: str,
        payload: Any,
        retry: bool = True,
        stream: bool = False,
        *,
        resend: bool = False,
        timeout: float = REQUEST_TIMEOUT,
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """POST ``payload`` to ``route`` on the session's worker; the reply as a dictionary.

        Its keys: ``ok``, ``status``, ``response`` (JSON, text or bytes; with ``stream`` an async iterator of JSON
        objects), ``text``, ``content_type``, ``latency``, ``url``, ``auth_data``. A status that is not 2xx is returned,
        not raised, but for 410: `SessionClosed`, as on every later call, then without touching the network.
        ``retry``: try again, a bounded number of times, on 429 and 503 and where no connection was made. ``resend``:
        also where the connection broke and the request may have run. Raises `SessionClosed`, `Unreachable`, `TimedOut`.
        """
        if not self.open:
            raise SessionClosed("the session is closed")
        return self._request(route, payload, retry, stream, resend, timeout)

    async def _request(
        self, route: str, payload: Any, retry: bool, stream: bool, resend: bool, timeout: float
    ) -> dict[str, Any]:
        document = {"auth_data": self.auth_data, "session_id": self.session_id, "payload": payload}
        begun = time.monotonic()
        try:
            answer = await self._client._send(route, document, retry, resend, stream, timeout)
        except Unreachable:
            self.open = False  # the session cannot move; `close` still tries to end it
            raise
        if answer.status == 410:
            self._ended()
            raise SessionClosed("the session has ended")
        items = self._client._items(answer, self) if stream and answer.stream is not None else None
        return result_of(answer, begun, items, self.auth_data)

    def websocket(self, route: str) -> Opening[WebSocket]:
        """A WebSocket in the session: ``async with session.websocket("/ws") as ws``. Raises as `request`.

        The server closes it with code 4410 when the session is over.
        """
        if not self.open:
            raise SessionClosed("the session is closed")
        return Opening(self._connect(route))

    async def _connect(self, route: str) -> WebSocket:
        url = "ws" + self.url[4:] + "/" + route.lstrip("/")
        try:
            return await self._client._transport.websocket(url, {"X-Session-ID": self.session_id})
        except SessionClosed:
            self._ended()
            raise

    async def is_open(self) -> bool:
        """Ask the server. False once it has ended. Raises only when it cannot be known: `Unreachable`, `Rejected`."""
        try:
            await self.refresh()
        except SessionClosed:
            return False
        return True

    async def refresh(self, timeout: float = SHORT_TIMEOUT) -> dict[str, Any]:
        """What the server knows of the session; sets ``expiration`` and ``lifetime``. `SessionClosed` if it is over."""
        answer = await self._client._post("get", self._credentials(), timeout)
        if answer.status in (400, 410):
            self._ended()
            raise SessionClosed("the session has ended, or was never there")
        if answer.status != 200:
            raise _rejected(answer)
        found: dict[str, Any] = json.loads(answer.body)
        self.lifetime, self.expiration = found["lifetime"], found["expiration"]
        return found

    async def close(self) -> None:
        """End the session. Any number of times; never raises, but when cancelled."""
        self.open = False
        if self._over:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        try:
            await self._client._post("end", self._credentials(), SHORT_TIMEOUT)
            self._over = True
        except ClientError as error:
            log.warning("a session could not be ended; it will run out by itself: %s", error)
        except Exception:
            log.exception("a session could not be ended; it will run out by itself")

    async def _still_open(self) -> bool:
        try:
            return await self.is_open()
        except ClientError:
            return True

    def _credentials(self) -> dict[str, Any]:
        return {"session_id": self.session_id, "session_auth": self.auth_data}

    def _ended(self) -> None:
        self.open = False
        self._over = True


def _rejected(answer: Answer) -> Rejected:
    return Rejected(answer.status, answer.text)
