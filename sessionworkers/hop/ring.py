"""Memory that both ends of a link have: large pieces of raw replies lie there, and only their place is sent.

A Unix socket copies what goes through it twice. Here the owner copies once, and the acceptor writes to its client from
where it lies::

    owner                                  acceptor
    makes it (memfd), RING "pid fd"    →   maps it through /proc, RING ""
    copies a piece, SHARED "where"     →   writes it to the client, counts it as taken, in the memory itself

Pieces are taken in the order in which they were given, so one number says what is free again, and nobody is woken to
hear of it. The memory cannot shrink (it is sealed) and has no name. The system gets it back when it is idle, and all of
it with the link. Where the acceptor cannot map it (no memfd, no /proc, a process that changed its user) no RING comes
back, and all goes through the socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
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

START: Final = mmap.PAGESIZE  # what stands before: the number of pieces taken
_TAKEN: Final = struct.Struct("=I")
_NUMBERS: Final = 0xFFFFFFFF
_POSSIBLE: Final = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


class Ring:
    """The owner's end. Raises OSError where the system has no such memory."""

    def __init__(self) -> None:
        if not _POSSIBLE:
            raise OSError("no memfd here")
        self.ready = False
        """The acceptor has it, too."""
        self._given = 0
        self._starts: deque[int] = deque()  # of what was given and not seen to be taken
        self._newest = START
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

    def put(self, parts: Sequence[bytes | memoryview], size: int) -> int:
        """Lay ``parts``, ``size`` bytes in all, into one piece; where it is, -1 if there is no room now."""
        starts = self._starts
        outstanding = (self._given - _TAKEN.unpack_from(self._map)[0]) & _NUMBERS
        while len(starts) > outstanding:
            starts.popleft()
        at = place(starts[0] if starts else -1, self._newest, size)
        if at < 0:
            return -1
        end = at
        for part in parts:
            begin, end = end, end + len(part)
            self._map[begin:end] = part
        self._newest = end
        starts.append(at)
        self._given = (self._given + 1) & _NUMBERS
        return at

    def release(self) -> bool:
        """Give the memory back to the system; it comes again with the next piece. False: something lies there."""
        if _TAKEN.unpack_from(self._map)[0] != self._given:
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

    def piece(self, at: int, size: int) -> memoryview:
        """The piece there; for use until `took`. FrameError: that is outside."""
        if at < START or at + size > len(self._view):
            raise FrameError("a piece outside of the shared memory")
        return self._view[at : at + size]

    def took(self) -> None:
        """The oldest piece is not needed any more."""
        self._taken = (self._taken + 1) & _NUMBERS
        _TAKEN.pack_into(self._map, 0, self._taken)

    def close(self) -> None:
        self._view.release()
        self._map.close()
