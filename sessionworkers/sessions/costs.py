"""What a request costs, and which bodies are unwrapped: settings by route, applied right in front of the app.

`Metered` wraps the app itself, so it sees each request once, on the worker that runs it, whichever way it came.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.views import RequestView
from sessionworkers.errors import StartupError
from sessionworkers.ledger.answers import Refused, refuse
from sessionworkers.sessions.messages import DEFAULT_COST, MAX_COST
from sessionworkers.sessions.meter import Meter

log = logging.getLogger("sessionworkers")

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Cost:
    """The cost of requests below ``path`` (None: all others): a number, or where to import a function from."""

    path: PathTemplate | None
    value: float | None
    source: str = ""


def parse_cost(text: str) -> Cost:
    """``100``, ``module:function``, ``/route=100`` or ``/route=module:function``. ValueError with the reason."""
    path: PathTemplate | None = None
    if text.startswith("/"):
        front, equals, text = text.partition("=")
        if not equals:
            raise ValueError("a path is followed by = and its cost")
        path = PathTemplate(front)
    try:
        value = float(text)
    except ValueError:
        module, colon, name = text.partition(":")
        if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise ValueError("neither a number nor module:function") from None
        return Cost(path, None, text)
    if not 0 <= value <= MAX_COST:
        raise ValueError("a cost is a number that is not negative")
    return Cost(path, value)


def load_function(source: str) -> Callable[[Any], Any]:
    """The function that ``source`` (``module:function``) names. StartupError if it is not there."""
    module, _, names = source.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise StartupError(f"--request-cost: the function {source} cannot be imported: {error}") from error
    if not callable(found):
        raise StartupError(f"--request-cost: {source} is no function")
    function: Callable[[Any], Any] = found
    return function


class Costs:
    """The costs in force; the first path that matches decides, then the one without a path, then 100."""

    def __init__(self, texts: Sequence[str]) -> None:
        parsed = [parse_cost(text) for text in texts]
        self._rules = [
            (each.path, each.value, load_function(each.source) if each.value is None else None)
            for each in sorted(parsed, key=lambda each: each.path is None)
        ]

    def of(self, request: RequestView) -> float | Callable[[Any], Any]:
        """The number, or the function to ask with the payload."""
        for path, value, function in self._rules:
            if path is None or path.covers(request):
                return function if function is not None else value if value is not None else DEFAULT_COST
        return DEFAULT_COST


def ask(function: Callable[[Any], Any], payload: Any) -> float:
    """What ``function`` says of ``payload``; 100 if it raises or says no cost."""
    try:
        cost = float(function(payload))
    except Exception:
        log.exception("the request cost function raised; the cost is taken as %g", DEFAULT_COST)
        return DEFAULT_COST
    return cost if math.isfinite(cost) and 0 <= cost <= MAX_COST else DEFAULT_COST


class Metered:
    """The app with its requests counted, refused where they would wait too long, and unwrapped."""

    def __init__(
        self,
        app: App,
        meter: Meter,
        *,
        costs: Costs,
        unwrap: Sequence[PathTemplate],
        max_body: int,
        clock: Callable[[], float],
    ) -> None:
        self.app = app
        self.meter = meter
        self._costs = costs
        self._unwrap = tuple(unwrap)
        self._max_body = max_body
        self._clock = clock
        self.changed: Callable[[], None] = lambda: None
        """Called when a figure has changed."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # A WebSocket lasts as long as its client likes: it is no work in flight, and says nothing of throughput.
            await self.app(scope, receive, send)
            return
        request = RequestView.from_scope(scope)
        retry_after = self.meter.refuses()
        if retry_after is not None:
            self.changed()
            await refuse(scope, send, too_long(retry_after))
            return
        cost = self._costs.of(request)
        unwrap = bool(self._unwrap) and any(path.covers(request) for path in self._unwrap)
        if unwrap or callable(cost):
            scope, receive, payload = await self._open(scope, receive, request, unwrap)
            cost = ask(cost, payload) if callable(cost) else cost
        meter, finished = self.meter, False
        meter.begin(cost, self._clock())
        self.changed()

        async def counted(event: Any) -> None:
            """Over with the last byte of its reply, and before that leaves: a client that has it is no load."""
            nonlocal finished
            if event["type"] == "http.response.body" and not event.get("more_body", False) and not finished:
                finished = True
                meter.finish(cost, self._clock())
                self.changed()
            await send(event)

        try:
            await self.app(scope, receive, counted)
        finally:
            if not finished:
                meter.finish(cost, self._clock(), served=False)
                self.changed()

    async def _open(self, scope: Any, receive: Receive, request: RequestView, unwrap: bool) -> tuple[Any, Receive, Any]:
        """Read a JSON body; with ``unwrap`` an envelope's payload takes its place."""
        if not request.content_type.endswith("json"):
            return scope, receive, None
        body, receive = await read_whole(receive, self._max_body)
        if body is None:
            return scope, receive, None
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return scope, receive, None
        if not (isinstance(document, dict) and "auth_data" in document and "payload" in document):
            return scope, receive, document
        payload = document["payload"]
        if unwrap:
            inner = json.dumps(payload).encode()
            headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
            headers.append((b"content-length", str(len(inner)).encode()))
            scope = {**scope, "headers": headers}
            receive = replay([{"type": "http.request", "body": inner, "more_body": False}], receive)
        return scope, receive, payload


def too_long(retry_after: int) -> Refused:
    """429: the work in flight here takes longer than a request may wait."""
    return Refused(429, "queue time exceeded", "the work in flight takes longer than allowed", retry_after=retry_after)


async def read_whole(receive: Receive, limit: int) -> tuple[bytes | None, Receive]:
    """The whole body and a ``receive`` that gives it again; None for one that is over ``limit`` or breaks off."""
    events: list[Any] = []
    size = 0
    while True:
        event = await receive()
        events.append(event)
        if event["type"] != "http.request":
            return None, replay(events, receive)
        size += len(event.get("body", b""))
        if not event.get("more_body", False):
            return b"".join(each.get("body", b"") for each in events), replay(events, receive)
        if size > limit:
            return None, replay(events, receive)


async def read_front(receive: Receive, limit: int) -> tuple[bytes, bool, Receive]:
    """The front of a body, whether that is all of it, and a ``receive`` that gives it again. A little over ``limit``
    at the most: by what came in one piece."""
    events: list[Any] = []
    front = b""
    while True:
        event = await receive()
        events.append(event)
        if event["type"] != "http.request":
            return b"", True, replay(events, receive)
        front += event.get("body", b"")
        if not event.get("more_body", False) or len(front) >= limit:
            return front, not event.get("more_body", False), replay(events, receive)


class Incoming:
    """A ``receive`` that knows whether the body has been read to its end."""

    __slots__ = ("_receive", "read")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.read = False

    async def receive(self) -> Any:
        """The next event."""
        event = await self._receive()
        self.read = event["type"] != "http.request" or not event.get("more_body", False)
        return event


async def discard(receive: Receive, most: int = 16 * 2**20, seconds: float = 2.0) -> None:
    """Read the rest of a body and forget it, within limits, so that its sender sees the answer and not a reset.

    A server that closes a connection with unread data in it resets it (RFC 9112, 9.6), and clients send again then.
    """

    async def reading() -> None:
        size = 0
        while size <= most:
            event = await receive()
            size += len(event.get("body", b""))
            if event["type"] != "http.request" or not event.get("more_body", False):
                return

    try:
        await asyncio.wait_for(reading(), seconds)
    except asyncio.TimeoutError:
        pass


def replay(events: list[Any], receive: Receive) -> Receive:
    """A ``receive`` that gives ``events`` first."""
    waiting = list(reversed(events))

    async def replayed() -> Any:
        return waiting.pop() if waiting else await receive()

    return replayed
