"""Reading a request's body for its session ID, and handing it on without a second copy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Receive = Callable[[], Awaitable[Any]]


class BodyTooLarge(Exception):
    """The body is over the limit; ``receive`` replays what was read and then goes on."""

    def __init__(self, receive: Receive) -> None:
        super().__init__("the body is over the limit")
        self.receive = receive


async def read_body(scope: Mapping[str, Any], receive: Receive, limit: int) -> tuple[bytes, Receive]:
    """The whole body and a ``receive`` that replays it, as one event. ``limit`` in bytes; raises `BodyTooLarge`.

    A client that goes away meanwhile: the body so far, and a ``receive`` that tells the app as the server does.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise BodyTooLarge(receive)  # nothing is read: it streams on as if without ID
    events: list[Any] = []
    size = 0
    while True:
        event = await receive()
        events.append(event)
        if event["type"] != "http.request":
            return b"", replay(events, receive)
        size += len(event.get("body", b""))
        if not event.get("more_body", False):
            break
        if size > limit:
            raise BodyTooLarge(replay(events, receive))
    if len(events) == 1:
        return events[0].get("body", b""), replay(events, receive)
    whole = b"".join(event.get("body", b"") for event in events)
    return whole, replay([{"type": "http.request", "body": whole, "more_body": False}], receive)


def replay(events: list[Any], receive: Receive) -> Receive:
    """A ``receive`` that gives ``events`` first and then asks ``receive``."""
    waiting = list(reversed(events))

    async def replayed() -> Any:
        return waiting.pop() if waiting else await receive()

    return replayed
