"""Claims in a dict: for tests, and for a server of one worker."""

from __future__ import annotations

from .key import check_key
from .store import ClaimStore


class MemoryStore:
    """Fake workers of one process that are given the same ``shared`` dict (key → uid) see each other's claims."""

    def __init__(self, me: str, shared: dict[str, str] | None = None) -> None:
        self.me = me
        self.shared = {} if shared is None else shared

    def claim(self, key: str, worker: str | None = None) -> str:
        return self.shared.setdefault(check_key(key), worker or self.me)  # one step, also between threads

    def owner(self, key: str) -> str | None:
        return self.shared.get(check_key(key))

    def move(self, key: str, to: str) -> bool:
        if self.shared.get(check_key(key)) != self.me:
            return False
        self.shared[key] = to
        return True

    def release(self, key: str) -> bool:
        if self.shared.get(check_key(key)) != self.me:
            return False
        del self.shared[key]
        return True

    def keys(self, worker: str | None = None) -> list[str]:
        worker = worker or self.me
        return [key for key, uid in list(self.shared.items()) if uid == worker]

    def close(self) -> None:
        pass


_: type[ClaimStore] = MemoryStore
