"""The load board: what every worker carries, readable by all without asking, and what is on its way to it.

One file for each worker, ``members/<uid>.load``, one page, mapped by all. Only its worker writes it, so there are no
locks: a row of figures, and a row of reservations, one entry for each worker that this one has placed something on.
What an acceptor has placed on a target, less what the target says has arrived from it, is on its way
(``pending[acceptor][target]``); both count up, each in its writer's own page. So a session is counted once at every
moment: by the acceptor until the target has it in its figures, then by the target, however late the reply is read.

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

PAGE: Final = 8192
FORMAT: Final = 2.0

_CELLS = PAGE // 8
_ROW = 16
_ENTRY = 6  # tag; count and cost of what was placed there; count and cost of what arrived from there; unused
_END = _CELLS - _ENTRY + 1
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
    """One worker's page: figures and reservations. ``buffer`` is its memory, 8192 bytes."""

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
        """Add to what this worker has placed on ``tag``. Without room in the row nothing is reserved."""
        cells = self._cells
        at = self._entry(tag) or self._new_entry(tag)
        if at:
            cells[at + 1] = max(0.0, cells[at + 1] + count)
            cells[at + 2] += cost

    def settle(self, tag: int, count: int, cost: float) -> None:
        """Nothing of this worker's is on its way to ``tag`` any more: what was placed is what has arrived there."""
        at = self._entry(tag)
        if at:
            self._cells[at + 1], self._cells[at + 2] = count, cost

    def placed(self, tag: int) -> tuple[int, float]:
        """What this worker has ever placed on ``tag``: how many, and their costs."""
        at = self._entry(tag)
        return (int(self._cells[at + 1]), self._cells[at + 2]) if at else (0, 0.0)

    def arrive(self, tag: int, cost: float) -> None:
        """Something that ``tag`` has placed here stands in this worker's own figures from now on."""
        at = self._entry(tag) or self._new_entry(tag)
        if at:
            self._cells[at + 3] += 1
            self._cells[at + 4] += cost

    def arrived(self, tag: int) -> tuple[int, float]:
        """What has ever arrived from ``tag``: how many, and their costs."""
        at = self._entry(tag)
        return (int(self._cells[at + 3]), self._cells[at + 4]) if at else (0, 0.0)

    def _entry(self, tag: int) -> int:
        """Where the entry of ``tag`` is, 0 if there is none."""
        tags = self._tags
        for at in range(_ROW, _END, _ENTRY):
            if tags[at] == tag:
                return at
            if tags[at] == 0:
                break
        return 0

    def _new_entry(self, tag: int) -> int:
        tags, cells = self._tags, self._cells
        for at in range(_ROW, _END, _ENTRY):
            if cells[at + 1] == 0.0 and cells[at + 3] == 0.0:
                cells[at + 2] = cells[at + 4] = 0.0
                tags[at] = tag
                return at
        return 0


class Reservation:
    """Room on a worker, kept for something that is on its way there.

    Either `arrived` or `release`, once; whatever is said later changes nothing.
    """

    __slots__ = ("_board", "_cost", "_uid")

    def __init__(self, board: LoadBoard, uid: str, cost: float) -> None:
        self._board: LoadBoard | None = board
        self._uid = uid
        self._cost = cost

    def arrived(self) -> None:
        """The worker has told the board so itself (`LoadBoard.arrived`), at the moment it put it into its figures."""
        if self._board is not None:
            self._board.done(self._uid, 0, 0.0)
            self._board = None

    def release(self) -> None:
        """It will never come, or it came to a worker that does not tell."""
        if self._board is not None:
            self._board.done(self._uid, -1, -self._cost)
            self._board = None


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
        self._flying: dict[str, int] = {}
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
        """What is on its way to ``uid`` from all living workers: how many, and their costs."""
        return self._pending(self._living(), uid, self._pages.get(uid))

    def _pending(self, living: list[tuple[str, Page]], uid: str, page: Page | None) -> tuple[int, float]:
        tag = self._tag(uid)
        count, cost = 0, 0.0
        for other, theirs in living:
            placed, placed_cost = theirs.placed(tag)
            arrived, arrived_cost = page.arrived(self._tag(other)) if page is not None and placed else (0, 0.0)
            if placed > arrived:
                count, cost = count + placed - arrived, cost + max(0.0, placed_cost - arrived_cost)
        return count, cost

    def standing(self) -> list[tuple[str, Load, int, float]]:
        """(uid, what it published, how much is on its way there, its cost) for each living worker."""
        living = self._living()
        result = []
        for uid, page in living:
            load = page.read()
            if load is not None:
                result.append((uid, load, *self._pending(living, uid, page)))
        return result

    def reserve(self, uid: str, cost: float) -> Reservation:
        """Keep room for one session of ``cost`` on ``uid``; every worker sees it at once."""
        self._flying[uid] = self._flying.get(uid, 0) + 1
        self.mine.change(self._tag(uid), 1, cost)
        return Reservation(self, uid, cost)

    def arrived(self, uid: str, cost: float) -> None:
        """What ``uid`` has placed here is in this worker's own figures from now on: it counts once, never twice."""
        self.mine.arrive(self._tag(uid), cost)

    def done(self, uid: str, count: int, cost: float) -> None:
        """One reservation for ``uid`` is over. With the last one the account is settled: what was lost on a broken
        link, or rounded away, is not carried on."""
        tag = self._tag(uid)
        self.mine.change(tag, count, cost)
        left = self._flying.get(uid, 1) - 1
        if left > 0:
            self._flying[uid] = left
            return
        self._flying.pop(uid, None)
        page = self._pages.get(uid)
        self.mine.settle(tag, *(page.arrived(self._tag(self.uid)) if page is not None else (0, 0.0)))

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
