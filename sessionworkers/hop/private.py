"""The owner's end of the links: accepts other workers and runs their requests in this one.

`PrivateServer` accepts on the private socket, `OwnerLink` is one peer; `served.py` is one request.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from sessionworkers.errors import FrameError
from sessionworkers.hop.codec import (
    BYE,
    GOAWAY,
    HELLO,
    LAID,
    OLDEST,
    OPEN,
    OPEN_AGAIN,
    OPEN_RAW,
    REFUSE,
    RING,
    VERSION,
    WEBSOCKET,
    Bye,
    Hello,
    Refusal,
    Unreadable,
    bare,
    header,
    packed,
    read_again,
    read_hello,
    read_open,
    read_raw,
    shared,
)
from sessionworkers.hop.raw import OpensRaw, ServedRaw
from sessionworkers.hop.ring import IDLE, Ring
from sessionworkers.hop.scopes import scope_of
from sessionworkers.hop.served import Handler, Served, ServedHttp, ServedWebSocket
from sessionworkers.hop.wire import Descriptor, Link, logger, same_user

HELLO_LIMIT: Final = 2.0  # seconds in which a new connection must say hello
LEAVE_LIMIT: Final = 1.0  # seconds that cancelled handlers have to return when the server closes
_ACCEPTS: Final = 64  # connections taken in one go
_ACCEPT_PAUSE: Final = 0.5  # seconds without accepting when this process has no file descriptor left


class OwnerLink(Link[Any]):
    """A peer worker that sends requests here."""

    def __init__(self, server: PrivateServer) -> None:
        super().__init__()
        self.server = server
        self._last = 0  # highest stream number seen
        self._late: asyncio.TimerHandle | None = None
        self._ring: Ring | None = None
        self._rings = True  # one may be made
        self._used = False  # of late
        self._idle: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._unsettled:
            self._cork()  # comes after the first steps of their tasks: what those write leaves together

    def connected(self) -> None:
        self.server.links.add(self)
        self._late = self.loop.call_later(self.server.hello_limit, self.abort)
        if self.server.closing:
            self._bye("closing", "the worker is closing")

    def disconnected(self) -> None:
        self.server.links.discard(self)
        if self._late is not None:
            self._late.cancel()
        if self._idle is not None:
            self._idle.cancel()
        if self._ring is not None:
            self._ring.close()

    def frame(self, kind: int, stream: int, payload: bytes) -> None:
        served = self.streams.get(stream)
        if served is not None:
            served.frame(kind, payload)
        elif not self.greeted:
            self._hello(kind, payload)
        elif kind == OPEN:
            self._open(stream, payload)
        elif kind in (OPEN_AGAIN, OPEN_RAW):
            self._open_raw(kind, stream, payload)
        elif kind == RING and self._ring is not None:
            self._ring.accepted()
        elif stream > self._last or stream == 0:
            raise FrameError(f"a frame of kind {kind} for a stream that was never opened")
        # else: the stream has ended here, the peer does not know it yet

    def _hello(self, kind: int, payload: bytes) -> None:
        if kind != HELLO:
            raise FrameError("a peer did not say hello first")
        try:
            hello = read_hello(payload)
        except Unreadable as error:
            raise FrameError(f"a peer's hello cannot be read: {error}") from error
        if self._late is not None:
            self._late.cancel()
        if hello.expects != self.server.me:
            self._bye("uid", "another worker answers here")
        elif hello.raw and self.server.take_sockets is not None:
            self._hand_over()
        elif min(VERSION, hello.version) < max(OLDEST, hello.oldest):
            text = f"this worker speaks hop versions {OLDEST} to {VERSION}, not {hello.oldest} to {hello.version}"
            self._bye("version", text)
        else:
            self.trust()
            self.write(packed(HELLO, 0, Hello(self.server.me, "", VERSION, OLDEST, self.server.opens_raw is not None)))
            if self.server.closing:
                self.write(bare(GOAWAY, 0))

    def _hand_over(self) -> None:
        """This connection is for sockets: it leaves the loop, which would read without them."""
        server, transport = self.server, self._transport
        assert server.take_sockets is not None and transport is not None
        if server.closing:
            self._bye("closing", "the worker is closing")
            return
        sock = transport.get_extra_info("socket")
        channel = socket.socket(fileno=os.dup(sock.fileno()))
        channel.setblocking(False)
        server.take_sockets(channel)
        transport.abort()

    def share(self, kind: int, stream: int, parts: Sequence[bytes | memoryview], size: int) -> bool:
        """Send a frame by the shared memory; False: it has to go through the socket."""
        ring = self._ring
        if ring is not None:
            self._used = True
            if self._idle is None:
                self._idle = self.loop.call_later(IDLE, self._look_idle)
            at = ring.reserve(size) if ring.ready else -1
            if at < 0:
                return False
            frame = shared(stream, kind, at, size)
            if ring.early():
                self.write(frame)
                if ring.lay(at, parts):
                    self.write(header(LAID, 0, 0))
            else:
                ring.lay(at, parts)
                self.write(frame)
            return True
        if self._rings:
            self._rings = False
            try:
                ring = self._ring = Ring()
            except OSError as error:
                logger.debug("large replies go through the socket: %s", error)
                return False
            offer = ring.offer()
            self.write(header(RING, 0, len(offer)) + offer)
        return False

    def _look_idle(self) -> None:
        """Nothing went through the shared memory for a while, or something did."""
        used, self._used = self._used, False
        if used or (self._ring is not None and not self._ring.release()):
            self._idle = self.loop.call_later(IDLE, self._look_idle)
        else:
            self._idle = None

    def _open_raw(self, kind: int, stream: int, payload: bytes) -> None:
        if stream <= self._last:
            raise FrameError("a stream was opened twice")
        self._last = stream
        server = self.server
        opens = server.opens_raw
        if server.closing or opens is None:
            self.write(packed(REFUSE, stream, Refusal("closing", None)))
            return
        self.streams[stream] = served = ServedRaw(self, stream)
        try:
            if kind == OPEN_AGAIN:
                task = opens.open_again(served, *read_again(payload))
            else:
                task = opens.open(served, read_raw(payload))
        except Unreadable as error:
            del self.streams[stream]
            logger.warning("a request from another worker cannot be read: %s", error)
            self.write(packed(REFUSE, stream, Refusal("unreadable", None)))
            return
        self._unsettled.append(served)
        if task is not None:
            server.tasks.add(task)

    def _bye(self, why: str, text: str) -> None:
        self.write(packed(BYE, 0, Bye(why, text)))
        self.close()

    def _open(self, stream: int, payload: bytes) -> None:
        if stream <= self._last:
            raise FrameError("a stream was opened twice")
        self._last = stream
        server = self.server
        if server.closing:
            self.write(packed(REFUSE, stream, Refusal("closing", None)))
            return
        try:
            head = read_open(payload)
            scope = scope_of(head, server.state())
        except Unreadable as error:
            logger.warning("a request from another worker cannot be read: %s", error)
            self.write(packed(REFUSE, stream, Refusal("unreadable", None)))
            return
        extensions = scope.get("extensions", ())
        served: Served
        if head.flags & WEBSOCKET:
            served = ServedWebSocket(self, stream, extensions)
        else:
            served = ServedHttp(self, stream, extensions, head)
        self.streams[stream] = served
        served.task = task = self.loop.create_task(served.run(server.handler, scope, head.meta))
        server.tasks.add(task)


class PrivateServer:
    """Serves the private socket: runs ``handler(scope, receive, send, meta)`` for each request that comes from a peer.

    ``me``: this worker's uid, a peer that expects another one is turned away. ``listener``: bound and listening; closed
    by `close`, its path is left to whoever bound it. ``state``: gives each request its ``scope["state"]``. The handler
    may raise NotMine as long as it has sent nothing: the peer gets it, the client sees nothing of it.
    """

    def __init__(
        self,
        me: str,
        listener: socket.socket,
        handler: Handler,
        *,
        state: Callable[[], dict[str, Any]],
        hello_limit: float = HELLO_LIMIT,
    ) -> None:
        self.me = me
        self.handler = handler
        self.state = state
        self.hello_limit = hello_limit
        self.closing = False
        self.opens_raw: OpensRaw | None = None
        """Takes raw streams, where the host can."""
        self.take_sockets: Callable[[socket.socket], None] | None = None
        """Takes a connection by which another worker hands sockets over; it is this function's from then on."""
        self.links: set[OwnerLink] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._listener = listener
        self._accepting: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resume: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None

    @property
    def streams(self) -> int:
        """Requests from other workers whose handler is still running."""
        return len(self.tasks)

    def left(self, task: asyncio.Task[None]) -> None:
        """A handler has returned."""
        self.tasks.discard(task)
        if not self.tasks and self._idle is not None:
            self._idle.set()

    async def start(self) -> None:
        """Begins to accept; without a loop's server, which would unlink the path or wait for ever on close."""
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._loop is not None
        for _ in range(_ACCEPTS):
            try:
                sock, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning("no file descriptor left for another worker's link: %s", error)
                    self._loop.remove_reader(self._listener.fileno())
                    self._resume = self._loop.call_later(_ACCEPT_PAUSE, self._again)
                    return
                raise
            if not same_user(sock):
                logger.warning("a process of another user was turned away from the private socket")
                sock.close()
                continue
            sock.setblocking(False)
            task = self._loop.create_task(self._take(sock))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def _again(self) -> None:
        assert self._loop is not None
        self._resume = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def _take(self, sock: socket.socket) -> None:
        assert self._loop is not None
        descriptor = Descriptor(sock)
        try:
            await self._loop.connect_accepted_socket(lambda: OwnerLink(self), sock)
        except OSError as error:
            logger.warning("another worker's link was lost while it was accepted: %s", error)
            descriptor.close()
        except BaseException:
            descriptor.close()
            raise
        else:
            descriptor.check()

    async def close(self, timeout: float) -> None:
        """Goes last of all.

        1. No new links and no new streams. 2. Waits up to ``timeout`` seconds for the handlers. 3. Tells those that
        are left (``http.disconnect``; 1012 to WebSockets and their clients) and closes the links. 4. Cancels what is
        still running. Afterwards no task and no descriptor is left, but of a handler that refuses to be cancelled.
        """
        if self._loop is None or self.closing:
            self._listener.close()
            return
        # 1
        self.closing = True
        if self._resume is not None:
            self._resume.cancel()
        else:
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        if self._accepting:
            await asyncio.wait(self._accepting)
        for link in self.links:
            if link.greeted:
                link.write(bare(GOAWAY, 0))
        # 2
        if self.tasks and timeout > 0:
            self._idle = asyncio.Event()
            try:
                await asyncio.wait_for(self._idle.wait(), timeout)
            except asyncio.TimeoutError:
                pass
        # 3
        for link in list(self.links):
            for served in list(link.streams.values()):
                served.shut()
            link.close()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=min(LEAVE_LIMIT, timeout))
        # 4
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            _, stuck = await asyncio.wait(self.tasks, timeout=LEAVE_LIMIT)
            self.tasks &= stuck  # one that was cancelled before it began has not told us
            if stuck:
                logger.warning("%d requests of other workers did not end when cancelled", len(stuck))
        for link in list(self.links):
            link.abort()
        while self.links:  # connection_lost comes with the next iteration
            await asyncio.sleep(0)
