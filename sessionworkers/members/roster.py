"""Who else is there, and who no longer lives."""

from __future__ import annotations

import os
import re
from typing import Protocol

from . import fork, locks
from .contents import SOCKETS, control_name

LIVES_HERE: set[str] = set()  # uids enlisted by this very process: the kernel does not tell a process its own locks

SERVING = ".serving"
DRAINING = ".draining"
LOCK = ".lock"
LOAD = ".load"

_UID = re.compile(r"[0-9a-f]{16,64}")


class _Place(Protocol):
    path: str
    members_fd: int
    sockets_fd: int


def valid_uid(uid: str) -> bool:
    """Whether ``uid`` has the form of a worker's uid; no other string becomes part of a path."""
    return _UID.fullmatch(uid) is not None


def lives_here(uid: str) -> None:
    """Note that ``uid`` was enlisted by this process; a forked child forgets it."""
    fork.call_in_child(LIVES_HERE.clear)
    LIVES_HERE.add(uid)


class Roster:
    """The workers of one runtime directory, as one process sees them. Nothing here waits.

    ``alive`` costs one system call for a worker that was asked about before (its lock file stays open), none for one
    that is known to be dead: a uid is used once, so the dead stay dead.
    """

    def __init__(self, runtime: _Place, member: object = None) -> None:
        """``member``, if given, is this process's own; it is known as such anyway."""
        self._members_fd = runtime.members_fd
        self._sockets_fd = runtime.sockets_fd
        self._prefix = f"{runtime.path}/{SOCKETS}/"
        self._locks: dict[str, int] = {}
        self._dead: set[str] = set()

    def alive(self, uid: str) -> bool:
        """Whether the worker ``uid`` lives; False too for one that was never here. Never true for a dead one."""
        if uid in LIVES_HERE:
            return True
        fd = self._locks.get(uid)
        if fd is None:
            if uid in self._dead or not valid_uid(uid):
                return False
            fd = locks.open_to_ask(self._members_fd, uid + LOCK)
            if fd is None:
                return False
            self._locks[uid] = fd
        if locks.held_elsewhere(fd):
            return True
        del self._locks[uid]
        os.close(fd)
        self._dead.add(uid)
        return False

    def uids(self) -> list[str]:
        """The workers that are published (serving or draining) and alive, sorted."""
        return self._published((SERVING, DRAINING))

    def serving(self) -> list[str]:
        """Those of them that take new sessions, sorted."""
        return self._published((SERVING,))

    def socket_path(self, uid: str) -> str:
        """Path of the worker's private socket, there or not. ValueError for what is no uid."""
        if not valid_uid(uid):
            raise ValueError(f"not a worker's uid: {uid!r}")
        return self._prefix + uid

    def bury(self) -> list[str]:
        """Remove the sockets, state and lock files of dead workers; their identities and claims stay as tombstones.

        Any process may call it at any time, as often as it likes. Returns the uids that were found dead.
        """
        found = []
        for name in os.listdir(self._members_fd):
            uid, suffix = os.path.splitext(name)
            if suffix == LOCK and valid_uid(uid) and not self.alive(uid):
                for state in (SERVING, DRAINING, LOAD):
                    remove(self._members_fd, uid + state)
                remove(self._sockets_fd, uid)
                remove(self._sockets_fd, control_name(uid))
                remove(self._members_fd, name)
                found.append(uid)
        return sorted(found)

    def close(self) -> None:
        """Close the lock files it keeps open."""
        while self._locks:
            os.close(self._locks.popitem()[1])

    def _published(self, states: tuple[str, ...]) -> list[str]:
        names = (os.path.splitext(name) for name in os.listdir(self._members_fd))
        return sorted({uid for uid, state in names if state in states and self.alive(uid)})


def remove(dir_fd: int, name: str) -> None:
    """Unlink ``name`` if it is there."""
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        pass
