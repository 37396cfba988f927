"""The runtime directory of one server: where its workers find each other. Its layout is drawn in the package's page.

Three ways in:

* ``create``: the server's own, fresh, under the first base that works: ``$XDG_RUNTIME_DIR``, ``/dev/shm``, the
  temporary directory. What a crash left there is swept first.
* ``at``: one that the operator named. It is made, or found and checked; what a dead server left in it is cleared. Any
  number of processes may come in this way (under a server that is not ours each worker does).
* ``adopt``: a worker opens what its parent made.

The first two, and ``adopt(serve=True)`` (gunicorn's next arbiter after USR2), hold the server lock for life, shared;
`remove` removes only for the last holder.
"""

from __future__ import annotations

import os
import stat as modes
import tempfile

from ..errors import RuntimeDirError
from . import locks
from .contents import DIRS, FOUND, FRESH, LONGEST_NAME, MADE, MASK_KEY, give_to, populate, settle
from .sweep import SERVER_LOCK, clear, sweep_stale
from .trust import anyone_may_rename, check_length, check_parents, open_private, refuse

_TRIES = 5


class RuntimeDir:
    """An open runtime directory. Work in it goes through its descriptors, whatever its path leads to later."""

    __slots__ = ("_lock", "claims_fd", "fd", "members_fd", "names_fd", "path", "sockets_fd")

    def __init__(self, path: str, fd: int, uids: frozenset[int], lock: locks.HeldLock | None) -> None:
        self.path = path
        self.fd = fd
        self._lock = lock
        self.members_fd, self.sockets_fd, self.claims_fd, self.names_fd = (
            open_private(name, uids, dir_fd=fd, path=f"{path}/{name}") for name in DIRS
        )

    @classmethod
    def create(cls, base: str | None = None, *, owner: tuple[int, int] | None = None) -> RuntimeDir:
        """A fresh directory in ``base``; ``owner`` (uid, gid) gets it where workers run as another user.

        RuntimeDirError says for each base why it could not be used.
        """
        problems = []
        for candidate in [base] if base is not None else default_bases(owner):
            path = os.path.abspath(candidate)
            try:
                check_length(os.path.join(path, "sw-12345678"), LONGEST_NAME)
                check_parents(os.path.join(path, "sw-12345678"))
                sweep_stale(path, _uids(owner))
                return cls._create(path, owner)
            except RuntimeDirError as error:
                problems.append(str(error))
            except OSError as error:
                problems.append(f"runtime directory in {path}: {error.strerror or error}")
        raise RuntimeDirError("; ".join(problems) or "no directory found to make a runtime directory in")

    @classmethod
    def _create(cls, base: str, owner: tuple[int, int] | None) -> RuntimeDir:
        for _ in range(_TRIES):
            path = tempfile.mkdtemp(prefix="sw-", dir=base)
            try:
                fd = open_private(path, _uids(None))
                lock = locks.take(fd, SERVER_LOCK, shared=True)
            except FileNotFoundError:  # taken for an old leftover, say after the machine slept: once more
                continue
            try:
                os.pwrite(lock.fd, FRESH, 0)
                populate(fd, path)
                if owner is not None:
                    give_to(fd, owner)
                return cls(path, fd, _uids(owner), lock)
            except BaseException:
                cls._forsake(path, fd, lock)
                raise
        raise refuse(base, f"new directories in it vanish ({_TRIES} tries)")

    @classmethod
    def at(cls, path: str, *, owner: tuple[int, int] | None = None) -> RuntimeDir:
        """The directory ``path``, made if absent; ``owner`` as for `create`.

        RuntimeDirError names the path and what is wrong with it.
        """
        path = os.path.abspath(path)
        check_length(path, LONGEST_NAME)
        check_parents(path)
        try:
            for _ in range(_TRIES):
                mark = FOUND
                try:
                    os.mkdir(path, 0o700)
                    mark = MADE
                except FileExistsError:
                    pass
                try:
                    fd = open_private(path, _uids(owner))
                    lock, alone = locks.join(fd, SERVER_LOCK, create=True)
                except FileNotFoundError:  # its last user just removed it
                    continue
                try:
                    if alone:
                        settle(fd, path, lock, mark)
                        if owner is not None:
                            give_to(fd, owner)
                        lock.downgrade()
                    elif mark == MADE:  # another one came in first, and took it for found
                        os.pwrite(lock.fd, MADE, 0)
                    return cls(path, fd, _uids(owner), lock)
                except BaseException:
                    lock.release()
                    os.close(fd)
                    raise
        except OSError as error:
            raise refuse(path, f"cannot be used: {error.strerror or error}") from error
        raise refuse(path, f"is removed again and again ({_TRIES} tries)")

    @classmethod
    def adopt(cls, path: str, *, owner: tuple[int, int] | None = None, serve: bool = False) -> RuntimeDir:
        """Open what the parent made, checked the same way; ``serve`` shares its server lock. RuntimeDirError."""
        path = os.path.abspath(path)
        check_length(path, LONGEST_NAME)
        check_parents(path)
        try:
            fd = open_private(path, _uids(owner))
            try:
                runtime = cls(path, fd, _uids(owner), None)
                if serve:
                    runtime.serve()
            except BaseException:
                os.close(fd)
                raise
            return runtime
        except FileNotFoundError as error:
            raise refuse(path, f"{error.filename} does not exist; its server is gone") from error
        except OSError as error:
            raise refuse(path, f"cannot be used: {error.strerror or error}") from error

    @staticmethod
    def _forsake(path: str, fd: int, lock: locks.HeldLock) -> None:
        try:
            if lock.upgrade() and clear(fd):
                _rmdir(path)
        except OSError:
            pass
        finally:
            lock.release()
            os.close(fd)

    def mask_key(self) -> bytes:
        """16 bytes, the same for all workers: the key under which IDs are hashed for logs."""
        fd = os.open(MASK_KEY, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            key = os.read(fd, 17)
        finally:
            os.close(fd)
        if len(key) != 16:
            raise refuse(self.path, f"{MASK_KEY} holds {len(key)} bytes, not 16")
        return key

    def serve(self) -> None:
        """Share the server lock of an adopted one: it stays while this process lives. RuntimeDirError: it is gone."""
        if self._lock is not None:
            return
        try:
            self._lock, _ = locks.join(self.fd, SERVER_LOCK)
        except OSError as error:
            raise refuse(self.path, f"its server lock cannot be shared: {error.strerror or error}") from error
        self._lock.downgrade()

    @property
    def standing(self) -> bool:
        """Whether the directory still has its server lock's name: not swept, not removed."""
        try:
            return modes.S_ISREG(os.stat(SERVER_LOCK, dir_fd=self.fd, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def remove(self) -> bool:
        """Remove it if this process is its last server and no worker lives. Never raises; False: left in place.

        Does nothing for an adopted one, in a forked child or a second time. What cannot be removed now, the next
        start sweeps.
        """
        lock, self._lock = self._lock, None
        if lock is None or not lock.here:
            return False
        last: locks.HeldLock | None = lock
        try:
            if not lock.upgrade():
                # Of several that leave at once each sees the others' shares. So its own goes first, then the whole is
                # tried for: the last to let go finds nobody, whoever else still looks.
                lock.release()
                last = locks.grab(self.fd, SERVER_LOCK)
        except OSError:
            return False  # another one removed it
        if last is None:
            return False
        try:
            mark = os.pread(last.fd, len(FRESH), 0)
            if not clear(self.fd, names=None if mark == FRESH else (*DIRS, MASK_KEY)):
                return False
            if mark != FOUND:
                _rmdir(self.path)
            return True
        except OSError:
            return False
        finally:
            last.release()

    def close(self) -> None:
        """Close the descriptors; gives up the server lock, removes nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        for name in ("members_fd", "sockets_fd", "claims_fd", "names_fd", "fd"):
            fd = getattr(self, name)
            if fd >= 0:
                setattr(self, name, -1)
                os.close(fd)


def default_bases(owner: tuple[int, int] | None = None) -> list[str]:
    """Where a fresh runtime directory may be made, best first: in memory, and reachable for its ``owner``."""
    bases = []
    personal = os.environ.get("XDG_RUNTIME_DIR", "")
    if personal.startswith("/") and (owner is None or owner[0] == os.geteuid()):
        try:
            info = os.stat(personal)
        except OSError:
            pass
        else:
            if modes.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and os.access(personal, os.W_OK | os.X_OK):
                bases.append(personal)
    for base in ("/dev/shm", tempfile.gettempdir()):
        if os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK) and not anyone_may_rename(os.stat(base)):
            bases.append(base)
    return bases


def _uids(owner: tuple[int, int] | None) -> frozenset[int]:
    return frozenset((os.geteuid(),) if owner is None else (os.geteuid(), owner[0]))


def _rmdir(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:  # somebody keeps something of his own in it
        pass
