"""The accepted connection itself moves to the worker that owns its session (SCM_RIGHTS), with the bytes read so far.

::

    sender                                     owner
    dup of the socket, sendmsg(socket, bytes) → makes its own protocol for it,
    drops the dup                             ← writes the acknowledgement, then feeds the first byte

The channel is a connection of its own to the owner's private socket, opened by a hello like a link's. As long as a
socket is not acknowledged the sender keeps its duplicate and the bytes: the owner cannot have answered, so when the
channel ends (the kernel closes it with the owner) the sender serves the connection itself, and its router finds that
the owner is gone. There is no time limit on an acknowledgement: with one, a slow owner would make two answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from sessionworkers.errors import FrameError, HopError
from sessionworkers.hop.codec import HELLO, OLDEST, VERSION, FrameReader, Hello, Unreadable, packed, read_hello
from sessionworkers.hop.dial import dial
from sessionworkers.members.fork import close_in_child, forget

log = logging.getLogger("sessionworkers.hop")

MOST_BYTES: Final = 16 * 1024
"""Bytes read so far that may travel: the kernel takes that much in one piece or not at all."""
DIAL_LIMIT: Final = 2.0  # seconds for connecting and the hello
CLOSE_LIMIT: Final = 0.5  # seconds for the last acknowledgements
PAUSE: Final = 1.0  # seconds before a channel that could not be opened is tried again
SOCKETS: Final = "sockets"  # what the owner's hello says on a channel

_HEAD: Final = struct.Struct("!IIB")  # length of the bytes, number, how often it has moved
_ACK: Final = struct.Struct("!I")
_FDS: Final = 4
_RIGHTS: Final = socket.CMSG_SPACE(_FDS * array("i").itemsize)

Adopt = Callable[[socket.socket, bytes, int, "Callable[[], None] | None"], None]
"""Serve this connection, which was read so far and has moved so often; the function acknowledges it and is called
before the first byte is fed."""


class _Nobody(asyncio.Protocol):
    """Holds the transport of a socket that has moved until the loop has let go of it."""


class Channel:
    """The sending end to one owner."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, takes_back: Adopt) -> None:
        self.loop = loop
        self.sock = sock
        self.closed = False
        self._takes_back = takes_back
        self._number = 0
        self._waiting: dict[int, tuple[int, bytes, int]] = {}
        self._acks = bytearray()
        close_in_child(sock.fileno())
        loop.add_reader(sock.fileno(), self._read)

    def send(self, fd: int, data: bytes, moves: int) -> bool:
        """Hand ``fd`` over with ``data``; False if that is not possible now, and nothing has happened."""
        if self.closed or len(data) > MOST_BYTES:
            return False
        try:
            kept = os.dup(fd)
        except OSError:
            return False
        number = self._number = (self._number + 1) & 0xFFFFFFFF
        message = _HEAD.pack(len(data), number, min(moves + 1, 255)) + data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))]
        try:
            sent = self.sock.sendmsg([message], rights, socket.MSG_DONTWAIT)
        except OSError:  # full, or the owner is gone
            os.close(kept)
            return False
        self._waiting[number] = (kept, data, moves)
        if sent < len(message):  # cannot be, see MOST_BYTES; the owner has not got it whole and never will
            self.close()
        return True

    @property
    def waits(self) -> bool:
        """Whether something was sent that is not acknowledged."""
        return bool(self._waiting)

    def _read(self) -> None:
        try:
            data = self.sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._acks += data
        while len(self._acks) >= _ACK.size:
            (number,) = _ACK.unpack_from(self._acks)
            del self._acks[: _ACK.size]
            kept = self._waiting.pop(number, None)
            if kept is not None:
                os.close(kept[0])

    def close(self) -> None:
        """The channel has ended: what was not acknowledged was not begun with, and is served here."""
        if self.closed:
            return
        self.closed = True
        self.loop.remove_reader(self.sock.fileno())
        forget(self.sock.fileno())
        self.sock.close()
        waiting, self._waiting = self._waiting, {}
        for kept, data, moves in waiting.values():
            self._takes_back(socket.socket(fileno=kept), data, moves, None)


class Handover:
    """Both ends for one worker. ``path(uid)``: a worker's private socket; ``adopt`` serves a connection."""

    def __init__(self, me: str, path: Callable[[str], str], adopt: Adopt) -> None:
        self.me = me
        self.moved = 0  # connections handed over
        self._path = path
        self._adopt = adopt
        self._loop = asyncio.get_running_loop()
        self._channels: dict[str, Channel] = {}
        self._dialing: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._taking: dict[int, _Taking] = {}
        self._takes = True
        self._closed = False

    # sending

    def channel(self, owner: str) -> Channel | None:
        """A channel that is ready; None: there will be one the next time, perhaps."""
        channel = self._channels.get(owner)
        if channel is not None:
            if not channel.closed:
                return channel
            del self._channels[owner]
        if not self._closed and owner not in self._dialing and self._loop.time() >= self._not_before.get(owner, 0.0):
            task = self._dialing[owner] = self._loop.create_task(self._dial(owner))
            task.add_done_callback(lambda _: self._dialing.pop(owner, None))
        return None

    async def _dial(self, owner: str) -> None:
        deadline = self._loop.time() + DIAL_LIMIT
        try:
            sock = await dial(self._path(owner), deadline)
        except (HopError, OSError):
            self._not_before[owner] = self._loop.time() + PAUSE
            return
        try:
            await asyncio.wait_for(self._hello(sock, owner), DIAL_LIMIT)
        except (HopError, FrameError, OSError, asyncio.TimeoutError, *Unreadable):
            self._not_before[owner] = self._loop.time() + PAUSE
            sock.close()
            return
        except BaseException:
            sock.close()
            raise
        self._channels[owner] = Channel(self._loop, sock, self._adopt)

    async def _hello(self, sock: socket.socket, owner: str) -> None:
        await self._loop.sock_sendall(sock, packed(HELLO, 0, Hello(self.me, owner, VERSION, OLDEST, True)))
        reader = FrameReader()
        while True:
            data = await self._loop.sock_recv(sock, 4096)
            if not data:
                raise FrameError("the owner takes no sockets")
            for kind, _, payload in reader.feed(data):
                hello = read_hello(payload) if kind == HELLO else None
                if hello is None or hello.uid != owner or hello.expects != SOCKETS:
                    raise FrameError("the owner takes no sockets")
                return

    # taking

    def take(self, sock: socket.socket) -> None:
        """A worker hands sockets over on ``sock``."""
        if self._takes:
            _Taking(self, sock)
        else:
            sock.close()

    def take_no_more(self) -> None:
        """This worker will leave. Senders keep what is not acknowledged, and go on forwarding."""
        self._takes = False
        for taking in list(self._taking.values()):
            taking.stop()

    # closing

    async def close(self) -> None:
        """End all channels, once what is under way is acknowledged."""
        self._closed = True
        for task in list(self._dialing.values()):
            task.cancel()
        self.take_no_more()
        deadline = self._loop.time() + CLOSE_LIMIT
        while self._open and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for taking in list(self._taking.values()):
            taking.close()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    @property
    def _open(self) -> bool:
        """Whether an acknowledgement is outstanding, here or there."""
        return bool(self._taking) or any(channel.waits for channel in self._channels.values())


class _Taking:
    """The receiving end from one worker."""

    def __init__(self, handover: Handover, sock: socket.socket) -> None:
        self.handover = handover
        self.sock = sock
        self._held = bytearray()
        self._fds: list[int] = []
        self._begun = 0  # connections that are not acknowledged yet
        self._stopped = False
        self._closed = False
        fd = sock.fileno()
        handover._taking[fd] = self
        close_in_child(fd)
        handover._loop.add_reader(fd, self.read)
        sock.send(packed(HELLO, 0, Hello(handover.me, SOCKETS, VERSION, OLDEST)))

    def read(self) -> None:
        while not self._stopped:
            try:
                data, rights, _, _ = self.sock.recvmsg(64 * 1024, _RIGHTS, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.warning("a channel for sockets was closed: %s", error)
                data, rights = b"", []
            for level, kind, raw in rights:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array("i")
                    fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
                    self._fds += fds
            if not data:
                self.close()
                return
            self._held += data
            self._cut()

    def _cut(self) -> None:
        held = self._held
        while len(held) >= _HEAD.size and not self._stopped:
            length, number, moves = _HEAD.unpack_from(held)
            end = _HEAD.size + length
            if length > MOST_BYTES or not self._fds:
                log.warning("a channel for sockets was closed: it does not hold what it should")
                self.close()
                return
            if len(held) < end:
                return
            data = bytes(held[_HEAD.size : end])
            del held[:end]
            fd = self._fds.pop(0)
            os.set_inheritable(fd, False)
            self._begun += 1
            self.handover._adopt(socket.socket(fileno=fd), data, moves, partial(self._ack, number))

    def _ack(self, number: int) -> None:
        self._begun -= 1
        if self._closed:
            return
        try:
            self.sock.send(_ACK.pack(number), socket.MSG_DONTWAIT)
        except OSError:  # the sender is gone, and its duplicate with it
            self.close()
        if self._stopped and not self._begun:
            self.close()

    def stop(self) -> None:
        """Take nothing more, and close with the last acknowledgement."""
        self._stopped = True
        self.handover._loop.remove_reader(self.sock.fileno())
        if not self._begun:
            self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._stopped = True
        fd = self.sock.fileno()
        self.handover._loop.remove_reader(fd)
        self.handover._taking.pop(fd, None)
        forget(fd)
        self.sock.close()
        for each in self._fds:
            os.close(each)
        self._fds.clear()


def let_go(transport: asyncio.Transport) -> None:
    """The loop forgets a connection that has moved; it stays open in its new process."""
    transport.set_protocol(cast(asyncio.BaseProtocol, _Nobody()))
    transport.abort()


def shut(transport: Any) -> None:
    """End a connection for all processes that may hold it: a duplicate elsewhere would keep the FIN back."""
    sock = transport.get_extra_info("socket")
    fd = -1 if sock is None else sock.fileno()
    if fd < 0:
        return
    with socket.socket(fileno=os.dup(fd)) as own:
        try:
            own.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already
