"""Names that all workers of a server share: what `auto` learned on one is recognised by the others' next request.

Up to 256 names, never removed, in ``names/``: slot files ``000`` … ``255`` with one name each, and ``page``, a memory
map with one byte per slot that says whether the slot is filled. That byte is the whole check of a reader to which
nothing is new: one look at memory, no system call.

Writers need no lock and lose nothing. A slot is filled by ``link`` (whole or not at all, one winner); whoever finds the
lowest slot it does not know taken reads it, sets its byte on behalf of a writer that may have died in between, and goes
on to the next unless it holds the very name to be added. So bytes are set in order, each name gets one slot, and a name
is visible to all as soon as `add` returns.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import stat as modes
from typing import Protocol

from ..errors import RuntimeDirError
from .contents import PAGE, PAGE_SIZE

MAX_NAMES = 256
MAX_NAME = 1024  # bytes of UTF-8

_logger = logging.getLogger("sessionworkers")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Place(Protocol):
    path: str
    names_fd: int


class NamesBoard:
    """The names of one runtime directory. Not for several threads at once."""

    def __init__(self, runtime: _Place) -> None:
        """RuntimeDirError if the page is not one; OSError."""
        self._dir_fd = runtime.names_fd
        self._known: list[str] = []
        self._names: frozenset[str] = frozenset()
        self._told = False
        fd = os.open(PAGE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._dir_fd)
        try:
            info = os.fstat(fd)
            if not modes.S_ISREG(info.st_mode) or info.st_size != PAGE_SIZE:
                raise RuntimeDirError(f"runtime directory {runtime.path}: names/page is not {PAGE_SIZE} bytes")
            self._page = mmap.mmap(fd, PAGE_SIZE)
        finally:
            os.close(fd)

    @property
    def revision(self) -> int:
        """Grows with each name that this or another worker added; one look at memory."""
        if self._page[len(self._known)]:
            self._catch_up()
        return len(self._known)

    def names(self) -> frozenset[str]:
        """All names; the same object as before when nothing is new."""
        if self._page[len(self._known)]:
            self._catch_up()
        return self._names

    def add(self, name: str) -> None:
        """Share ``name``. Left out: known ones, over 1024 bytes, beyond 256. OSError: none was added."""
        if name in self.names():
            return
        data = name.encode(errors="surrogatepass")
        if data and len(data) <= MAX_NAME:
            self._write(name, data)

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()

    def _write(self, name: str, data: bytes) -> None:
        temporary = f".{secrets.token_hex(8)}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._dir_fd)
        try:
            try:
                if os.write(fd, data) != len(data):
                    raise OSError("a shared name was written in part")
            finally:
                os.close(fd)
            self._place(temporary, name)
        finally:
            os.unlink(temporary, dir_fd=self._dir_fd)

    def _place(self, temporary: str, name: str) -> None:
        while name not in self._names:
            slot = len(self._known)
            if slot == MAX_NAMES:
                self._full()
                return
            try:
                os.link(
                    temporary, f"{slot:03}", src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd, follow_symlinks=False
                )
            except FileExistsError:
                pass
            self._page[slot] = 1
            self._catch_up()

    def _full(self) -> None:
        if not self._told:
            self._told = True
            _logger.warning("%d names were learned, the most there may be: no more", MAX_NAMES)

    def _catch_up(self) -> None:
        while self._page[len(self._known)]:  # byte 256 is never set
            self._known.append(self._read(len(self._known)))
        self._names = frozenset(self._known)

    def _read(self, slot: int) -> str:
        fd = os.open(f"{slot:03}", _READ, dir_fd=self._dir_fd)
        try:
            return os.read(fd, MAX_NAME).decode(errors="surrogatepass")
        finally:
            os.close(fd)
