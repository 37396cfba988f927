"""Accepting the connections of clients, where uvicorn's code is known: each is read as it is accepted.

A `Listener` stands in uvicorn's ``servers`` for the one that the loop would make. Connections that have come no further
than their first packets (`hosts.first`) are watched by an epoll of their own, which the loop watches: to add a socket
to that takes one system call, to the loop's own readers four.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sessionworkers.hosts.first import FirstTransport

if TYPE_CHECKING:
    from sessionworkers.hosts.accepted import Accepted

ENABLED = True
"""Off: the loop accepts, as under uvicorn alone."""
PAUSE: Final = 1.0
"""Seconds without accepting when descriptors or memory have run out, as asyncio's."""

_OUT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ANY: Final = (("0.0.0.0",), ("::",))
_AT_ONCE: Final = 64  # most connections that one look at the epoll gives


class Listener:
    """One listening socket, this object's to close. ``make`` makes the protocol of a connection.

    It accepts one connection at a time: what waits behind it is for whichever worker has nothing to do.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, make: Callable[[], Accepted], backlog: int
    ) -> None:
        self.loop = loop
        self.sockets = (sock,)
        self._sock = sock
        self._make = make
        self._kind = (sock.family, sock.type, sock.proto)
        name = sock.getsockname()
        self._server = None if name[:1] in _ANY else address(name)  # of all its connections, if that is one
        self._firsts: dict[int, FirstTransport] = {}
        self._promoting: set[asyncio.Task[None]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._closed = False
        sock.setblocking(False)
        sock.listen(backlog)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted ones inherit it
        self._epoll = select.epoll()
        loop.add_reader(self._epoll.fileno(), self._look)
        loop.add_reader(sock.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            fd, client = self._sock._accept()  # type: ignore[attr-defined]
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker has it, or its client has gone
        except OSError as error:
            if error.errno not in _OUT:
                raise
            self._rest(error)
            return
        sock = socket.socket(*self._kind, fileno=fd)
        protocol = self._make()
        self._firsts[fd] = first = FirstTransport(self, sock, protocol)
        protocol.accepted(first, client, self._server or address(sock.getsockname()))
        self._read(first)
        if fd in self._firsts:
            self._epoll.register(fd, select.EPOLLIN)

    def _rest(self, error: OSError) -> None:
        """Accept nothing for a while."""
        self.loop.call_exception_handler({"message": "No connection can be accepted", "exception": error})
        self.loop.remove_reader(self._sock.fileno())
        self._resting = self.loop.call_later(PAUSE, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self.loop.add_reader(self._sock.fileno(), self._accept)

    def _look(self) -> None:
        for fd, _ in self._epoll.poll(0, _AT_ONCE):
            first = self._firsts.get(fd)
            if first is not None:
                self._read(first)

    def _read(self, first: FirstTransport) -> None:
        try:
            first.read()
        except Exception as error:  # one connection's fault is not the others'
            self.loop.call_exception_handler({"message": "Fatal error on a connection", "exception": error})
            first.abort()

    def forget(self, fd: int) -> None:
        """Watch this connection no longer."""
        if self._firsts.pop(fd, None) is not None:
            try:
                self._epoll.unregister(fd)
            except FileNotFoundError:
                pass  # it is just being accepted
            self._close_epoll()

    def promote(self, sock: socket.socket, protocol: Any, first: FirstTransport) -> None:
        """Have the loop make a transport for ``sock`` and ``protocol``."""

        async def make() -> None:
            try:
                await self.loop.connect_accepted_socket(lambda: protocol, sock)
            except OSError as error:
                first.fail(error)
            else:
                first.settle()

        task = self.loop.create_task(make())
        self._promoting.add(task)
        task.add_done_callback(self._promoting.discard)

    # what is asked of a server

    def close(self) -> None:
        """Accept no more. What was accepted goes on."""
        if self._closed:
            return
        self._closed = True
        if self._resting is not None:
            self._resting.cancel()
        self.loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._close_epoll()

    def _close_epoll(self) -> None:
        if self._closed and not self._firsts:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    async def wait_closed(self) -> None:
        """uvicorn has waited for the connections before it asks."""


def address(name: Any) -> tuple[str, int | None] | None:
    """What uvicorn's `get_local_addr` makes of ``name``, which is ``getsockname``'s."""
    if isinstance(name, tuple):
        return name[0], name[1]
    return (name, None) if isinstance(name, str) else None
