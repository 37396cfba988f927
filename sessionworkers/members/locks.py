"""Proof of life: a POSIX record lock that a process holds until it dies.

The kernel drops such a lock when its process ends, however it ends, and a forked child does not inherit it. (``flock``
does not serve: it belongs to the open file, so a child of the app keeps it after the worker was killed.) It has one
trap: a process loses it as soon as it closes *any* descriptor of that file. Hence

* every lock has a file of its own;
* a process remembers which files it holds (``_held``) and never opens one of them a second time;
* a test asks (``F_GETLK``) and takes nothing, so two testers never see each other.

A new lock file gets its name only after it was locked: whoever finds the name with a free lock knows that the holder is
dead, not that it is just starting.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat as modes
import struct
import time

from . import fork

_Key = tuple[int, int]

# struct flock of Linux: l_type, l_whence, l_start, l_len, l_pid
_FLOCK = struct.Struct("hhqqi4x")
_ASK = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_held: dict[_Key, HeldLock] = {}


class HeldLock:
    """A lock of this process. ``release`` gives it up; made by `take`, `join` and `grab`."""

    __slots__ = ("fd", "key", "uses")

    def __init__(self, fd: int, key: _Key) -> None:
        self.fd = fd
        self.key = key
        self.uses = 1
        _held[key] = self
        fork.call_in_child(_held.clear)
        fork.close_in_child(fd)

    @property
    def here(self) -> bool:
        """False in a forked child and after release."""
        return _held.get(self.key) is self

    def upgrade(self) -> bool:
        """Turn a shared lock into the only one; False (and unchanged) while another process or user shares it."""
        return self.here and self.uses == 1 and _lock(self.fd, fcntl.LOCK_EX)

    def downgrade(self) -> None:
        """Share it again."""
        if self.here:
            _lock(self.fd, fcntl.LOCK_SH)

    def release(self) -> None:
        """Give it up, or this one use of it. Does nothing in a forked child, nor a second time."""
        if not self.here:
            return
        self.uses -= 1
        if self.uses == 0:
            del _held[self.key]
            fork.forget(self.fd)
            os.close(self.fd)


def take(dir_fd: int, name: str, *, shared: bool = False) -> HeldLock:
    """Make the lock file ``name``, locked before it can be seen. FileExistsError if there is one; OSError."""
    temporary = f".{name}.{secrets.token_hex(4)}"
    fd = os.open(temporary, _OPEN | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=dir_fd)
    held = HeldLock(fd, _key(os.fstat(fd)))  # known as ours before another thread can find the name
    try:
        if not _lock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            raise BlockingIOError(errno.EAGAIN, "a new lock file is locked already", name)
        os.link(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
    except BaseException:
        held.release()
        raise
    finally:
        os.unlink(temporary, dir_fd=dir_fd)
    return held


def join(dir_fd: int, name: str, *, create: bool = False, wait: float = 5.0) -> tuple[HeldLock, bool]:
    """Share the lock ``name``; with ``create`` its file may be absent. Returns (lock, alone).

    ``alone``: nobody else held it; then the lock is exclusive until `HeldLock.downgrade`, so that the caller can put
    the place in order first. Waits up to ``wait`` seconds for another to do so. TimeoutError, OSError; a wrong kind of
    file is ``EINVAL``.
    """
    deadline = time.monotonic() + wait
    while True:
        ours = _ours(dir_fd, name)
        if ours is not None:
            ours.uses += 1
            return ours, False
        fd = os.open(name, _OPEN | (os.O_CREAT if create else 0), 0o600, dir_fd=dir_fd)
        try:
            info = os.fstat(fd)
            if not modes.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, "the lock is not a regular file", name)
            alone = _lock(fd, fcntl.LOCK_EX)
            if (alone or _lock(fd, fcntl.LOCK_SH)) and _still(dir_fd, name, info):
                return HeldLock(fd, _key(info)), alone
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # held by one that cleans up, or removed just now: look again
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"the lock stayed taken for {wait:g} s", name)
        time.sleep(0.005)


def grab(dir_fd: int, name: str) -> HeldLock | None:
    """Take the whole existing lock ``name`` if nobody holds it, this process included; else None. FileNotFoundError."""
    if _ours(dir_fd, name) is not None:
        return None
    fd = os.open(name, _OPEN, dir_fd=dir_fd)
    info = os.fstat(fd)
    if modes.S_ISREG(info.st_mode) and _lock(fd, fcntl.LOCK_EX) and _still(dir_fd, name, info):
        return HeldLock(fd, _key(info))
    os.close(fd)
    return None


def open_to_ask(dir_fd: int, name: str) -> int | None:
    """A descriptor for `held_elsewhere`; None: no such lock file. Never for a lock of this process: see `held_here`."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return None
        raise
    return fd


def held_elsewhere(fd: int) -> bool:
    """Whether another process holds a lock on the open file. One system call that takes nothing."""
    state: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _ASK))[0]
    return state != fcntl.F_UNLCK


def held_here(dir_fd: int, name: str) -> bool:
    """Whether this process holds the lock ``name``."""
    return _ours(dir_fd, name) is not None


def is_held(dir_fd: int, name: str) -> bool:
    """Whether any process, this one included, holds the lock ``name``. False if there is no such file."""
    if held_here(dir_fd, name):
        return True
    fd = open_to_ask(dir_fd, name)
    if fd is None:
        return False
    try:
        return held_elsewhere(fd)
    finally:
        os.close(fd)


def _ours(dir_fd: int, name: str) -> HeldLock | None:
    try:
        return _held.get(_key(os.stat(name, dir_fd=dir_fd, follow_symlinks=False)))
    except FileNotFoundError:
        return None


def _still(dir_fd: int, name: str, info: os.stat_result) -> bool:
    # Between open and lock the name may have been removed, or given to another file.
    try:
        return _key(os.stat(name, dir_fd=dir_fd, follow_symlinks=False)) == _key(info)
    except FileNotFoundError:
        return False


def _key(info: os.stat_result) -> _Key:
    return info.st_dev, info.st_ino


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True
