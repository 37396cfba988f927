"""The load board: what every worker carries, readable by all without asking, and what is on its way to it.

One file for each worker, ``members/<uid>.load``, one page, mapped by all. Only its worker writes it, so there are no
locks: a row of figures, and a row of reservations, one entry for each worker that this one has placed something on.
The reservations for a worker are the sum of its entries in all living workers' rows (``pending[acceptor][target]``).

A cell is eight bytes, aligned, and written at once. A row is not: a reader may see the load of one moment and the
sessions of the next, which a choice that is only nearly even can bear. Dead workers' rows are not read.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from .roster import LOAD

PAGE: Final = 4096
FORMAT: Final = 1.0

_CELLS = PAGE // 8
_ROW = 16
_ENTRY = 4
_ENTRIES = (_CELLS - _ROW) // _ENTRY
_FORMAT, _SESSIONS, _HELD, _FLYING, _WORK, _CAP, _REJECTED, _DRAINING, _UNTIL, _WAIT, _IMPLICIT, _REQUESTS, _FULL = (
    range(13)
)


class _Place(Protocol):
    members_fd: int


@dataclass(frozen=True, slots=True)
class Load:
    """What one worker published.

    ``held``: the sum of its open sessions' costs; ``work``: of the requests in flight; ``cap`` 0: any number of
    sessions; ``until``: when a slot comes free at the latest (monotonic seconds, 0 unless it is full); ``wait``:
    seconds of work in flight.
    """

    sessions: int = 0
    held: float = 0.0
    in_flight: int = 0
    work: float = 0.0
    cap: int = 0
    rejected: int = 0
    draining: bool = False
    until: float = 0.0
    wait: float = 0.0
    implicit: int = 0
    """Sessions that are not explicit ones."""
    requests: int = 0
    """Requests in flight, of any kind."""
    full: bool = False
    """It can claim no more IDs (``--max-claims``)."""

    @property
    def all_sessions(self) -> int:
        """Sessions of both kinds."""
        return self.sessions + self.implicit

    @property
    def current(self) -> float:
        """The worker's load: its sessions' costs and its requests'."""
        return self.held + self.work

    @property
    def free(self) -> int | None:
        """Free slots; None without a cap."""
        return max(0, self.cap - self.sessions) if self.cap else None


class Page:
    """One worker's page: figures and reservations. ``buffer`` is its memory, 4096 bytes."""

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self.buffer = buffer
        view = memoryview(buffer)
        self._cells = view.cast("d")
        self._tags = view.cast("Q")

    def close(self) -> None:
        self._cells.release()
        self._tags.release()
        if isinstance(self.buffer, mmap.mmap):
            self.buffer.close()

    def publish(self, load: Load) -> None:
        """Write the figures."""
        cells = self._cells
        cells[_SESSIONS] = load.sessions
        cells[_HELD] = load.held
        cells[_FLYING] = load.in_flight
        cells[_WORK] = load.work
        cells[_CAP] = load.cap
        cells[_REJECTED] = load.rejected
        cells[_DRAINING] = load.draining
        cells[_UNTIL] = load.until
        cells[_WAIT] = load.wait
        cells[_FORMAT] = FORMAT

    def count(self, implicit: int, requests: int, full: bool = False) -> None:
        """Write the figures that are not of explicit sessions."""
        cells = self._cells
        cells[_IMPLICIT] = implicit
        cells[_REQUESTS] = requests
        cells[_FULL] = full
        cells[_FORMAT] = FORMAT

    def read(self) -> Load | None:
        """The figures; None as long as nothing was published, or in another release's format."""
        cells = self._cells
        if cells[_FORMAT] != FORMAT:
            return None
        return Load(
            int(cells[_SESSIONS]),
            cells[_HELD],
            int(cells[_FLYING]),
            cells[_WORK],
            int(cells[_CAP]),
            int(cells[_REJECTED]),
            bool(cells[_DRAINING]),
            cells[_UNTIL],
            cells[_WAIT],
            int(cells[_IMPLICIT]),
            int(cells[_REQUESTS]),
            bool(cells[_FULL]),
        )

    def change(self, tag: int, count: int, cost: float) -> None:
        """Add to this worker's reservations for the worker ``tag``. Without room in the row nothing is reserved."""
        tags, cells = self._tags, self._cells
        free = -1
        for at in range(_ROW, _ROW + _ENTRIES * _ENTRY, _ENTRY):
            if tags[at] == tag:
                left = cells[at + 1] + count
                cells[at + 1] = max(0.0, left)
                cells[at + 2] = cells[at + 2] + cost if left > 0 else 0.0
                return
            if free < 0 and cells[at + 1] == 0.0:
                free = at
            if tags[at] == 0:
                break
        if free >= 0 and count > 0:
            tags[free] = 0
            cells[free + 1], cells[free + 2] = count, cost
            tags[free] = tag

    def pending(self, tag: int) -> tuple[int, float]:
        """This worker's reservations for ``tag``: how many, and their costs."""
        tags, cells = self._tags, self._cells
        for at in range(_ROW, _ROW + _ENTRIES * _ENTRY, _ENTRY):
            if tags[at] == tag:
                return int(cells[at + 1]), cells[at + 2]
            if tags[at] == 0:
                break
        return 0, 0.0


class Reservation:
    """Room on a worker, kept for something that is on its way there. Release it once; twice is as good."""

    __slots__ = ("_cost", "_page", "_tag")

    def __init__(self, page: Page, tag: int, cost: float) -> None:
        self._page: Page | None = page
        self._tag = tag
        self._cost = cost
        page.change(tag, 1, cost)

    def release(self) -> None:
        """The worker has it in its own figures by now, or it will never come."""
        if self._page is not None:
            self._page.change(self._tag, -1, -self._cost)
            self._page = None


class LoadBoard:
    """All workers' pages as one process sees them; its own is ``mine``. Not for several threads at once.

    ``uids`` gives the workers that live and serve, this one included (`Roster.serving`).
    """

    def __init__(self, runtime: _Place | None, uid: str, uids: Callable[[], Sequence[str]] | None = None) -> None:
        """Without ``runtime`` (a single worker) the board is memory of this process. OSError."""
        self.uid = uid
        self._fd = runtime.members_fd if runtime is not None else -1
        self._uids = uids if uids is not None else lambda: (uid,)
        self._tags: dict[str, int] = {}
        self._pages: dict[str, Page] = {}
        if runtime is None:
            self.mine = Page(bytearray(PAGE))
        else:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(uid + LOAD, flags, 0o600, dir_fd=self._fd)
            try:
                os.write(fd, bytes(PAGE))  # written, not truncated to length: a full tmpfs would be a SIGBUS later
                self.mine = Page(mmap.mmap(fd, PAGE))
            finally:
                os.close(fd)
        self._pages[uid] = self.mine

    def loads(self) -> dict[str, Load]:
        """What the living workers published, by uid, in one order for all."""
        found: dict[str, Load] = {}
        for uid, page in self._living():
            load = page.read()
            if load is not None:
                found[uid] = load
        return found

    def pending(self, uid: str) -> tuple[int, float]:
        """What all living workers have reserved on ``uid``: how many, and their costs."""
        tag = self._tag(uid)
        count, cost = 0, 0.0
        for _, page in self._living():
            more, extra = page.pending(tag)
            count, cost = count + more, cost + extra
        return count, cost

    def standing(self) -> list[tuple[str, Load, int, float]]:
        """(uid, what it published, how much is on its way there, its cost) for each living worker."""
        living = self._living()
        result = []
        for uid, page in living:
            load = page.read()
            if load is not None:
                tag = self._tag(uid)
                reserved = [other.pending(tag) for _, other in living]
                result.append((uid, load, sum(each for each, _ in reserved), sum(each for _, each in reserved)))
        return result

    def reserve(self, uid: str, cost: float) -> Reservation:
        """Keep room for one session of ``cost`` on ``uid``; every worker sees it at once."""
        return Reservation(self.mine, self._tag(uid), cost)

    def close(self) -> None:
        """Unmap all pages and remove this worker's own."""
        for page in self._pages.values():
            page.close()
        self._pages.clear()
        if self._fd >= 0:
            try:
                os.unlink(self.uid + LOAD, dir_fd=self._fd)
            except OSError:  # the whole directory may be gone
                pass

    def _tag(self, uid: str) -> int:
        tag = self._tags.get(uid)
        if tag is None:
            tag = self._tags[uid] = int.from_bytes(hashlib.blake2b(uid.encode(), digest_size=8).digest(), "big") or 1
        return tag

    def _living(self) -> list[tuple[str, Page]]:
        uids = self._uids()
        if len(self._pages) > len(uids):
            for uid in [uid for uid in self._pages if uid not in uids and uid != self.uid]:
                self._pages.pop(uid).close()
        found = []
        for uid in uids:
            page = self._pages.get(uid) or self._open(uid)
            if page is not None:
                found.append((uid, page))
        return found

    def _open(self, uid: str) -> Page | None:
        try:
            fd = os.open(uid + LOAD, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:  # just leaving, or of a release without a board
            return None
        try:
            if os.fstat(fd).st_size != PAGE:
                return None
            page = self._pages[uid] = Page(mmap.mmap(fd, PAGE))
            return page
        finally:
            os.close(fd)
