"""Signals as something to poll for: handlers only append, and a descriptor becomes readable."""

from __future__ import annotations

import collections
import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType

_SIGNALS = ("INT", "TERM", "QUIT", "HUP", "TTIN", "TTOU", "USR1", "USR2", "WINCH", "CHLD")


@contextlib.contextmanager
def wakeups(queue: collections.deque[int]) -> Iterator[int]:
    """Signals go to ``queue`` and wake whoever polls the descriptor; everything is put back at the end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)

    def append(number: int, frame: FrameType | None) -> None:
        queue.append(number)

    numbers = [getattr(signal, f"SIG{name}") for name in _SIGNALS]
    before = {number: signal.signal(number, append) for number in numbers}
    old = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield ours.fileno()
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        ours.close()
        theirs.close()
