"""Claims as directory entries: a claim is a hard link ``claims/<key>`` of its owner's identity file.

``link`` is one system call that either makes the whole claim or finds it made (4 µs on tmpfs, 6 on ext4), and it takes
no inode and no data block where the file system keeps links in the directory. Looking a claim up is one ``stat``: the
inode number tells the owner (2 µs). An inode that is not known yet is a new worker's: the identity files are scanned
again.

A file system limits the links to one file (ext4 65,000): then a fresh identity file serves. What cannot be a claim (a
directory, a FIFO, a link, a file that is no identity) counts as unclaimed, is reported once and never opened in a way
that could wait.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat as modes
from collections.abc import Callable
from typing import Protocol

from ..errors import StoreUnavailable
from .key import check_key, valid_key
from .store import ClaimStore

_logger = logging.getLogger("sessionworkers")
_RACES = 16  # times a claim may vanish between "taken" and "by whom" before we stop believing it
_MAX_FRESH = 1000  # identity files a worker may need: 65 million claims on ext4


class Place(Protocol):
    """What the store uses of a runtime directory."""

    path: str
    claims_fd: int
    members_fd: int


class IdentityFiles(Protocol):
    """What the store uses of the identity files (``members.Identities``)."""

    def scan(self) -> dict[int, tuple[str, int]]: ...
    def name(self, uid: str, number: int) -> str: ...
    def fresh(self, uid: str, number: int = 0) -> int: ...
    def read(self, dir_fd: int, name: str) -> str | None: ...


class Enlisted(Protocol):
    """What the store uses of this worker's ``members.Member``."""

    @property
    def uid(self) -> str: ...
    @property
    def identities(self) -> IdentityFiles: ...


class DirectoryStore:
    """The claims of one runtime directory. ``link`` is ``os.link``, or what a test puts in its place."""

    def __init__(self, runtime: Place, member: Enlisted, *, link: Callable[..., None] = os.link) -> None:
        self.me = member.uid
        self._path = runtime.path
        self._claims_fd = runtime.claims_fd
        self._members_fd = runtime.members_fd
        self._identities = member.identities
        self._link = link
        self._owners: dict[int, str] = {}  # inode of an identity file → uid; such inodes are never used again
        self._files: dict[str, tuple[int, str]] = {}  # uid → number and name of the file that its next claim links
        self._warned = False
        self._scan()

    def claim(self, key: str, worker: str | None = None) -> str:
        uid = worker or self.me
        check_key(key)
        for _ in range(_RACES):
            if self._link_identity(uid, key):
                return uid
            holder = self._owner(key)
            if holder is not None:
                return holder
        raise StoreUnavailable(f"the claim {key} in {self._path} is neither free nor anyone's")

    def owner(self, key: str) -> str | None:
        return self._owner(check_key(key))

    def move(self, key: str, to: str) -> bool:
        if self._owner(check_key(key)) != self.me:
            return False
        temporary = f".{secrets.token_hex(8)}"
        if not self._link_identity(to, temporary):
            raise StoreUnavailable(f"a temporary name in {self._path} was taken")  # 64 random bits
        try:
            os.rename(temporary, key, src_dir_fd=self._claims_fd, dst_dir_fd=self._claims_fd)
            # Between two links of one inode rename does nothing, and leaves both: then this one goes.
            os.unlink(temporary, dir_fd=self._claims_fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._unavailable(error) from error
        return True

    def release(self, key: str) -> bool:
        if self._owner(check_key(key)) != self.me:
            return False
        try:
            os.unlink(key, dir_fd=self._claims_fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unavailable(error) from error
        return True

    def keys(self, worker: str | None = None) -> list[str]:
        worker = worker or self.me
        try:
            self._scan()
            with os.scandir(self._claims_fd) as entries:
                found = [(entry.name, entry.inode()) for entry in entries]
        except OSError as error:
            raise self._unavailable(error) from error
        return [name for name, inode in found if self._owners.get(inode) == worker and valid_key(name)]

    def close(self) -> None:
        self._owners.clear()

    def _owner(self, key: str) -> str | None:
        try:
            info = os.stat(key, dir_fd=self._claims_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable(error) from error
        uid = self._owners.get(info.st_ino)
        return uid if uid is not None else self._first_sight(key, info)

    def _first_sight(self, key: str, info: os.stat_result) -> str | None:
        if modes.S_ISREG(info.st_mode):
            try:
                self._scan()
                uid = self._owners.get(info.st_ino)
                # No identity file left has this inode: the claim has the same content. Not remembered, since without
                # the identity file the number may come to name another's.
                uid = self._identities.read(self._claims_fd, key) if uid is None else uid
            except FileNotFoundError:
                return None
            except OSError as error:
                raise self._unavailable(error) from error
            if uid is not None:
                return uid
        if not self._warned:
            self._warned = True
            _logger.warning("%s/claims/%s is no claim of a worker: taken as unclaimed", self._path, key)
        return None

    def _link_identity(self, uid: str, name: str) -> bool:
        """Link the identity file of ``uid`` to ``name`` in claims/; False if that exists."""
        file = self._files.get(uid)
        if file is None:
            file = self._find(uid)
        for _ in range(_MAX_FRESH):
            try:
                self._link(
                    file[1],
                    name,
                    src_dir_fd=self._members_fd,
                    dst_dir_fd=self._claims_fd,
                    follow_symlinks=False,
                )
                return True
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise self._unavailable(error) from error
            file = self._next(uid, file[0])
        raise StoreUnavailable(f"no identity file of {uid} in {self._path} takes another link")

    def _find(self, uid: str) -> tuple[int, str]:
        self._scan()
        try:
            return self._files[uid]
        except KeyError:
            raise StoreUnavailable(f"{self._path} has no worker {uid} to claim for") from None

    def _next(self, uid: str, full: int) -> tuple[int, str]:
        """Another identity file of ``uid`` after the one numbered ``full``: one that exists by now, or a fresh one."""
        try:
            self._scan()
            if self._files[uid][0] <= full:
                self._identities.fresh(uid, full + 1)
                self._scan()
        except OSError as error:
            raise self._unavailable(error) from error
        return self._files[uid]

    def _scan(self) -> None:
        for inode, (uid, number) in self._identities.scan().items():
            self._owners[inode] = uid
            if uid not in self._files or number > self._files[uid][0]:
                self._files[uid] = (number, self._identities.name(uid, number))

    def _unavailable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"the claims in {self._path} cannot be used: {error.strerror or error}")


_: type[ClaimStore] = DirectoryStore
