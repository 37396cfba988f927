"""A reply's head and the first piece of its body in one write. uvicorn makes two."""

from __future__ import annotations

import asyncio

LONG = 8 * 1024
"""Longer pieces are not copied to be joined."""

_holding: list[Joiner] = []
_due: asyncio.AbstractEventLoop | None = None  # the loop that will call `_flush_all`


def _flush_all() -> None:
    """The end of a loop's iteration: heads that no body has followed."""
    global _due
    _due = None
    holding = _holding[:]
    _holding.clear()
    for joiner in holding:
        joiner.flush()


class Joiner:
    """Puts a reply's head and its first piece of body into one write; for use while the worker is busy.

    An idle one had better not: there the early head wakes the client while the body is still being made. The head waits
    for this iteration of the loop at most.
    """

    __slots__ = ("_held", "_loop", "_transport", "first")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self.first = True
        """The next thing written is a reply's head."""

    def write(self, data: bytes) -> None:
        global _due
        if self._held:
            held, self._held = self._held, b""
            if len(data) > LONG:
                self._transport.writelines((held, data))
            else:
                self._transport.write(held + data)
        elif self.first and data[9:12] != b"100":
            self.first = False
            self._held = data
            if _due is not self._loop:
                _due = self._loop
                self._loop.call_soon(_flush_all)
            _holding.append(self)
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Write the head by itself, if nothing came."""
        if self._held:
            held, self._held = self._held, b""
            if not self._transport.is_closing():
                self._transport.write(held)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
