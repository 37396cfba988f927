"""Shared memory: where pieces lie, and what is told when they cannot."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sessionworkers.errors import FrameError
from sessionworkers.hop import ring as rings
from sessionworkers.hop.codec import LAID, RAW, RAW_KEEP, SHARED, FrameReader, read_shared, shared
from sessionworkers.hop.link import AcceptorLink
from sessionworkers.hop.ring import SIZE, START, Mapped, Ring, place
from tests.hop.ends import until

HALF = SIZE // 2


@pytest.mark.parametrize(
    ("oldest", "newest", "size", "at"),
    [
        (-1, START, 10, START),
        (-1, HALF, SIZE - START, START),  # nothing is needed any more: from the beginning
        (-1, HALF, SIZE - START + 1, -1),
        (START, START + 10, 10, START + 10),
        (START, HALF, SIZE - HALF, HALF),  # up to the end
        (START, HALF, SIZE - HALF + 1, -1),  # the beginning is still needed
        (HALF, SIZE - 5, 10, START),  # around
        (HALF, SIZE - 5, HALF - START, -1),  # it would end where the oldest begins
        (HALF, SIZE - 5, HALF - START - 1, START),
        (HALF, START + 10, 10, START + 10),  # it went around before
        (HALF, START + 10, HALF - START - 10, -1),
    ],
)
def test_places(oldest: int, newest: int, size: int, at: int) -> None:
    assert place(oldest, newest, size) == at


@pytest.fixture
def both() -> Iterator[tuple[Ring, Mapped]]:
    owner = Ring()
    acceptor = Mapped(owner.offer())
    owner.accepted()
    with contextlib.closing(owner), contextlib.closing(acceptor):
        yield owner, acceptor


def put(owner: Ring, parts: list[bytes | memoryview]) -> int:
    at = owner.reserve(sum(map(len, parts)))
    if at >= 0:
        assert not owner.lay(at, parts), "nobody waits"
    return at


def test_no_piece_is_overwritten_before_it_was_taken(both: tuple[Ring, Mapped]) -> None:
    owner, acceptor = both
    chance = random.Random(7)
    given: deque[tuple[int, bytes]] = deque()
    full = 0
    for _ in range(3_000):
        if given and chance.random() < 0.45:
            at, data = given.popleft()
            assert acceptor.laid()
            with acceptor.piece(at, len(data)) as piece:
                assert piece == data
            acceptor.took()
            continue
        data = chance.randbytes(4) * chance.randrange(1, SIZE // 8)
        cut = chance.randrange(len(data))
        at = put(owner, [data[:cut], memoryview(data)[cut:]])
        if at < 0:
            full += 1
            assert given, "an empty ring has room for it"
        else:
            given.append((at, data))
    assert full > 100


def test_who_comes_before_the_piece_is_told_of_it(both: tuple[Ring, Mapped]) -> None:
    owner, acceptor = both
    for waits in (True, False, True):
        at = owner.reserve(10)
        if waits:
            assert not acceptor.laid() and not acceptor.laid()
        assert owner.lay(at, [b"0123456789"]) is waits
        assert acceptor.laid()
        with acceptor.piece(at, 10) as piece:
            assert piece == b"0123456789"
        acceptor.took()


def test_an_owner_that_was_waited_for_lays_before_it_tells(
    both: tuple[Ring, Mapped], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, acceptor = both
    monkeypatch.setattr(rings, "EARLY", True)
    monkeypatch.setattr(rings, "LATE", 3)
    at = owner.reserve(10)
    assert owner.early() and not acceptor.laid(0.001)
    owner.lay(at, [b"0123456789"])
    assert [owner.early() for _ in range(5)] == [False, False, False, True, True]
    monkeypatch.setattr(rings, "EARLY", False)
    assert not owner.early()


class Told:
    """A stream that notes what comes."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def shared(self, kind: int, piece: memoryview) -> None:
        self.told.append(bytes(piece))

    def frame(self, kind: int, payload: bytes) -> None:
        self.told.append(payload)

    def lost(self) -> None:
        self.told.append(b"lost")


class Waiting:
    """An acceptor whose first frame came before its piece."""

    def __init__(self, owner: Ring, acceptor: Mapped) -> None:
        self.owner = owner
        self.first, self.second = Told(), Told()
        links: Any = SimpleNamespace(me="me", all=set(), forget=lambda link: None)
        self.link = AcceptorLink(links, "owner")
        self.link.streams.update({1: self.first, 2: self.second})
        self.link._ring = acceptor
        self.at = owner.reserve(4)
        self.link.take([(SHARED, 1, shared(1, RAW, self.at, 4)[9:]), (RAW, 1, b"after"), (RAW, 2, b"other")])
        assert not self.first.told and not self.second.told

    async def told(self) -> None:
        await until(lambda: self.second.told)


async def it_is_told(case: Waiting) -> None:
    assert case.owner.lay(case.at, [b"this"])
    case.link.take([(LAID, 0, b"")])


async def it_looks_by_itself(case: Waiting) -> None:
    case.owner.lay(case.at, [b"this"])
    await case.told()
    case.link.take([(LAID, 0, b"")])  # so late that it means nothing


async def it_looks_when_more_comes(case: Waiting) -> None:
    case.owner.lay(case.at, [b"this"])
    case.link.take([(RAW, 2, b"more")])


async def it_looks_when_the_owner_ends(case: Waiting) -> None:
    case.owner.lay(case.at, [b"this"])
    case.link.connection_lost(None)


async def the_owner_dies(case: Waiting) -> None:
    case.link.connection_lost(None)


async def one_piece_more_is_not_there(case: Waiting) -> None:
    again = case.owner.reserve(4)
    case.link.take([(SHARED, 2, shared(2, RAW, again, 4)[9:]), (RAW, 2, b"end")])
    case.owner.lay(case.at, [b"this"])
    case.link.take([(LAID, 0, b"")])
    assert case.second.told == [b"other"]
    case.owner.lay(again, [b"that"])
    case.link.take([(LAID, 0, b"")])


@pytest.mark.parametrize(
    ("step", "first", "second"),
    [
        (it_is_told, [b"this", b"after"], [b"other"]),
        (it_looks_by_itself, [b"this", b"after"], [b"other"]),
        (it_looks_when_more_comes, [b"this", b"after"], [b"other", b"more"]),
        (it_looks_when_the_owner_ends, [b"this", b"after", b"lost"], [b"other", b"lost"]),
        (the_owner_dies, [b"lost"], [b"lost"]),
        (one_piece_more_is_not_there, [b"this", b"after"], [b"other", b"that", b"end"]),
    ],
)
def test_what_comes_before_its_piece_waits_for_it(
    step: Callable[[Waiting], Awaitable[None]], first: list[bytes], second: list[bytes]
) -> None:
    async def main() -> None:
        owner = Ring()
        acceptor = Mapped(owner.offer())
        owner.accepted()
        case = Waiting(owner, acceptor)
        await step(case)
        assert (case.first.told, case.second.told) == (first, second)
        if not case.link.closed:
            case.link.connection_lost(None)
        owner.close()

    asyncio.run(main())


def test_idle_memory_goes_back_to_the_system(both: tuple[Ring, Mapped]) -> None:
    owner, acceptor = both
    data = os.urandom(HALF)

    def taken() -> int:
        return os.stat(f"/proc/self/fd/{_descriptor()}").st_blocks * 512

    at = put(owner, [data])
    assert not owner.release(), "it is needed yet"
    assert taken() > HALF
    with acceptor.piece(at, HALF) as piece:
        assert piece == data
    acceptor.took()
    assert owner.release()
    assert taken() <= mmap.PAGESIZE
    at = put(owner, [data])
    with acceptor.piece(at, HALF) as piece:
        assert piece == data


def _descriptor() -> str:
    """A descriptor of the only shared memory there is."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:sessionworkers"):
                return fd
    raise LookupError


def test_a_place_is_not_trusted(both: tuple[Ring, Mapped]) -> None:
    _, acceptor = both
    for at, size in ((0, 10), (START, SIZE), (SIZE, 1), (SIZE - 5, 6)):
        with pytest.raises(FrameError):
            acceptor.piece(at, size)


def test_nothing_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    for accepted in (True, False):
        owner = Ring()
        offer = owner.offer()
        if accepted:
            acceptor = Mapped(offer)
            owner.accepted()
            acceptor.close()
        owner.close()
        assert os.listdir("/proc/self/fd") == before
    with pytest.raises(OSError):
        Mapped(offer)


def test_memory_that_could_shrink_is_not_mapped() -> None:
    fd = os.memfd_create("test")
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        with pytest.raises((OSError, ValueError)):
            Mapped(b"%d %d" % (os.getpid(), fd))
    finally:
        os.close(fd)


@pytest.mark.parametrize("offer", [b"", b"1", b"x y", b"0 0", b"1 2 3"])
def test_an_offer_that_cannot_be(offer: bytes) -> None:
    with pytest.raises((OSError, ValueError)):
        Mapped(offer)


def test_a_system_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_POSSIBLE", False)
    with pytest.raises(OSError, match="no memfd here"):
        Ring()


def test_the_frame() -> None:
    reader = FrameReader(1 << 20)
    ((kind, stream, payload),) = reader.feed(shared(7, RAW_KEEP, START, 500_000))
    assert (kind, stream, read_shared(payload)) == (SHARED, 7, (RAW_KEEP, START, 500_000))
    for bad in (b"", payload[:-1], payload + b"x", b"\x01" + payload[1:]):
        with pytest.raises(FrameError):
            read_shared(bad)
    assert read_shared(bytes([RAW]) + payload[1:])[0] == RAW
