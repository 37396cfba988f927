"""The transport of a connection that was just accepted: good for its first packets and what is answered to them.

For a transport of its own the loop goes two rounds and makes more system calls than a request needs. So the first
packet is read as the connection is accepted, and answers are written straight to the socket. Where that does not do (a
client with many requests or long bodies, an answer that the socket does not take at once, a WebSocket) the loop makes
its transport; from then on this one hands on to that whatever it is asked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sessionworkers.hosts.listener import Listener

READ: Final = 64 * 1024
"""Bytes of a packet; more that is there already is a body, for the loop's transport to read."""
PACKETS: Final = 16
"""So many are read here; who sends more gets a transport. To make one takes as long as to read so many without."""


class FirstTransport(asyncio.Transport):
    """Of the connection ``sock``, which its ``protocol`` hands over to the loop's transport by `take_over`."""

    __slots__ = ("_closing", "_held", "_listener", "_packets", "_paused", "_protocol", "_real", "_sock", "_then", "fd")

    def __init__(self, listener: Listener, sock: socket.socket, protocol: Any) -> None:
        self.fd = sock.fileno()
        self._listener = listener
        self._sock = sock
        self._protocol = protocol
        self._real: asyncio.Transport | None = None
        self._closing = False
        self._packets = 0  # that were read
        self._paused = False
        self._held: list[bytes] | None = None  # what waits for the loop's transport, while that is being made
        self._then: Callable[[], None] | None = None

    # reading

    def read(self) -> None:
        """There is something to read."""
        if self._paused:
            self.promote()
            return
        try:
            data = self._sock.recv(READ, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if not data:
            self._listener.forget(self.fd)
            if not self._protocol.eof_received():
                self._closing = True
                self._lost(None)
            return
        self._packets += 1
        self._protocol.data_received(data)
        if (self._packets > PACKETS or len(data) == READ) and not self._closing:
            self.promote()

    # the loop's transport

    @property
    def promoting(self) -> bool:
        """The loop's transport is being made; it may read at any moment."""
        return self._held is not None

    def promote(self, then: Callable[[], None] | None = None) -> None:
        """Have the loop make its transport; ``then`` is called when it is there."""
        if then is not None:
            self._then = then
        if self._held is None:
            self._held = []
            self._listener.forget(self.fd)
            self._listener.promote(self._sock, self._protocol, self)

    def take_over(self, transport: asyncio.Transport) -> None:
        """``transport`` is the loop's."""
        protocol, self._protocol = self._protocol, None
        held, self._held = self._held, None
        then, self._then = self._then, None
        self._real = transport
        if held:
            protocol.resume_writing()  # it is for the new one to say how much it takes
            transport.writelines(held)
        if self._closing:
            transport.close()
        elif then is not None:
            then()

    def settle(self) -> None:
        """The loop's transport has begun to read, as all of them do."""
        if self._paused and self._real is not None:
            self._real.pause_reading()

    def fail(self, error: OSError) -> None:
        """The loop cannot make one: the connection is gone."""
        self._held = self._then = None
        self._closing = True
        self._lost(error)

    # what a protocol asks of its transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._real is not None:
            self._real.write(data)
            return
        if self._closing:
            return
        if self._held is not None:
            self._held.append(bytes(data))
            return
        try:
            sent = self._sock.send(data, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._end(error)
            return
        if sent < len(data):
            self.promote()
            self._held = [bytes(memoryview(data)[sent:])]
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._real is not None:
            self._real.close()
        elif self._held is not None:
            self._closing = True
        else:
            self._end(None)

    def abort(self) -> None:
        if self._held is not None:
            self._held.clear()
        self.close() if self._real is None else self._real.abort()

    def _end(self, error: OSError | None) -> None:
        """Nothing more is read or written."""
        if not self._closing:
            self._closing = True
            self._listener.forget(self.fd)
            self._listener.loop.call_soon(self._lost, error)

    def _lost(self, error: OSError | None) -> None:
        protocol, self._protocol = self._protocol, None
        try:
            protocol.connection_lost(error)
        finally:
            self._sock.close()

    def is_closing(self) -> bool:
        return self._closing if self._real is None else self._real.is_closing()

    def get_write_buffer_size(self) -> int:
        if self._real is not None:
            return self._real.get_write_buffer_size()
        return sum(map(len, self._held)) if self._held else 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if self._real is not None:
            return self._real.get_extra_info(name, default)
        if name != "socket":
            return default
        self._sock.setblocking(False)  # as sockets of the loop's transports are
        return self._sock

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if self._real is not None:
            self._real.set_protocol(protocol)
        else:
            self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol if self._real is None else self._real.get_protocol()

    def is_reading(self) -> bool:
        return not self._paused if self._real is None else self._real.is_reading()

    def pause_reading(self) -> None:
        self._paused = True
        if self._real is not None:
            self._real.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._real is not None:
            self._real.resume_reading()
