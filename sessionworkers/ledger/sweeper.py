"""The sweeper: a background task of each worker that ends what has run out.

It sleeps until the earliest deadline, 5 seconds at most, and never waits for another request to arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from sessionworkers.ledger.ledger import Ledger

log = logging.getLogger("sessionworkers")

LONGEST_SLEEP = 5.0
"""Seconds. The page that worker sessions come from sweeps every 5 s; a clock that jumps costs no more than that."""

SHORTEST_SLEEP = 0.02
"""Seconds between two passes when many sessions run out one after another, so that requests get their turn."""


class Sweeper:
    """Runs `Ledger.sweep` on the worker's own loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._earlier = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task. Call on the worker's loop."""
        self._ledger.book.on_earlier = self._earlier.set
        self._task = asyncio.get_running_loop().create_task(self._run(), name="sessionworkers-sweeper")

    async def stop(self) -> None:
        """Stop the task; what has not run out stays."""
        self._ledger.book.on_earlier = None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        book = self._ledger.book
        while True:
            self._earlier.clear()
            delay = min(max(book.next_deadline() - book.clock(), SHORTEST_SLEEP), LONGEST_SLEEP)
            # Not wait_for: before Python 3.12 it loses a cancellation that comes as the event is set, and `stop` hangs.
            timer = asyncio.get_running_loop().call_later(delay, self._earlier.set)
            try:
                await self._earlier.wait()
            finally:
                timer.cancel()
            try:
                await self._ledger.sweep(book.clock())
            except Exception:  # one session that cannot be ended must not stop the others
                log.exception("sweeping sessions failed; it goes on")
