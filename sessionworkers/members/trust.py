"""Whether a directory may be used as a runtime directory, or as the place for one.

Everything inside relies on nobody else being able to write there, so what was found and not made by ourselves is
checked through its descriptor (a name could be swapped between check and use) and links are not followed: not ours,
open to others, not a directory, or below a place where anyone may rename it, and the start is refused with the path
and the reason. ``os.makedirs(mode=0o700, exist_ok=True)`` checks none of that.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Container

from ..errors import RuntimeDirError

OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

SUN_PATH = 107  # bytes of a Unix socket's path that Linux takes; 108 fail


def refuse(path: str, reason: str) -> RuntimeDirError:
    return RuntimeDirError(f"runtime directory {path}: {reason}")


def open_private(name: str, uids: Container[int], *, dir_fd: int | None = None, path: str | None = None) -> int:
    """Open the directory ``name`` if it is real, owned by one of ``uids`` and closed to all others.

    ``path`` is what an error calls it. RuntimeDirError; FileNotFoundError if there is none.
    """
    path = path or name
    try:
        fd = os.open(name, OPEN_DIR, dir_fd=dir_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refuse(path, _why_not_opened(name, dir_fd, error)) from None
    try:
        info = os.fstat(fd)
        if info.st_uid not in uids:
            raise refuse(path, f"is owned by uid {info.st_uid}, not by this server's uid {os.geteuid()}")
        if modes.S_IMODE(info.st_mode) & 0o077:
            raise refuse(path, f"has mode {modes.S_IMODE(info.st_mode):04o}, so others can use it; it must be 0700")
        if modes.S_IMODE(info.st_mode) & 0o700 != 0o700:
            raise refuse(path, f"has mode {modes.S_IMODE(info.st_mode):04o}; its owner needs 0700")
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_parents(path: str) -> None:
    """Refuse an absolute ``path`` below a directory where anyone may rename it, or reached by a stranger's link."""
    trusted = (0, os.geteuid())
    parts = os.path.dirname(path).split("/")
    for end in range(1, len(parts) + 1):
        parent = "/".join(parts[:end]) or "/"
        try:
            link = os.lstat(parent)
            info = os.stat(parent)
        except OSError as error:
            raise refuse(path, f"its parent {parent} cannot be used: {error.strerror}") from None
        if modes.S_ISLNK(link.st_mode) and link.st_uid not in trusted:
            raise refuse(path, f"its parent {parent} is a symbolic link of uid {link.st_uid}")
        if not modes.S_ISDIR(info.st_mode):
            raise refuse(path, f"its parent {parent} is not a directory")
        if anyone_may_rename(info):
            raise refuse(path, f"its parent {parent} is writable by everyone without the sticky bit")


def anyone_may_rename(info: os.stat_result) -> bool:
    """World-writable and not sticky."""
    return bool(info.st_mode & modes.S_IWOTH) and not info.st_mode & modes.S_ISVTX


def check_length(path: str, longest: str) -> None:
    """Refuse a directory in which the longest socket name would not fit into ``sun_path``."""
    size = len(os.fsencode(path)) + 1 + len(longest)
    if size > SUN_PATH:
        limit = SUN_PATH - 1 - len(longest)
        raise refuse(
            path,
            f"is {len(os.fsencode(path))} bytes long; at most {limit} leave room for a socket (Linux takes {SUN_PATH})",
        )


def _why_not_opened(name: str, dir_fd: int | None, error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        try:
            link = modes.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
        except OSError:
            link = False
        return "is a symbolic link, which is not followed" if link else "is not a directory"
    return f"cannot be opened: {error.strerror}"
