"""Clearing away what a crashed server left.

A directory goes when nobody holds its server lock and no worker of it lives. The judge first takes the whole server
lock, so no two sweepers judge at once and no server can come in beneath one; then it hides the lock's name and looks a
second time: a worker that enlists meanwhile either finds the name missing and gives up, or was there for the second
look (see `Member.enlist`). The lock goes last, so that a sweeper that was killed half-way leaves something that the
next one can judge.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Container, Iterable

from . import locks
from .trust import OPEN_DIR

SERVER_LOCK = "server.lock"
HIDDEN_LOCK = "server.gone"
FRESH_NAME = re.compile(r"sw-[a-z0-9_]{8}")  # what tempfile.mkdtemp(prefix="sw-") makes
_JUST_MADE = 60.0  # seconds a directory may go without its lock: a server starts in milliseconds
_DEPTH = 2  # runtime directory / members / file


def sweep_stale(base: str, uids: Container[int] | None = None) -> list[str]:
    """Remove runtime directories in ``base`` that nothing living uses; return their paths.

    Only directories owned by one of ``uids`` (default: ours). Never follows a link, never raises for one that it
    cannot remove.
    """
    uids = (os.geteuid(),) if uids is None else uids
    try:
        base_fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        names = sorted(name for name in os.listdir(base_fd) if FRESH_NAME.fullmatch(name))
        return [os.path.join(base, name) for name in names if _sweep(base_fd, name, uids)]
    finally:
        os.close(base_fd)


def _sweep(base_fd: int, name: str, uids: Container[int]) -> bool:
    try:
        fd = os.open(name, OPEN_DIR, dir_fd=base_fd)
    except OSError:
        return False
    try:
        if os.fstat(fd).st_uid not in uids:
            return False
        for lock_name in (SERVER_LOCK, HIDDEN_LOCK):
            try:
                lock = locks.grab(fd, lock_name)
            except FileNotFoundError:
                continue
            if lock is None:
                return False
            try:
                if not clear(fd, lock_name):
                    return False
                os.rmdir(name, dir_fd=base_fd)
                return True
            finally:
                lock.release()
        return _remove_unborn(base_fd, name, fd)
    except OSError:
        return False
    finally:
        os.close(fd)


def clear(fd: int, lock_name: str = SERVER_LOCK, names: Iterable[str] | None = None) -> bool:
    """Remove ``names`` (None: all) and the lock from the runtime directory ``fd``; False if a worker in it lives.

    The caller holds the whole server lock.
    """
    if any_member(fd):
        return False
    if lock_name != HIDDEN_LOCK:
        os.rename(lock_name, HIDDEN_LOCK, src_dir_fd=fd, dst_dir_fd=fd)
        if any_member(fd):
            os.rename(HIDDEN_LOCK, lock_name, src_dir_fd=fd, dst_dir_fd=fd)
            return False
    for name in os.listdir(fd) if names is None else names:
        if name != HIDDEN_LOCK:
            discard(fd, name)
    os.unlink(HIDDEN_LOCK, dir_fd=fd)
    return True


def any_member(fd: int) -> bool:
    """Whether a worker of the runtime directory ``fd`` lives."""
    try:
        members = os.open("members", OPEN_DIR, dir_fd=fd)
    except OSError:
        return False
    try:
        return any(name.endswith(".lock") and locks.is_held(members, name) for name in os.listdir(members))
    finally:
        os.close(members)


def discard(fd: int, name: str, depth: int = _DEPTH) -> None:
    """Remove ``name`` from the directory ``fd``: a link as a link, a directory with what is in it."""
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        if depth > 1:
            inner = os.open(name, OPEN_DIR, dir_fd=fd)
            try:
                for entry in os.listdir(inner):
                    discard(inner, entry, depth - 1)
            finally:
                os.close(inner)
        os.rmdir(name, dir_fd=fd)


def _remove_unborn(base_fd: int, name: str, fd: int) -> bool:
    # Its maker died before the lock got its name, or is about to give it one. Not yet more than the file to be
    # locked can be in there, so whatever else it holds, rmdir leaves alone.
    if time.time() - os.fstat(fd).st_mtime < _JUST_MADE:
        return False
    for entry in os.listdir(fd):
        if not entry.startswith(f".{SERVER_LOCK}."):
            return False
        lock = locks.grab(fd, entry)
        if lock is None:
            return False
        try:
            os.unlink(entry, dir_fd=fd)
        finally:
            lock.release()
    os.rmdir(name, dir_fd=base_fd)
    return True
