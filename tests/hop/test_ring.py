"""Shared memory: where pieces lie, and what is told when they cannot."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
from collections import deque
from collections.abc import Iterator

import pytest

from sessionworkers.errors import FrameError
from sessionworkers.hop import ring as rings
from sessionworkers.hop.codec import RAW, RAW_KEEP, SHARED, FrameReader, read_shared, shared
from sessionworkers.hop.ring import SIZE, START, Mapped, Ring, place

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


def test_no_piece_is_overwritten_before_it_was_taken(both: tuple[Ring, Mapped]) -> None:
    owner, acceptor = both
    chance = random.Random(7)
    given: deque[tuple[int, bytes]] = deque()
    full = 0
    for _ in range(3_000):
        if given and chance.random() < 0.45:
            at, data = given.popleft()
            with acceptor.piece(at, len(data)) as piece:
                assert piece == data
            acceptor.took()
            continue
        data = chance.randbytes(4) * chance.randrange(1, SIZE // 8)
        cut = chance.randrange(len(data))
        at = owner.put([data[:cut], memoryview(data)[cut:]], len(data))
        if at < 0:
            full += 1
            assert given, "an empty ring has room for it"
        else:
            given.append((at, data))
    assert full > 100


def test_idle_memory_goes_back_to_the_system(both: tuple[Ring, Mapped]) -> None:
    owner, acceptor = both
    data = os.urandom(HALF)

    def taken() -> int:
        return os.stat(f"/proc/self/fd/{_descriptor()}").st_blocks * 512

    at = owner.put([data], HALF)
    assert not owner.release(), "it is needed yet"
    assert taken() > HALF
    with acceptor.piece(at, HALF) as piece:
        assert piece == data
    acceptor.took()
    assert owner.release()
    assert taken() <= mmap.PAGESIZE
    at = owner.put([data], HALF)
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
