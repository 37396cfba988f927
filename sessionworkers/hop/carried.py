"""The acceptor's end of one request: the host's ``receive`` goes out as frames, the owner's frames go into ``send``.

A short exchange takes one future and no task besides the request's own: the host's ``receive`` is stepped once for the
body that is usually there already, and the reply's events are stepped into ``send`` from the read callback. Only when
something has to wait does more come into being: the request's task drives a ``send`` that waits, and a *pump* task
reads from ``receive`` when a body is still to come, for a WebSocket, and once a reply takes long, to see the client go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from sessionworkers.errors import AppFailed, FrameError, HopBroken, HopError, HopRefused, NotMine, OwnerGone
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
    WINDOW,
    packed,
    read_credit,
    read_event,
    read_head,
    read_refusal,
)
from sessionworkers.hop.scopes import open_frame
from sessionworkers.hop.steps import Rest, Step, coroutine_of, current_task, enter_task, leave_task
from sessionworkers.hop.wire import Stream

if TYPE_CHECKING:
    from sessionworkers.hop.link import AcceptorLink

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

TAKEN_COST = 256  # what a message that is kept counts for besides its body
GONE_PAUSE = 0.5  # seconds in which the host should say how a WebSocket ended whose send failed


def replay(taken: Iterable[Message], receive: Receive) -> Receive:
    """A ``receive`` that gives ``taken`` once more and then goes on with ``receive``."""
    again = deque(taken)

    async def receive_again() -> Message:
        return again.popleft() if again else await receive()

    return receive_again if again else receive


def refused(payload: bytes) -> HopError:
    """What a REFUSE means. Raises `Unreadable`."""
    refusal = read_refusal(payload)
    if refusal.why == "not-mine":
        return NotMine(refusal.owner)
    if refusal.why == "closing":
        return OwnerGone("the owner is closing")
    return HopRefused(f"the owner refused the request: {refusal.why}")


class Carried(Stream):
    """One request that another worker answers."""

    link: AcceptorLink

    begun = False  # something of the reply was handed to `send`
    seen = False  # the link's clock has passed once since it began
    _taken: list[Message] | tuple[()] | None = ()  # what was read from `receive`, until the owner answers
    _taken_size = 0
    _asked = True  # `receive` may be called: no Expect: 100-continue, or the owner's app wants the body
    _pump: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _wake: asyncio.Future[None] | None = None
    _rest: tuple[Rest[None], int] | None = None  # a `send` that waits, and what it costs
    _busy = False  # `send` is being driven by the request's task, events have to queue
    _parts: bytearray | None = None
    _trailers = False
    _over = False  # no more events; `_error` says how it ended
    _error: BaseException | None = None

    def __init__(self, link: AcceptorLink, id: int, websocket: bool, receive: Receive, send: Send) -> None:
        self.link = link
        self.id = id
        self.websocket = websocket
        self._receive = receive
        self._send = send
        self._context = copy_context()
        self._task = current_task()
        self._queue: deque[tuple[Message, int]] = deque()

    async def run(self, scope: MutableMapping[str, Any], meta: dict[str, Any]) -> None:
        """Carries the request; returns when the owner's app is through with it, or when the client is gone."""
        try:
            self._open(scope, meta)
            await self._serve()
        finally:
            if not self.ended:  # cancelled, or the host failed: the owner's app is told that the client is gone
                self._cancel({"code": 1006})
            if self._timer is not None:
                self._timer.cancel()
            if self._pump is not None:
                self._pump.cancel()
        if self._error is not None:
            if isinstance(self._error, HopError) and not self.begun:
                await self._give_back(self._error)
            raise self._error

    # the request goes out
    def _open(self, scope: MutableMapping[str, Any], meta: dict[str, Any]) -> None:
        flags = 0
        body: bytes = b""
        more = True
        reading: Rest[Message] | None = None
        sending: Rest[None] | None = None
        gone = False
        if not self.websocket:
            for name, value in scope["headers"]:
                if name == b"expect" and value.lower() == b"100-continue":
                    # The host sends its 100 when `receive` is called: that must be the doing of the owner's app.
                    flags = ASK
                    self._asked = False
            if self._asked:
                coroutine = coroutine_of(self._receive())
                try:
                    waits_for = coroutine.send(None)
                except StopIteration as stop:
                    message = stop.value
                    gone = message["type"] == "http.disconnect"
                    body = message.get("body", b"")
                    more = message.get("more_body", False)
                    self._taken = [message]
                    self._taken_size = len(body)
                else:
                    reading = Rest(coroutine, waits_for, None)
        inline = not more and len(body) <= INLINE
        try:
            frame = open_frame(self.id, scope, meta, flags | COMPLETE if inline else flags, body if inline else b"")
        except HopError as error:
            self.ended = True  # the owner never heard of it
            error.replay = replay(self._taken or (), self._receive)
            raise
        self.link.streams[self.id] = self
        self.link.write(frame)
        if inline:
            body = b""
        if body:
            first = Step(self.send_body(body, more))
            if not first.done:
                sending = first.rest()
        if gone:
            self._client_gone({})
        elif self.websocket or sending is not None or (more and self._asked):
            self._start_pump(sending, reading, more)

    def _take(self, message: Message) -> None:
        """Keeps what was read until the owner answers: a window at most, but for the first message."""
        taken = self._taken
        if taken is not None:
            self._taken_size += len(message.get("body", b"")) + TAKEN_COST
            if taken and self._taken_size > WINDOW:
                self._taken = None
            else:
                self._taken = [*taken, message]

    async def _give_back(self, error: HopError) -> None:
        """Makes the request readable once more, if the owner refused it."""
        if error.replay is None:
            return
        if self._pump is not None:
            await asyncio.wait((self._pump,))
        error.replay = None if self._taken is None else replay(self._taken, self._receive)

    def _start_pump(
        self, sending: Rest[None] | None = None, reading: Rest[Message] | None = None, more: bool = False
    ) -> None:
        self._pump = self.link.loop.create_task(self._run_pump(sending, reading, more))

    async def _run_pump(self, sending: Rest[None] | None, reading: Rest[Message] | None, more: bool) -> None:
        try:
            if self.websocket:
                await self._pump_messages()
            else:
                if sending is not None:
                    await sending
                await self._pump_body(reading, more)
        except Exception as error:  # of the host's `receive`, or of what it gave
            self._fail(error)

    async def _pump_body(self, reading: Rest[Message] | None, more: bool) -> None:
        while more:
            message = await self._receive() if reading is None else await reading
            reading = None
            if message["type"] == "http.disconnect":
                self._client_gone({})
                return
            self._take(message)
            more = message.get("more_body", False)
            await self.send_body(message.get("body", b""), more)
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._client_gone({})
        # else: this host says more than it should; without a wait in it, asking on would never end

    async def _pump_messages(self) -> None:
        while True:
            message = await self._receive()
            kind = message["type"]
            if kind == "websocket.disconnect":
                self._client_gone({name: message[name] for name in ("code", "reason") if name in message})
                return
            self._take(message)
            if kind == "websocket.receive":
                text = message.get("text")
                if text is not None:
                    await self.send_message(text.encode(), True)
                else:
                    await self.send_message(message["bytes"], False)

    def _client_gone(self, how: dict[str, Any]) -> None:
        if not self.ended:
            self._queue.clear()
            self._cancel(how)
            self._end(None)

    def _cancel(self, how: dict[str, Any]) -> None:
        """Tells the owner that the client is gone; ``how``: ``code`` and ``reason`` of a WebSocket."""
        self.link.write(packed(CANCEL, self.id, how))
        self._detach()

    def tick(self) -> bool:
        """The link's clock. True: not yet watched, call again.

        A request that has lasted a whole tick is watched for its client's leaving. Not from its beginning: a task for
        each request would cost more than the rest of the hop.
        """
        if self._pump is not None or not self._asked:
            return False
        if self.seen:
            self._start_pump()
            return False
        self.seen = True
        return True

    # the reply comes back
    def frame(self, kind: int, payload: bytes) -> None:
        if kind == HEAD:
            self._taken = None
            head = read_head(payload)
            start: Message = {"type": "http.response.start", "status": head.status, "headers": head.headers}
            if head.trailers is not None:
                start["trailers"] = self._trailers = head.trailers
            if head.body is None:
                self._deliver(start, 0)
            else:
                if not head.more and not self._trailers:
                    self._end(None)
                self._deliver(start, 0)
                body: Message = {"type": "http.response.body", "body": head.body, "more_body": head.more}
                self._deliver(body, len(head.body))
        elif kind in (DATA, END):
            self._body(kind, payload)
        elif kind in (TEXT, BYTES, PART):
            self._message(kind, payload)
        elif kind == CREDIT:
            self.granted(read_credit(payload))
        elif kind == WANT:
            if not self._asked:
                self._asked = True
                self._start_pump(more=True)
        elif kind == EVENT:
            self._event(read_event(payload))
        elif kind == DONE:
            self._end(None)
        elif kind == FAIL:
            self._end(
                HopBroken("the owner's app failed after its reply had begun")
                if self._answered
                else AppFailed("the owner's app failed")
            )
        elif kind == REFUSE:
            self._refused(payload)
        else:
            raise FrameError(f"a frame of kind {kind} from an owner")

    def lost(self) -> None:
        if self._answered:
            self._end(HopBroken("the owner was lost after its reply had begun"))
        else:
            self._end(OwnerGone("the owner was lost before it answered"))

    @property
    def _answered(self) -> bool:
        return self.begun or bool(self._queue)

    def _refused(self, payload: bytes) -> None:
        error = refused(payload)
        error.replay = self._receive  # what was taken comes before it, see _give_back
        self._end(error)

    def _body(self, kind: int, payload: bytes) -> None:
        last = kind == END
        name = "http.response.body"
        if self.websocket:
            name = "websocket.http.response.body"
        elif last and not self._trailers:
            self._end(None)
        if self._busy and self._queue:
            message, cost = self._queue[-1]
            if message["type"] == name and message["more_body"]:  # bodies have no boundaries to keep
                message["body"] += payload
                message["more_body"] = not last
                self._queue[-1] = (message, cost + len(payload))
                return
        self._deliver({"type": name, "body": payload, "more_body": not last}, len(payload))

    def _message(self, kind: int, payload: bytes) -> None:
        if kind == PART:
            if self._parts is None:
                self._parts = bytearray()
            self._parts += payload
            self.consumed(len(payload))
            return
        cost = len(payload) + MESSAGE_COST
        if self._parts is not None:
            payload = bytes(self._parts + payload)
            self._parts = None
        if kind == TEXT:
            self._deliver({"type": "websocket.send", "text": payload.decode()}, cost)
        else:
            self._deliver({"type": "websocket.send", "bytes": payload}, cost)

    def _event(self, message: Message) -> None:
        self._taken = None
        if "headers" in message:
            message["headers"] = [(name, value) for name, value in message["headers"]]
        if message["type"] == "http.response.trailers" and not message.get("more_trailers", False):
            self._end(None)
        self._deliver(message, 0)

    def _deliver(self, message: Message, cost: int) -> None:
        """Gives an event to the host's ``send``, here and now unless an earlier one still waits."""
        if self._busy:
            self._queue.append((message, cost))
            return
        loop = self.link.loop
        task = self._task
        try:
            enter_task(loop, task)
        except RuntimeError:  # not called by the loop itself: leave it to the request's task
            self._busy = True
            self._queue.append((message, cost))
            self._wake_up()
            return
        self.begun = True
        context = self._context
        try:
            coroutine = coroutine_of(self._send(message))
            waits_for = context.run(coroutine.send, None)
        except StopIteration:
            if cost:
                self.consumed(cost)
        except BaseException as error:
            self._send_failed(error)
        else:
            self._busy = True
            self._rest = (Rest(coroutine, waits_for, context), cost)
            self._wake_up()
        finally:
            leave_task(loop, task)

    async def _serve(self) -> None:
        """Waits for the end; drives ``send`` when it has to wait."""
        while True:
            if self._rest is not None:
                rest, cost = self._rest
                self._rest = None
                try:
                    await rest
                    self.consumed(cost)
                except Exception as error:
                    self._send_failed(error)
            elif self._queue:
                message, cost = self._queue.popleft()
                self.begun = True
                try:
                    step = Step(self._send(message), self._context)
                    if not step.done:
                        await step.rest()
                    self.consumed(cost)
                except Exception as error:
                    self._send_failed(error)
            elif self._over:
                return
            else:
                self._busy = False
                self._wake = self.link.loop.create_future()
                await self._wake

    def _send_failed(self, error: BaseException) -> None:
        self._queue.clear()
        if self.websocket and isinstance(error, OSError):
            # The client is gone; how it went comes by `receive`. What the app still sends has nowhere to go.
            self._send = _nowhere
            if self._timer is None:
                self._timer = self.link.loop.call_later(GONE_PAUSE, self._client_gone, {"code": 1006})
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """The host failed: its error is the request's."""
        if not self.ended:
            self._cancel({"code": 1006})
        if self._error is None or isinstance(self._error, HopError):
            self._error = error
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Nothing more comes. What is queued still goes to ``send``, then the request returns or raises."""
        if not self._over:
            self._over = True
            self._error = error
        self._detach()
        self._wake_up()

    def _detach(self) -> None:
        if not self.ended:
            self.ended = True
            self.link.release(self.id)
            self.unblock()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


async def _nowhere(message: Message) -> None:
    """A ``send`` to nobody."""
