"""The owner's end of a raw stream: it looks like the transport of a client's connection. No uvicorn.

What the host's request cycle writes in one go leaves as one frame, head and body together; the rest at the end of the
loop's iteration. Beyond the stream's credit it waits here, and the cycle is told so by ``write_paused``, as by its own
transport.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from sessionworkers.errors import FrameError
from sessionworkers.hop.codec import (
    CANCEL,
    CREDIT,
    DATA,
    END,
    EVENT,
    RAW,
    RAW_CLOSE,
    RAW_KEEP,
    RAW_WINDOW,
    REFUSE,
    OpenRaw,
    Refusal,
    header,
    packed,
    read_credit,
)
from sessionworkers.hop.ring import LEAST
from sessionworkers.hop.wire import Stream

if TYPE_CHECKING:
    from sessionworkers.hop.private import OwnerLink

_JOINED: Final = 16 * 1024  # up to here pieces are put together for one write
_PIECE: Final = 256 * 1024  # of a reply longer than its credit: some of them find room in the shared memory


class Request(Protocol):
    """What the host makes of a raw stream."""

    def more(self, data: bytes, last: bool) -> None:
        """A piece of the request's body, or of what a tunnelled client sent."""

    def gone(self) -> None:
        """The client is gone."""

    def shut(self) -> None:
        """This worker closes now, or (tunnel) the one that accepted does."""

    def closed(self) -> None:
        """The stream has ended after a `close` of its own."""

    def pause(self) -> None:
        """What is written waits for credit."""

    def resume(self) -> None:
        """It waits no more."""


class ServedRaw(Stream):
    """A transport that is a stream. Give it a ``request`` before anything comes."""

    link: OwnerLink
    request: Request

    left: int = RAW_WINDOW
    write_paused = False
    reading_paused = False
    info: Mapping[str, Any] = MappingProxyType({})
    _size = 0
    _end = 0
    _closing = False
    _soon = True  # the link looks at it when the first step of the request's task is over
    _unread = 0
    _queue: deque[memoryview] | None = None
    _room_made: asyncio.Event | None = None

    def __init__(self, link: OwnerLink, id: int) -> None:
        self.link = link
        self.id = id
        self._out: list[bytes] = []

    # what the cycle sees as its transport
    def write(self, data: bytes) -> None:
        if data and not self.ended and not self._end:
            self._out.append(data)
            self._size += len(data)
            if self._size > self.left or data[9:12] == b"100":
                self.settle()  # an app that never waits must be told when to; a 100 goes before its reply
            elif not self._soon:
                self._later()

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(bytes(piece))

    def close(self) -> None:
        """Ends the stream, and the client's connection with it, once all is written."""
        self._closing = True
        if not self._end:
            self._end = RAW_CLOSE
            if not self._soon:
                self._later()

    def abort(self) -> None:
        self._out.clear()
        self._size = 0
        self._queue = None
        self.close()
        self.settle()

    def is_closing(self) -> bool:
        return self._closing or self.ended

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.info.get(name, default)

    def pause_reading(self) -> None:
        """As its flow control, too: what is not read costs no credit back."""
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False
        if self._unread:
            self.consumed(self._unread)
            self._unread = 0

    def is_reading(self) -> bool:
        return not self.reading_paused

    def set_protocol(self, protocol: Any) -> None:
        """The stream's frames go to its ``request``."""

    def get_protocol(self) -> Any:
        return self.request

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._out)) + sum(map(len, self._queue or ()))

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, RAW_WINDOW

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are the credit's."""

    def can_write_eof(self) -> bool:
        return False

    # and as its flow control
    async def drain(self) -> None:
        while self.write_paused and not self.ended:
            if self._room_made is None:
                self._room_made = asyncio.Event()
            self._room_made.clear()
            await self._room_made.wait()

    def resume_writing(self) -> None:
        self._resumed()

    # the host's words
    def done(self) -> None:
        """The reply is complete."""
        self._end = self._end or RAW_KEEP
        self.settle()

    def refuse(self, owner: str | None) -> None:
        """Another worker holds the claim; the app has not seen the request."""
        self._out.clear()
        if not self.ended:
            self._finish(packed(REFUSE, self.id, Refusal("not-mine", owner)))

    def _later(self) -> None:
        self._soon = True
        self.link.later(self)

    def settle(self) -> None:
        """Sends what was written."""
        self._soon = False
        out = self._out
        if self.ended or not (out or self._end):
            return
        size, self._size = self._size, 0
        self._out = []
        if self._queue or size > self.left:
            if self._queue is None:
                self._queue = deque()
            self._queue += [memoryview(each) for each in out]
            self._pump()
            return
        self.left -= size
        self._give(self._end or RAW, out, size)
        if self._end:
            self._finish(None)

    def _give(self, kind: int, parts: Sequence[bytes | memoryview], size: int) -> None:
        """Send ``parts``, ``size`` bytes in all, as one frame: together, apart, or by shared memory."""
        link = self.link
        if size <= _JOINED:
            link.write(b"".join((header(kind, self.id, size), *parts)))
            return
        if size < LEAST or not link.share(kind, self.id, parts, size):
            link.write_all([header(kind, self.id, size), *parts])

    # what comes
    def frame(self, kind: int, payload: bytes) -> None:
        if kind in (DATA, END):
            if kind == DATA:  # after the last piece no credit is needed
                self._unread += len(payload)
            self.request.more(payload, kind == END)
        elif kind == CREDIT:
            self.left += read_credit(payload)
            self._pump()
        elif kind == CANCEL:
            self.lost()
        elif kind == EVENT:
            self.request.shut()
        else:
            raise FrameError(f"a frame of kind {kind} for a raw stream")

    def lost(self) -> None:
        self._out.clear()
        self._queue = None
        self._finish(None)
        self.request.gone()
        self._resumed()

    def shut(self) -> None:
        """The server closes now."""
        self.request.shut()
        if not self.ended:
            self.close()
            self.settle()
        if not self.ended:  # the rest waits for credit that will not come in time
            self._queue = None
            self._finish(header(RAW_CLOSE, self.id, 0))

    def left_by(self, task: asyncio.Task[None]) -> None:
        """The request's task is done. A stream that has ended lets go of its request, which names it."""
        self.link.server.left(task)
        if self.ended:
            self.request = NOBODY

    def _pump(self) -> None:
        queue = self._queue
        while queue and self.left > 0 and not self.ended:
            piece = queue[0]
            most = min(self.left, _PIECE)
            if len(piece) > most:
                queue[0] = piece[most:]
                piece = piece[:most]
            else:
                queue.popleft()
            self.left -= len(piece)
            kind = self._end if self._end and not queue else RAW
            self._give(kind, [piece], len(piece))
            if kind != RAW:
                self._finish(None)
                return
        if queue:
            if not self.write_paused:
                self.write_paused = True
                self.request.pause()
        elif self._end and not self.ended:
            self._finish(header(self._end, self.id, 0))
        else:
            self._resumed()

    def _resumed(self) -> None:
        if self.write_paused:
            self.write_paused = False
            self.request.resume()
        if self._room_made is not None:
            self._room_made.set()

    def _finish(self, frame: bytes | None) -> None:
        if self.ended:
            return
        if frame is not None:
            self.link.write(frame)
        self.ended = True
        self._closing = True
        self.link.streams.pop(self.id, None)
        if self.write_paused or self._room_made is not None:
            self._resumed()
        if self._end == RAW_CLOSE:
            self.link.loop.call_soon(self.request.closed)


class _Nobody:
    """The request of a stream that is over."""

    def more(self, data: bytes, last: bool) -> None:
        """Nobody reads it."""

    def gone(self) -> None: ...

    shut = closed = pause = resume = gone


NOBODY: Final = _Nobody()


class OpensRaw(Protocol):
    """What the host does with raw streams. It gives the task that counts as the request, None if it is no such."""

    def open(self, stream: ServedRaw, head: OpenRaw) -> asyncio.Task[None] | None:
        """A stream was opened."""

    def open_again(
        self, stream: ServedRaw, flags: int, head: bytes, line: int, peer: bytes, body: bytes
    ) -> asyncio.Task[None] | None:
        """A stream was opened with a head that may have come before. Raises `Unreadable`."""
