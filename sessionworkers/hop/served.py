"""The owner's end of one request: the ``receive`` and ``send`` that its handler gets.

They behave as uvicorn's: messages out of order raise in the app; once the client is gone (or an HTTP reply is
complete) ``receive`` says so, for ever; HTTP sends are then silent and WebSocket sends raise `ClientDisconnected`. A
disconnect is told, the handler is not cancelled by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, MutableMapping
from operator import index
from typing import TYPE_CHECKING, Any, Final

from sessionworkers.errors import FrameError, NotMine
from sessionworkers.hop.codec import (
    ASK,
    BYTES,
    CANCEL,
    COMPLETE,
    CREDIT,
    DATA,
    DONE,
    END,
    EVENT,
    FAIL,
    HEAD,
    INLINE,
    MESSAGE_COST,
    PART,
    REFUSE,
    TEXT,
    WANT,
    Head,
    Open,
    Pair,
    Refusal,
    bare,
    packed,
    read_credit,
    read_event,
)
from sessionworkers.hop.steps import Rest, coroutine_of
from sessionworkers.hop.wire import Stream

if TYPE_CHECKING:
    from sessionworkers.hop.private import OwnerLink

app_logger: Final = logging.getLogger("uvicorn.error")  # where an app's exception is logged without a hop

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[[dict[str, Any], Receive, Send, dict[str, Any]], Awaitable[None]]


class ClientDisconnected(OSError):
    """A WebSocket message cannot be sent, the client is gone. An OSError, as ASGI 2.4 asks for."""


def pairs_of(headers: Iterable[Iterable[bytes]]) -> list[Pair]:
    """An app's headers (any iterable of pairs) as a list of tuples. TypeError unless all are bytes."""
    pairs = []
    for name, value in headers:
        if not isinstance(name, bytes) or not isinstance(value, bytes):
            raise TypeError("header names and values must be bytes")
        pairs.append((name, value))
    return pairs


def bytes_of(body: object) -> bytes | memoryview:
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray):
        return bytes(body)  # the app may change it while it waits
    if isinstance(body, memoryview):
        return body.cast("B") if body.c_contiguous else body.tobytes()
    raise TypeError(f"a body must be bytes, not {type(body).__name__}")


class Served(Stream):
    """What HTTP and WebSocket have in common."""

    link: OwnerLink
    gone = False  # the client is gone, or an HTTP reply is complete
    begun = False  # the handler has sent something
    task: asyncio.Task[None]
    _first = True  # in the handler's first step, or before it
    _wake: asyncio.Event | None = None

    def __init__(self, link: OwnerLink, id: int, extensions: Container[str]) -> None:
        self.link = link
        self.id = id
        self.extensions = extensions

    async def receive(self) -> Message:
        raise NotImplementedError

    async def send(self, message: Message) -> None:
        raise NotImplementedError

    def shut(self) -> None:
        """The server closes now: tells the app, and the client if its protocol has words for that."""
        raise NotImplementedError

    def settle(self) -> None:
        """The handler has been left for the first time, or has returned: nothing is held back any longer."""

    async def run(self, handler: Handler, scope: dict[str, Any], meta: dict[str, Any]) -> None:
        """Runs the handler and tells the acceptor how it ended."""
        last = DONE
        refusal: Refusal | None = None
        try:
            coroutine = coroutine_of(handler(scope, self.receive, self.send, meta))
            try:
                waits_for = coroutine.send(None)
            except StopIteration:
                pass
            else:
                self._first = False
                self.settle()
                await Rest(coroutine, waits_for, None)
        except NotMine as error:
            if self.begun:
                app_logger.error("Exception in ASGI application\n", exc_info=error)
                last = FAIL
            else:
                refusal = Refusal("not-mine", error.owner)
        except ClientDisconnected:
            pass
        except asyncio.CancelledError:
            last = FAIL
            raise
        except BaseException as error:
            app_logger.error("Exception in ASGI application\n", exc_info=error)
            last = FAIL
        finally:
            if not self.ended:
                self.settle()
                self.finish(bare(last, self.id) if refusal is None else packed(REFUSE, self.id, refusal))
            self.link.server.left(self.task)

    def finish(self, frame: bytes | None = None) -> None:
        """Ends the stream, with ``frame`` as its last one."""
        if self.ended:
            return
        if frame is not None:
            self.link.write(frame)
        self.ended = True
        self.link.streams.pop(self.id, None)
        self.unblock()

    def wake(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def wait(self) -> None:
        """Until `wake`."""
        if self._wake is None:
            self._wake = asyncio.Event()
        else:
            self._wake.clear()
        await self._wake.wait()


class ServedHttp(Served):
    """An HTTP request."""

    complete = False  # the reply has been sent to its end
    _head: Head | None = None  # a start that waits for the body of the same go
    _flush: asyncio.Handle | None = None
    _started = False  # the app has sent http.response.start
    _trailers = False  # the reply ends with trailers, not with its body

    def __init__(self, link: OwnerLink, id: int, extensions: Container[str], head: Open) -> None:
        super().__init__(link, id, extensions)
        flags = head.flags
        self._ask = flags & ASK
        self._body: bytes | bytearray = head.body
        self._whole = bool(flags & COMPLETE)  # the last piece of the body is there
        self._arrived = self._whole  # there is something that the app has not been given

    def frame(self, kind: int, payload: bytes) -> None:
        if kind in (DATA, END):
            if not self._body:
                self._body = payload
            elif isinstance(self._body, bytearray):
                self._body += payload
            else:
                self._body = bytearray(self._body) + payload
            self._whole = kind == END
            self._arrived = True
            self.wake()
        elif kind == CREDIT:
            self.granted(read_credit(payload))
        elif kind == CANCEL:
            self.lost()
        else:
            raise FrameError(f"a frame of kind {kind} for an HTTP request")

    def lost(self) -> None:
        self.gone = True
        self._head = None
        self.finish()
        self.wake()

    def shut(self) -> None:
        self.settle()
        self.lost()

    async def receive(self) -> Message:
        if self._ask:
            self._ask = False
            self.link.write(bare(WANT, self.id))
        while not self.gone:
            if self._arrived:
                self._arrived = False
                body, self._body = self._body, b""
                if not self._whole:
                    self.consumed(len(body))
                return {"type": "http.request", "body": bytes(body), "more_body": not self._whole}
            await self.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if self.gone and not self.complete:
            return
        if not self._started:
            if kind == "http.response.start":
                self._start(message)
            elif kind == "http.response.push" or kind == "http.response.early_hint":
                self._rare(kind, message)
            else:
                raise RuntimeError(f"Expected ASGI message 'http.response.start', but got '{kind}'.")
        elif self.complete:
            raise RuntimeError(f"Unexpected ASGI message '{kind}' sent, after response already completed.")
        elif kind == "http.response.body":
            await self._send_body(bytes_of(message.get("body", b"")), bool(message.get("more_body", False)))
        elif kind == "http.response.trailers" and self._trailers:
            self.settle()
            more = bool(message.get("more_trailers", False))
            event = {"type": kind, "headers": pairs_of(message.get("headers", ())), "more_trailers": more}
            self.link.write(packed(EVENT, self.id, event))
            if not more:
                self._completed()
        elif kind == "http.response.push":
            self.settle()
            self._rare(kind, message)
        else:
            raise RuntimeError(f"Expected ASGI message 'http.response.body', but got '{kind}'.")

    def _start(self, message: Message) -> None:
        trailers = message.get("trailers")
        if trailers is not None:
            trailers = self._trailers = bool(trailers) and "http.response.trailers" in self.extensions
        self._head = Head(
            index(message["status"]),
            pairs_of(message.get("headers", ())),
            trailers,
            None,
            True,
        )
        self.begun = self._started = True
        if not self._first:
            # The handler's first step ends with `settle`; else hold it to the end of this loop iteration,
            # never for longer, since an event stream may have no first event for minutes (facts-performance, 9).
            self._flush = self.link.loop.call_soon(self.settle)

    async def _send_body(self, body: bytes | memoryview, more: bool) -> None:
        head = self._head
        if head is not None and len(body) <= INLINE:
            self._head = None
            head.body = bytes(body)
            head.more = more
            self.left -= len(body)
            self.link.write(packed(HEAD, self.id, head))
            if self._flush is not None:
                self._flush.cancel()
        else:
            self.settle()
            if body or not more:
                await self.send_body(body, more)
        if not more and not self._trailers:
            self._completed()

    def _rare(self, kind: str, message: Message) -> None:
        if kind not in self.extensions:
            raise RuntimeError(f"Unexpected ASGI message '{kind}': the server does not offer it.")
        self.begun = True
        self.link.write(packed(EVENT, self.id, dict(message)))

    def _completed(self) -> None:
        if self.gone:
            return
        self.complete = True
        self.gone = True
        self.finish()
        self.wake()

    def settle(self) -> None:
        head = self._head
        if head is not None:
            self._head = None
            if self._flush is not None:
                self._flush.cancel()
            if not self.ended:
                self.link.write(packed(HEAD, self.id, head))


class ServedWebSocket(Served):
    """A WebSocket, from its handshake on."""

    accepted = False
    answering = False  # a refusal by websocket.http.response is under way
    _closed = False  # the app has sent its last message
    _disconnect: Message | None = None
    _parts: bytearray | None = None

    def __init__(self, link: OwnerLink, id: int, extensions: Container[str]) -> None:
        super().__init__(link, id, extensions)
        self._queue: deque[tuple[Message, int]] = deque((({"type": "websocket.connect"}, 0),))

    def frame(self, kind: int, payload: bytes) -> None:
        if kind in (TEXT, BYTES):
            cost = len(payload) + MESSAGE_COST
            if self._parts is not None:
                payload = bytes(self._parts + payload)
                self._parts = None
            if kind == BYTES:
                self._queue.append(({"type": "websocket.receive", "bytes": payload}, cost))
            else:
                self._queue.append(({"type": "websocket.receive", "text": payload.decode()}, cost))
            self.wake()
        elif kind == PART:
            if self._parts is None:
                self._parts = bytearray()
            self._parts += payload
            self.consumed(len(payload))  # a message must be put together here, whatever its size: its ends bound it
        elif kind == CREDIT:
            self.granted(read_credit(payload))
        elif kind == CANCEL:
            self._leave({"type": "websocket.disconnect", **read_event(payload)})
        else:
            raise FrameError(f"a frame of kind {kind} for a WebSocket")

    def lost(self) -> None:
        self._leave({"type": "websocket.disconnect", "code": 1006})

    def _leave(self, disconnect: Message) -> None:
        if self.gone:
            return
        self.gone = True
        self._disconnect = disconnect
        self.finish()
        self.wake()

    def shut(self) -> None:
        if self.accepted and not self._closed and not self.ended:
            self.link.write(packed(EVENT, self.id, {"type": "websocket.close", "code": 1012}))
            self.finish(bare(DONE, self.id))
        self.finish(bare(FAIL, self.id))
        self._leave({"type": "websocket.disconnect", "code": 1012})

    async def receive(self) -> Message:
        while not self._queue:
            if self._disconnect is not None:
                return dict(self._disconnect)
            await self.wait()
        message, cost = self._queue.popleft()
        if cost:
            self.consumed(cost)
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if self.gone:
            raise ClientDisconnected
        if self._closed:
            raise RuntimeError(f"Unexpected ASGI message '{kind}', after sending 'websocket.close'.")
        if self.answering:
            await self._answer(kind, message)
        elif self.accepted:
            if kind == "websocket.send":
                data = message.get("bytes")
                text = message.get("text")
                if data is not None:
                    await self.send_message(bytes(bytes_of(data)), False)
                elif text is not None:
                    await self.send_message(text.encode(), True)
            elif kind == "websocket.close":
                self._closed = True
                await self._event(message, "code", "reason")
            else:
                raise RuntimeError(f"Expected ASGI message 'websocket.send' or 'websocket.close', but got '{kind}'.")
        elif kind == "websocket.accept":
            self.accepted = self.begun = True
            await self._event(message, "subprotocol", "headers")
        elif kind == "websocket.close":
            self._closed = self.begun = True
            await self._event(message, "code", "reason")
        elif kind == "websocket.http.response.start" and kind[:-6] in self.extensions:
            self.answering = self.begun = True
            await self._event(message, "status", "headers")
        else:
            raise RuntimeError(
                "Expected ASGI message 'websocket.accept', 'websocket.close' "
                f"or 'websocket.http.response.start' but got '{kind}'."
            )

    async def _answer(self, kind: str, message: Message) -> None:
        if kind != "websocket.http.response.body":
            raise RuntimeError(f"Expected ASGI message 'websocket.http.response.body' but got '{kind}'.")
        more = bool(message.get("more_body", False))
        self._closed = not more
        await self.send_body(bytes_of(message.get("body", b"")), more)

    async def _event(self, message: Message, *names: str) -> None:
        event = {name: message[name] for name in names if name in message}
        if "headers" in event:
            event["headers"] = pairs_of(event["headers"])
        event["type"] = message["type"]
        frame = packed(EVENT, self.id, event)
        if self.clear or self._lock is None:
            self.link.write(frame)
            return
        async with self._lock:  # behind a message that waits for credit
            self.link.write(frame)
