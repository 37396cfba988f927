"""Who owns which session ID: the contract (``store``), and the stores that keep it."""

from __future__ import annotations

from .directory import DirectoryStore
from .memory import MemoryStore
from .store import ClaimStore

__all__ = ["ClaimStore", "DirectoryStore", "MemoryStore"]
