"""What the plan has the shell do, one by one and in order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    key: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """End it with its requests in flight, as uvicorn does; nothing waits for its sessions."""

    key: int


@dataclass(frozen=True, slots=True)
class Yield:
    """Take no new sessions (``on``), or take them again."""

    key: int
    on: bool = True


@dataclass(frozen=True, slots=True)
class Drain:
    """Serve what it holds, for ``timeout`` seconds (``inf``: no limit). ``all``: the whole server does."""

    key: int
    timeout: float
    all: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    key: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something to log; ``bad`` as an error."""

    text: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    code: int


Action = Start | Terminate | Yield | Drain | Kill | Note | Finish
