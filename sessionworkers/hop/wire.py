"""What both ends of a link share: reading and writing frames on a socket, and a stream's credit.

Writing is corked by how busy the link is: with at most one stream open a frame goes out at once, with more of them all
frames of one loop iteration go out in one write (one wake-up of the peer instead of many).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from sessionworkers.errors import FrameError
from sessionworkers.hop.codec import (
    BYTES,
    DATA,
    END,
    GRANT,
    MAX_FRAME,
    MESSAGE_COST,
    PART,
    PIECE,
    TEXT,
    WINDOW,
    FrameReader,
    credit,
    header,
)

logger: Final = logging.getLogger("sessionworkers.hop")

SEND_BUFFER: Final = 1024 * 1024  # bytes

_CRED: Final = struct.Struct("3i")


def same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket runs as our user, or as root (SO_PEERCRED)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # no such question on this system: the 0700 directory is what keeps others out
    _, uid, _ = _CRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CRED.size))
    return uid in (os.geteuid(), 0)


class Descriptor:
    """Keeps a socket that a transport has taken from closing a number that is no longer its own.

    uvloop closes the descriptor itself, and lets go of the socket object only if the link lived until its making was
    over. The object of one that did not would, when it is collected, close whatever has got the number since.
    """

    __slots__ = ("_inode", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._inode = os.fstat(sock.fileno()).st_ino

    def check(self) -> bool:
        """Whether the socket is still open; if not, its object lets go of the number."""
        number = self._sock.fileno()
        if number < 0:
            return False
        try:
            if os.fstat(number).st_ino == self._inode:
                return True
        except OSError:
            pass
        self._sock.detach()
        return False

    def close(self) -> None:
        if self.check():
            self._sock.close()


class Stream:
    """One request on a link: its number, the credit for what is sent, and what was consumed of what came.

    Here and in what derives from it the usual values stand at the class, so that a request sets only what it changes.
    """

    ended = False  # nothing may be sent on it any more, nothing that comes counts
    left: int = WINDOW  # credit
    grant: int = GRANT  # what came is given back as credit in steps of this
    _consumed = 0
    _room: asyncio.Future[None] | None = None
    _lock: asyncio.Lock | None = None

    def __init__(self, link: Link[Any], id: int) -> None:
        self.link = link
        self.id = id

    # what a link tells its streams
    def frame(self, kind: int, payload: bytes) -> None:
        raise NotImplementedError

    def shared(self, kind: int, piece: memoryview) -> None:
        """A frame of that kind whose payload is another's again once this returns."""
        self.frame(kind, bytes(piece))

    def lost(self) -> None:
        """The link broke: nothing more will come."""
        raise NotImplementedError

    # credit
    def consumed(self, amount: int) -> None:
        """``amount`` of what came was handed on; gives credit back in steps of ``grant``."""
        self._consumed += amount
        if self._consumed >= self.grant and not self.ended:
            self.link.write(credit(self.id, self._consumed))
            self._consumed = 0

    def granted(self, amount: int) -> None:
        self.left += amount
        if self.left > 0:
            self.unblock()

    def unblock(self) -> None:
        """Whoever waits for credit looks again."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    @property
    def clear(self) -> bool:
        """Whether a piece may be sent at once."""
        return self.left > 0 and (self._lock is None or not self._lock.locked())

    async def _credit(self) -> bool:
        """Waits until a piece may be sent; False: the stream has ended meanwhile. Only with the lock held."""
        while self.left <= 0 and not self.ended:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        return not self.ended

    def _turn(self) -> asyncio.Lock:
        """Several tasks may send on a WebSocket at a time: whoever has to wait keeps the others behind it."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    # sending
    async def send_body(self, body: bytes | memoryview, more: bool) -> None:
        """A piece of a body of any size; waits for credit. Nothing happens on a stream that has ended."""
        size = len(body)
        if size <= PIECE and self.clear:
            self.left -= size
            self.link.write_with(header(DATA if more else END, self.id, size), body)
            return
        async with self._turn():
            view = memoryview(body)
            at = 0
            while await self._credit():
                rest = size - at
                piece = view[at : at + PIECE]
                last = rest <= PIECE
                self.left -= len(piece)
                self.link.write_with(header(END if last and not more else DATA, self.id, len(piece)), piece)
                if last:
                    return
                at += PIECE

    async def send_message(self, data: bytes, text: bool) -> None:
        """A WebSocket message of any size; waits for credit."""
        kind = TEXT if text else BYTES
        size = len(data)
        if size <= PIECE and self.clear:
            self.left -= size + MESSAGE_COST
            self.link.write_with(header(kind, self.id, size), data)
            return
        async with self._turn():
            view = memoryview(data)
            at = 0
            while await self._credit():
                piece = view[at : at + PIECE]
                last = size - at <= PIECE
                self.left -= len(piece) + (MESSAGE_COST if last else 0)
                self.link.write_with(header(kind if last else PART, self.id, len(piece)), piece)
                if last:
                    return
                at += PIECE


S = TypeVar("S", bound=Stream)

_live: set[Link[Any]] = set()


class Link(asyncio.Protocol, Generic[S]):
    """One connection between two workers."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.streams: dict[int, S] = {}
        self.greeted = False
        self.closed = False
        self.on_close: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._out: list[bytes | memoryview] = []
        self._unsettled: list[Any] = []
        self._flushing = False

    # for the two ends
    def frame(self, kind: int, stream: int, payload: bytes) -> None:
        raise NotImplementedError

    def connected(self) -> None:
        """The socket is ready."""

    def disconnected(self) -> None:
        """The link is gone, its streams have been told."""

    def trust(self) -> None:
        """The peer has said hello: larger frames are allowed from here on."""
        self.greeted = True
        self._reader.limit = MAX_FRAME

    # writing
    def write(self, frame: bytes) -> None:
        """Sends a whole frame."""
        if self.closed or self._transport is None:
            return
        if len(self.streams) <= 1 and not self._out:
            self._transport.write(frame)
            return
        self._out.append(frame)
        self._cork()

    def write_with(self, head: bytes, payload: bytes | memoryview) -> None:
        """Sends a frame in two parts; a large payload is not copied here."""
        if len(payload) <= 4096:
            self.write(head + payload)
        else:
            self.write_all((head, payload))

    def write_all(self, parts: Sequence[bytes | memoryview]) -> None:
        """Sends a frame in parts, without copying them here."""
        if self.closed or self._transport is None:
            return
        if len(self.streams) <= 1 and not self._out:
            self._transport.writelines(parts)
            return
        self._out += parts
        self._cork()

    def later(self, stream: Any) -> None:
        """Have ``stream`` send what it holds (`settle`) at the end of this iteration of the loop."""
        self._unsettled.append(stream)
        self._cork()

    def _cork(self) -> None:
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes what was held back."""
        if self._unsettled:
            unsettled, self._unsettled = self._unsettled, []
            for stream in unsettled:
                if not stream.ended:
                    stream.settle()
        self._flushing = False
        if self._out and self._transport is not None:
            out, self._out = self._out, []
            self._transport.writelines(out)

    # closing
    def close(self) -> None:
        """Ends the link once all that was written has gone out."""
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by type
        sock = transport.get_extra_info("socket")
        if sock is not None:  # as much as the system allows: a large reply leaves its owner in one go
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        _live.add(self)
        self.connected()

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._reader.feed(data)
        except FrameError as error:
            self._cut(error)
        else:
            self.take(frames)

    def take(self, frames: Iterable[tuple[int, int, bytes]]) -> None:
        """Act on what has come: kind, stream and payload. Whatever goes wrong ends the link."""
        try:
            for kind, stream, payload in frames:
                self.frame(kind, stream, payload)
                if self.closed:
                    return
        except FrameError as error:
            self._cut(error)
        except Exception:
            logger.exception("a private link was closed")
            self.abort()

    def _cut(self, error: FrameError) -> None:
        logger.warning("a private link was closed: %s", error)
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._out.clear()
        self._unsettled.clear()
        _live.discard(self)
        streams = list(self.streams.values())
        self.streams.clear()
        for stream in streams:
            stream.lost()
        self.disconnected()
        if self.on_close is not None:
            self.on_close()


def _close_in_child() -> None:
    """In a forked child: the parent's links become /dev/null, so that they end when the parent does.

    Not closed: their numbers are still registered with the event loop that the child inherited.
    """
    if not _live:
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for link in _live:
        transport = link._transport
        sock = None if transport is None else transport.get_extra_info("socket")
        number = -1 if sock is None else sock.fileno()
        if number >= 0:
            os.dup2(null, number, inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_close_in_child)
