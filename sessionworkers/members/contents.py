"""What is in a runtime directory from its start: names, marks, and how they get there."""

from __future__ import annotations

import errno
import os
import secrets

from . import locks
from .sweep import HIDDEN_LOCK, SERVER_LOCK, any_member, discard
from .trust import OPEN_DIR, open_private, refuse

UID_LENGTH = 24  # hex digits of a worker's uid: 96 random bits
SOCKETS = "s"
LONGEST_NAME = f"{SOCKETS}/" + "0" * UID_LENGTH
DIRS = ("members", SOCKETS, "claims", "names")
MASK_KEY = "mask.key"
PAGE = "page"
PAGE_SIZE = 4096
# In server.lock, how the directory came about. With any of these, what has our names in it is ours.
FRESH = b"sessionworkers 1 fresh\n"  # by create: all that is in it goes with it
MADE = b"sessionworkers 1 made \n"  # by at: other things that the operator put into it stay
FOUND = b"sessionworkers 1 found\n"  # there before at: stays itself
MARKS = (FRESH, MADE, FOUND)


def control_name(uid: str) -> str:
    """Name of a worker's control socket, beside its private one. No longer than that: a path has 107 bytes."""
    return uid[:-2] + ".c"


def settle(fd: int, path: str, lock: locks.HeldLock, mark: bytes) -> None:
    """Put a configured directory in order; the caller holds its whole server lock."""
    if os.pread(lock.fd, len(FRESH), 0) in MARKS:
        if any_member(fd):  # workers outlived their server; they keep what is theirs
            return
    else:
        before = _half_removed(fd)
        for name in () if before else (*DIRS, MASK_KEY):
            if _exists(fd, name):
                raise refuse(path, f"already holds something named {name!r} that was not made by sessionworkers")
        os.pwrite(lock.fd, before or mark, 0)
    for name in (*DIRS, MASK_KEY, HIDDEN_LOCK):  # and nothing else: the operator may keep other things here
        discard(fd, name)
    populate(fd, path)


def populate(fd: int, path: str) -> None:
    _write(fd, MASK_KEY, secrets.token_bytes(16))
    for name in DIRS:
        os.mkdir(name, 0o700, dir_fd=fd)
    names = open_private("names", (os.geteuid(),), dir_fd=fd, path=f"{path}/names")
    try:
        # Written, not truncated to length: touching a page that a full tmpfs cannot back would be a SIGBUS.
        _write(names, PAGE, bytes(PAGE_SIZE))
    finally:
        os.close(names)


def _half_removed(fd: int) -> bytes | None:
    """The mark of a server that was killed while it removed this directory."""
    try:
        hidden = os.open(HIDDEN_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return None
    try:
        mark = os.read(hidden, len(FRESH))
    finally:
        os.close(hidden)
    return mark if mark in MARKS else None


def _write(dir_fd: int, name: str, data: bytes) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, "no space left", name)
    finally:
        os.close(fd)


def _exists(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def give_to(fd: int, owner: tuple[int, int]) -> None:
    """Hand a fresh directory to the workers' user, itself last."""
    names = os.open("names", OPEN_DIR, dir_fd=fd)
    try:
        os.chown(PAGE, *owner, dir_fd=names, follow_symlinks=False)
    finally:
        os.close(names)
    for name in (SERVER_LOCK, MASK_KEY, *DIRS):
        os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)
    os.fchown(fd, *owner)
