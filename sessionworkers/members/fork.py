"""What a child forked by the app must let go of.

An app may fork (``os.fork``, ``multiprocessing``, ``subprocess`` with a ``preexec_fn``). The child holds copies of the
worker's descriptors, and a listening socket stays connectable as long as anyone has it open: after the worker's death
its peers would connect to a child that never answers. So each descriptor that must not outlive the worker is
registered here, and one hook per process puts ``/dev/null`` over all of them in the child.

``dup2`` and not ``close``: the socket objects that the child inherited still believe in their descriptor numbers and
would close whatever gets that number next. It is safe beside a running event loop, asyncio's or uvloop's: an epoll set
watches the open file, which the parent still holds, and not the child's number for it.

A child made by ``subprocess`` without ``preexec_fn`` runs no hook; it execs, and all these are close-on-exec.
A C library that forks by itself runs none either: for that case the hop limits the time its hello may take.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_Key = tuple[int, int]  # (device, inode) of the open file

_open: dict[int, _Key] = {}
_callbacks: list[Callable[[], None]] = []
_installed = False


def close_in_child(fd: int) -> None:
    """Have ``fd`` replaced by ``/dev/null`` in every child that this process forks. OSError if it is not open."""
    _install()
    stat = os.fstat(fd)
    _open[fd] = (stat.st_dev, stat.st_ino)


def forget(fd: int) -> None:
    """``fd`` is about to be closed by its owner; unknown numbers are fine."""
    _open.pop(fd, None)


def registered() -> frozenset[int]:
    """The descriptor numbers that a child would lose now."""
    return frozenset(_open)


def call_in_child(callback: Callable[[], None]) -> None:
    """Have ``callback`` called in every forked child: for records of what this very process holds. Must not raise."""
    _install()
    if callback not in _callbacks:
        _callbacks.append(callback)


def _install() -> None:
    # The interpreter keeps such hooks for ever and hands them on to children: register once, hold the state here.
    global _installed
    if not _installed:
        _installed = True
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    for callback in _callbacks:
        callback()
    if not _open:
        return
    mine = [fd for fd, key in _open.items() if _is(fd, key)]
    _open.clear()  # a grandchild has nothing left to lose
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no descriptor left, or a bare chroot: a closed number is the lesser evil
        for fd in mine:
            _close(fd)
        return
    for fd in mine:
        try:
            os.dup2(null, fd, inheritable=False)
        except OSError:
            _close(fd)
    _close(null)


def _is(fd: int, key: _Key) -> bool:
    # Closed without forget(), the number may belong to a file of the app's by now.
    try:
        stat = os.fstat(fd)
    except OSError:
        return False
    return (stat.st_dev, stat.st_ino) == key


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass
