"""A worker's identity: a random uid made after fork, the file that its claims link to, its proof of life, its socket.

The order of `Member.enlist` matters: the life lock is held before any name of the worker can be seen, so nobody takes a
worker that is just starting for a dead one; and the server lock's name is looked at last, since a sweeper hides that
before it looks for workers a second time (see ``sweep``).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import stat as modes
import time

from ..errors import StartupError
from . import fork, locks
from .contents import SOCKETS, UID_LENGTH, control_name
from .roster import DRAINING, LIVES_HERE, LOCK, SERVING, Roster, lives_here, remove, valid_uid
from .runtime import RuntimeDir

__all__ = ["Identities", "Member", "Roster"]

IDENTITY_VERSION = 1
MAX_IDENTITY = 4096  # bytes; no more of a file is read before it is refused
_IDENTITY = re.compile(r"([0-9a-f]{16,64})\.([0-9]{1,6})\.id")


class Identities:
    """The identity files of all workers: inode → uid, and the file that a worker's next claim is to link."""

    def __init__(self, members_fd: int) -> None:
        self.members_fd = members_fd

    def scan(self) -> dict[int, tuple[str, int]]:
        """All identity files as inode → (uid, number). One stat per file: for the first sight of a worker only."""
        found = {}
        for name in os.listdir(self.members_fd):
            match = _IDENTITY.fullmatch(name)
            if match is None:
                continue
            info = os.stat(name, dir_fd=self.members_fd, follow_symlinks=False)
            if modes.S_ISREG(info.st_mode):
                found[info.st_ino] = (match[1], int(match[2]))
        return found

    @staticmethod
    def name(uid: str, number: int) -> str:
        """File name, in ``members/``, of the ``number``-th identity file of ``uid``."""
        return f"{uid}.{number}.id"

    def fresh(self, uid: str, number: int = 0) -> int:
        """Make an identity file of ``uid`` numbered at least ``number``; returns its number. OSError.

        Any worker may do it for any other: a name is given by link, so two that do it at once get two files.
        """
        temporary = f".{secrets.token_hex(8)}"
        data = json.dumps({"sessionworkers": IDENTITY_VERSION, "uid": uid, "made": int(time.time())}).encode()
        fd = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=self.members_fd,
        )
        try:
            try:
                if os.write(fd, data) != len(data):
                    raise OSError("an identity file was written in part")
            finally:
                os.close(fd)
            while True:
                try:
                    os.link(
                        temporary,
                        self.name(uid, number),
                        src_dir_fd=self.members_fd,
                        dst_dir_fd=self.members_fd,
                        follow_symlinks=False,
                    )
                    return number
                except FileExistsError:
                    number += 1
        finally:
            os.unlink(temporary, dir_fd=self.members_fd)

    def read(self, dir_fd: int, name: str) -> str | None:
        """The uid in the identity file ``name``; None for what is not one. Waits for nothing. OSError.

        A lock of this process may have been linked there by mistake: it is not opened, or it would be lost.
        """
        if locks.held_here(dir_fd, name):
            return None
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            return self.parse(os.read(fd, MAX_IDENTITY + 1)) if modes.S_ISREG(os.fstat(fd).st_mode) else None
        finally:
            os.close(fd)

    @staticmethod
    def parse(data: bytes) -> str | None:
        """The uid in an identity file's content; None for anything that is not one, or of an unknown version."""
        if len(data) > MAX_IDENTITY:
            return None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or value.get("sessionworkers") != IDENTITY_VERSION:
            return None
        uid = value.get("uid")
        return uid if isinstance(uid, str) and valid_uid(uid) else None


class Member:
    """This worker. Make it with `enlist`, in the process that it is about, after every fork."""

    def __init__(self, runtime: RuntimeDir, uid: str, lock: locks.HeldLock) -> None:
        self.uid = uid
        self.runtime = runtime
        self.identities = Identities(runtime.members_fd)
        self.socket_path = f"{runtime.path}/{SOCKETS}/{uid}"
        self._lock = lock
        self._listener: int | None = None  # its descriptor
        self._control: int | None = None

    @classmethod
    def enlist(cls, runtime: RuntimeDir) -> Member:
        """Take a fresh uid, prove life, lay down the identity file. StartupError if the directory does not allow it."""
        uid = secrets.token_hex(UID_LENGTH // 2)
        try:
            lock = locks.take(runtime.members_fd, uid + LOCK)
            member = cls(runtime, uid, lock)
            try:
                member.identities.fresh(uid)
            except OSError:
                lock.release()
                remove(runtime.members_fd, uid + LOCK)
                raise
        except OSError as error:
            raise StartupError(f"cannot enlist in {runtime.path}: {error.strerror or error}") from error
        lives_here(uid)
        if not runtime.standing:
            member.retire(keep_tombstone=False)
            raise StartupError(f"cannot enlist in {runtime.path}: it is being removed, its server is gone")
        return member

    @property
    def here(self) -> bool:
        """Whether this process is the worker: False after `retire` and in a child that the app forked."""
        return self.uid in LIVES_HERE

    def bind(self, backlog: int = 2048) -> socket.socket:
        """The private listener: non-blocking, listening, mode 0600 from its first moment. StartupError.

        Bound by ourselves: ``asyncio.create_unix_server(path=...)`` takes a live path over without a word, and
        uvicorn's ``uds`` makes it 0666. The process that listens is the one whose uid peers see (SO_PEERCRED).
        """
        listener = self._bind(self.uid, backlog)
        self._listener = listener.fileno()
        return listener

    def bind_control(self) -> socket.socket:
        """The listener of this worker's control socket, beside the private one and as private. StartupError."""
        listener = self._bind(control_name(self.uid), 16)
        self._control = listener.fileno()
        return listener

    def _bind(self, name: str, backlog: int) -> socket.socket:
        path = f"{self.runtime.path}/{SOCKETS}/{name}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Linux gives the path the mode of the socket, less the umask. So no other thread sees a changed umask.
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(path)
            info = os.stat(name, dir_fd=self.runtime.sockets_fd, follow_symlinks=False)
            if info.st_mode & 0o177:
                listener = self._bind_under_umask(listener, name)
            listener.listen(backlog)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise StartupError(f"cannot listen on {path}: {error.strerror or error}") from error
        fork.close_in_child(listener.fileno())
        return listener

    def _bind_under_umask(self, listener: socket.socket, name: str) -> socket.socket:
        # A kernel that ignores the socket's own mode (gVisor): the file was 0755 for a moment, inside a 0700 directory.
        listener.close()
        os.unlink(name, dir_fd=self.runtime.sockets_fd)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(f"{self.runtime.path}/{SOCKETS}/{name}")
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
        return listener

    def publish(self) -> None:
        """Tell peers that this worker serves. Again after `drain`: it takes new sessions again. OSError."""
        if _rename(self.runtime.members_fd, self.uid + DRAINING, self.uid + SERVING):
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(self.uid + SERVING, flags, 0o600, dir_fd=self.runtime.members_fd))

    def drain(self) -> None:
        """Tell peers that this worker takes no new sessions; it can still be hopped to."""
        _rename(self.runtime.members_fd, self.uid + SERVING, self.uid + DRAINING)

    def close_in_child(self, fd: int) -> None:
        """Have ``fd`` replaced by ``/dev/null`` in children that the app forks."""
        fork.close_in_child(fd)

    def retire(self, *, keep_tombstone: bool = True) -> None:
        """Unpublish, remove the socket's path, give up the life lock. A second time, or in a forked child: nothing.

        Claims stay, so that their sessions are *gone* and not *unknown*; without ``keep_tombstone`` they are removed.
        The listener itself is closed by whoever serves on it.
        """
        if not self.here:
            return
        members_fd = self.runtime.members_fd
        for state in (SERVING, DRAINING):
            remove(members_fd, self.uid + state)
        if self._listener is not None:
            fork.forget(self._listener)
            remove(self.runtime.sockets_fd, self.uid)
            self._listener = None
        if self._control is not None:
            fork.forget(self._control)
            remove(self.runtime.sockets_fd, control_name(self.uid))
            self._control = None
        if not keep_tombstone:
            self._remove_claims()
        remove(members_fd, self.uid + LOCK)
        LIVES_HERE.discard(self.uid)
        self._lock.release()

    def _remove_claims(self) -> None:
        mine = {inode for inode, (uid, _) in self.identities.scan().items() if uid == self.uid}
        with os.scandir(self.runtime.claims_fd) as entries:
            names = [entry.name for entry in entries if entry.inode() in mine]
        for name in names:
            remove(self.runtime.claims_fd, name)


def _rename(dir_fd: int, old: str, new: str) -> bool:
    """Rename ``old`` to ``new``; False if there is no ``old``."""
    try:
        os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True
