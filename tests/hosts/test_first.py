"""The order of things when a connection changes from its first transport to the loop's, on both loops."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from sessionworkers.hosts.first import PACKETS, READ, FirstTransport
from sessionworkers.hosts.handover import let_go

LONG = b"l" * 3_000_000
LIMIT = 10.0


class Door:
    """A `Listener` of one connection."""

    def __init__(self) -> None:
        self.loop: Any = asyncio.get_running_loop()
        self.forgotten: list[int] = []
        self.fails = False
        self.task: asyncio.Task[None] | None = None

    def forget(self, fd: int) -> None:
        self.forgotten.append(fd)

    def promote(self, sock: socket.socket, protocol: Any, first: FirstTransport) -> None:
        async def make() -> None:
            if self.fails:
                first.fail(OSError("as told"))
                return
            await self.loop.connect_accepted_socket(lambda: protocol, sock)
            first.settle()

        self.task = self.loop.create_task(make())


class Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.first: Any = None
        self.transport: Any = None
        self.told: list[Any] = []
        self.paused = 0
        self.eof = False
        self.then: Callable[[], None] = lambda: None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.told.append("made")
        self.first.take_over(transport)

    def data_received(self, data: bytes) -> None:
        self.told.append(data)
        self.then()

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.eof

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(("lost", type(exc)))

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.paused -= 1


class Case:
    def __init__(self) -> None:
        self.door = Door()
        self.protocol = Protocol()
        self.client, self.sock = socket.socketpair()
        self.client.setblocking(False)
        self.fd = self.sock.fileno()
        self.first = FirstTransport(self.door, self.sock, self.protocol)  # type: ignore[arg-type]
        self.protocol.first = self.protocol.transport = self.first

    @property
    def lost(self) -> list[Any]:
        return [each for each in self.protocol.told if isinstance(each, tuple)]

    async def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, self.protocol.told
            await asyncio.sleep(0)

    async def received(self, size: int = -1) -> bytes:
        """So many bytes, or all up to the end of the connection."""
        found = bytearray()

        def read() -> bool:
            try:
                data = self.client.recv(1 << 20)
            except BlockingIOError:
                return False
            found.extend(data)
            return not data or len(found) == size

        await self.until(read)
        return bytes(found)


async def an_answer_that_is_taken(case: Case) -> None:
    case.first.write(b"one")
    case.first.writelines([b"two", b"three"])
    assert await case.received(11) == b"onetwothree"
    assert not case.first.promoting
    case.first.close()
    case.first.write(b"too late")
    assert case.first.is_closing()
    assert await case.received() == b""
    assert (case.protocol.told, case.door.forgotten) == ([("lost", type(None))], [case.fd])


async def an_answer_that_is_not(case: Case) -> None:
    case.first.write(LONG)
    assert (case.protocol.paused, case.first.promoting) == (1, True)
    assert 0 < case.first.get_write_buffer_size() < len(LONG)
    case.first.write(b"more")
    await case.until(lambda: case.protocol.transport is not case.first)
    case.first.write(b"and more")  # of a request that knew no other
    assert await case.received(len(LONG) + 12) == LONG + b"moreand more"
    await case.until(lambda: case.protocol.paused == 0)
    case.first.close()
    assert await case.received() == b""
    await case.until(lambda: case.lost)
    assert case.protocol.told == ["made", ("lost", type(None))]


async def closed_with_an_answer_on_its_way(case: Case) -> None:
    case.first.write(LONG)
    case.first.close()
    assert case.first.is_closing()
    assert await case.received() == LONG
    await case.until(lambda: case.lost)
    assert case.protocol.told == ["made", ("lost", type(None))]


async def cut_with_an_answer_on_its_way(case: Case) -> None:
    case.first.write(LONG)
    case.first.abort()
    assert len(await case.received()) < len(LONG)
    await case.until(lambda: case.lost)
    assert case.protocol.told == ["made", ("lost", type(None))]


async def no_transport_to_be_had(case: Case) -> None:
    case.door.fails = True
    called: list[int] = []
    case.first.promote(lambda: called.append(1))
    await case.until(lambda: case.lost)
    assert (case.protocol.told, called, case.sock.fileno()) == ([("lost", OSError)], [], -1)
    case.first.close()
    assert case.first.is_closing()


async def closed_and_no_transport_to_be_had(case: Case) -> None:
    case.door.fails = True
    case.first.promote()
    case.first.close()
    await case.until(lambda: case.lost)
    assert (case.protocol.told, case.sock.fileno()) == ([("lost", OSError)], -1)


async def what_waits_for_the_transport(case: Case) -> None:
    called: list[Any] = []
    case.first.promote(lambda: called.append(case.first.get_extra_info("socket").fileno()))
    case.first.promote()
    await case.until(lambda: called)
    assert (called, case.protocol.told) == ([case.fd], ["made"])
    assert case.first.get_protocol() is case.protocol
    case.first.abort()
    await case.until(lambda: case.lost)


async def what_waits_for_the_transport_of_one_that_closes(case: Case) -> None:
    called: list[int] = []
    case.first.promote(lambda: called.append(1))
    case.first.close()
    await case.until(lambda: case.lost)
    assert (called, case.protocol.told) == ([], ["made", ("lost", type(None))])


async def many_packets(case: Case) -> None:
    case.first.read()  # nothing there
    sent = [b"%d" % number for number in range(PACKETS + 1)]
    for each in sent:
        assert not case.first.promoting
        case.client.send(each)
        case.first.read()
    assert (case.protocol.told, case.first.promoting) == (sent, True)
    await case.until(lambda: case.protocol.told[-1] == "made")
    case.client.send(b"more")
    await case.until(lambda: case.protocol.told[-1] == b"more")
    case.client.close()
    await case.until(lambda: case.lost)
    assert case.protocol.told == [*sent, "made", b"more", "eof", ("lost", type(None))]


async def a_long_packet(case: Case) -> None:
    """More of it is there: the loop's transport reads that."""
    case.client.send(b"l" * (READ + 1))
    case.first.read()
    assert case.first.promoting
    await case.until(lambda: case.protocol.told[-1] == b"l")
    assert case.protocol.told == [b"l" * READ, "made", b"l"]
    case.first.close()
    await case.until(lambda: case.lost)


async def closed_by_what_was_read_last(case: Case) -> None:
    """No transport is made for it."""
    case.protocol.then = case.first.close
    case.client.send(b"l" * READ)
    case.first.read()
    assert (case.first.is_closing(), case.first.promoting) == (True, False)
    await case.until(lambda: case.lost)


async def nothing_is_read_while_it_is_paused(case: Case) -> None:
    case.client.send(b"one")
    case.first.read()
    case.first.pause_reading()
    assert not case.first.is_reading()
    case.first.read()
    await case.until(lambda: case.door.task is not None and case.door.task.done())
    assert not case.first.is_reading()
    case.client.send(b"two")
    for _ in range(20):
        await asyncio.sleep(0)
    assert case.protocol.told == [b"one", "made"]
    case.first.resume_reading()
    await case.until(lambda: len(case.protocol.told) == 3)
    case.first.abort()
    await case.until(lambda: case.lost)


async def paused_and_resumed_before_it_has_one(case: Case) -> None:
    case.first.pause_reading()
    case.first.resume_reading()
    case.client.send(b"one")
    case.first.read()
    assert case.protocol.told == [b"one"]
    case.first.close()
    await case.until(lambda: case.lost)


async def the_client_ends(case: Case) -> None:
    case.client.close()
    case.first.read()
    assert (case.protocol.told, case.sock.fileno()) == (["eof", ("lost", type(None))], -1)


async def the_client_ends_its_half(case: Case) -> None:
    """The protocol still has something to say."""
    case.protocol.eof = True
    case.client.shutdown(socket.SHUT_WR)
    case.first.read()
    assert (case.protocol.told, case.door.forgotten) == (["eof"], [case.fd])
    case.first.write(b"this")
    case.first.close()
    assert await case.received() == b"this"
    assert case.protocol.told == ["eof", ("lost", type(None))]


async def the_client_is_gone_when_it_is_answered(case: Case) -> None:
    case.client.close()
    case.first.write(b"one")
    case.first.write(b"two")
    assert case.first.is_closing()
    await case.until(lambda: case.lost)
    assert case.protocol.told == [("lost", BrokenPipeError)]


async def it_moves_to_another_worker(case: Case) -> None:
    """Which has a duplicate of the socket."""
    with socket.socket(fileno=os.dup(case.fd)) as elsewhere:
        let_go(case.first)
        await case.until(lambda: case.sock.fileno() == -1)
        assert case.protocol.told == []
        elsewhere.send(b"from there")
        assert await case.received(10) == b"from there"


CASES = [
    an_answer_that_is_taken, an_answer_that_is_not, closed_with_an_answer_on_its_way, cut_with_an_answer_on_its_way,
    no_transport_to_be_had, closed_and_no_transport_to_be_had, what_waits_for_the_transport,
    what_waits_for_the_transport_of_one_that_closes, many_packets, a_long_packet, closed_by_what_was_read_last,
    nothing_is_read_while_it_is_paused, paused_and_resumed_before_it_has_one, the_client_ends,
    the_client_ends_its_half, the_client_is_gone_when_it_is_answered, it_moves_to_another_worker,
]  # fmt: skip


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("case", CASES)
def test_first(case: Callable[[Case], Awaitable[None]], new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        one = Case()
        try:
            await case(one)
        finally:
            one.client.close()
        assert len(one.lost) <= 1
        assert one.sock.fileno() == -1

    loop = new_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
