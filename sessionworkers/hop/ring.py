"""Memory that both ends of a link have: large pieces of raw replies lie there, and only their place is sent.

A Unix socket copies what goes through it twice. Here the owner copies once, and the acceptor writes to its client from
where it lies::

    owner                                  acceptor
    makes it (memfd), RING "pid fd"    →   maps it through /proc, RING ""
    SHARED "where", copies a piece,    →   wakes while it is copied,
    counts it as laid                      writes it to the client, counts it as taken

Both count in the memory itself. Pieces are taken in the order in which they were given, so one number says what is
free again, and nobody is woken to hear of it. An acceptor that comes before its piece says so in the memory, goes about
other things and is sent a LAID; since it may have said so a moment too late, it looks again by itself, too. Where they
share a processor that only costs, so for a while SHARED follows its piece then; always where one processor may see in
another order what another one wrote (`EARLY`).

The memory cannot shrink (it is sealed) and has no name. The system gets it back when it is idle, and all of it with the
link. Where the acceptor cannot map it (no memfd, no /proc, a process that changed its user) no RING comes back, and all
goes through the socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import platform
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from sessionworkers.errors import FrameError
from sessionworkers.hop.codec import RAW_WINDOW

LEAST: Final = 64 * 1024
"""Bytes of a piece from which on it is worth it."""
SIZE: Final = RAW_WINDOW
"""Bytes, taken by the system only as they are used."""
IDLE: Final = 5.0
"""Seconds after which the system gets them back."""

START: Final = mmap.PAGESIZE  # what stands before: three numbers, each in a cache line of its own
_TAKEN, _LAID, _WAITS = 0, 64, 128
_NUMBER: Final = struct.Struct("=I")  # four bytes at once
_NUMBERS: Final = 0xFFFFFFFF
EARLY: Final = platform.machine() in ("x86_64", "AMD64")
"""Whether all processors see what one of them writes in the order in which it does."""
LATE: Final = 250
"""After a piece that the acceptor had to wait for: both run on one processor, and the owner was held up by it."""
_POSSIBLE: Final = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


class Ring:
    """The owner's end. Raises OSError where the system has no such memory."""

    def __init__(self) -> None:
        if not _POSSIBLE:
            raise OSError("no memfd here")
        self.ready = False
        """The acceptor has it, too."""
        self._given = self._laid = 0
        self._starts: deque[int] = deque()  # of what was given and not seen to be taken
        self._newest = START
        self._late = 0  # so many pieces are to be laid before they are told of
        fd = self._fd = os.memfd_create("sessionworkers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, SIZE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(fd, SIZE)
        except BaseException:
            os.close(fd)
            raise

    def offer(self) -> bytes:
        """The payload of RING."""
        return b"%d %d" % (os.getpid(), self._fd)

    def accepted(self) -> None:
        """The acceptor has mapped it; of the two descriptors one is needed no more."""
        if self._fd >= 0:
            self.ready = True
            os.close(self._fd)
            self._fd = -1

    def reserve(self, size: int) -> int:
        """Room for the next piece; where, -1 if there is none now. What was reserved is to be laid."""
        starts = self._starts
        outstanding = (self._given - _NUMBER.unpack_from(self._map, _TAKEN)[0]) & _NUMBERS
        while len(starts) > outstanding:
            starts.popleft()
        at = place(starts[0] if starts else -1, self._newest, size)
        if at >= 0:
            self._newest = at + size
            starts.append(at)
            self._given = (self._given + 1) & _NUMBERS
        return at

    def lay(self, at: int, parts: Sequence[bytes | memoryview]) -> bool:
        """Lay ``parts`` into the oldest room that has nothing yet. True: the acceptor waits for it."""
        end = at
        for part in parts:
            begin, end = end, end + len(part)
            self._map[begin:end] = part
        self._laid = (self._laid + 1) & _NUMBERS
        _NUMBER.pack_into(self._map, _LAID, self._laid)
        if _NUMBER.unpack_from(self._map, _WAITS)[0] == 0:
            return False
        _NUMBER.pack_into(self._map, _WAITS, 0)
        self._late = LATE
        return True

    def early(self) -> bool:
        """Whether the acceptor is to be told of the next piece before it is laid."""
        if self._late:
            self._late -= 1
            return False
        return EARLY

    def release(self) -> bool:
        """Give the memory back to the system; it comes again with the next piece. False: something lies there."""
        if _NUMBER.unpack_from(self._map, _TAKEN)[0] != self._given:
            return False
        with contextlib.suppress(OSError):
            self._map.madvise(mmap.MADV_REMOVE, START, SIZE - START)
        return True

    def close(self) -> None:
        self.ready = False
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._map.close()


def place(oldest: int, newest: int, size: int) -> int:
    """Where a piece of ``size`` bytes begins; -1: there is no room.

    ``oldest``: where the oldest piece that is still needed begins, -1 if there is none. ``newest``: where the newest
    ends; it is never where the oldest begins.
    """
    if oldest < 0:
        newest = oldest = START
    if newest >= oldest:
        if newest + size <= SIZE:
            return newest
        newest = START
    return newest if newest + size < oldest else -1


class Mapped:
    """The acceptor's end, from the payload of a RING. OSError, ValueError: it cannot be had."""

    def __init__(self, offer: bytes) -> None:
        pid, fd = map(int, offer.split())
        opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if not fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError("the memory could shrink")
            self._map = mmap.mmap(opened, os.fstat(opened).st_size)
        finally:
            os.close(opened)
        self._view = memoryview(self._map)
        self._taken = 0

    def laid(self, patience: float = 0.0) -> bool:
        """Whether the oldest piece is there, within so many seconds. False: the owner will say it, most likely."""
        taken = self._taken
        if _NUMBER.unpack_from(self._map, _LAID)[0] != taken:
            return True
        if patience:
            until = time.monotonic() + patience
            while time.monotonic() < until:
                if _NUMBER.unpack_from(self._map, _LAID)[0] != taken:
                    return True
        _NUMBER.pack_into(self._map, _WAITS, 1)
        return bool(_NUMBER.unpack_from(self._map, _LAID)[0] != taken)

    def piece(self, at: int, size: int) -> memoryview:
        """The piece there; for use until `took`. FrameError: that is outside."""
        if at < START or at + size > len(self._view):
            raise FrameError("a piece outside of the shared memory")
        return self._view[at : at + size]

    def took(self) -> None:
        """The oldest piece is not needed any more."""
        self._taken = (self._taken + 1) & _NUMBERS
        _NUMBER.pack_into(self._map, _TAKEN, self._taken)

    def close(self) -> None:
        self._view.release()
        self._map.close()
