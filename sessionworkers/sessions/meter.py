"""How busy this worker is with real requests: work in flight, measured throughput, the wait that follows. No I/O.

Work is in the unit of costs. Throughput is the work that was finished over the time in which at least one request was
in flight, the past fading with a half-life; open sessions count in neither, so an idle session never makes anyone wait.
"""

from __future__ import annotations

import math
from typing import Final

HALF_LIFE: Final = 60.0
"""Seconds of busy time after which a measurement counts half."""

SOON: Final = 0.05
"""Seconds of busy time before which nothing has been measured yet."""


class Meter:
    """``most_wait`` None: nothing is refused. ``now`` in seconds on one clock."""

    def __init__(self, most_wait: float | None = None) -> None:
        self.most_wait = most_wait
        self.in_flight = 0
        self.work = 0.0
        self.rejected = 0
        self._done = 0.0
        self._busy = 0.0
        self._since = 0.0

    def begin(self, cost: float, now: float) -> None:
        """A request of ``cost`` goes to the app."""
        self._advance(now)
        self.in_flight += 1
        self.work += cost

    def finish(self, cost: float, now: float, *, served: bool = True) -> None:
        """It is over. Not ``served``: it failed or was cut off, and says nothing of what the worker can do."""
        self._advance(now)
        self.in_flight -= 1
        self.work = self.work - cost if self.in_flight else 0.0
        if served:
            self._done += cost

    def throughput(self) -> float | None:
        """Work a second; None as long as too little was measured."""
        return self._done / self._busy if self._busy > SOON and self._done > 0 else None

    def wait(self) -> float:
        """Seconds until the work in flight is done, at the measured pace; 0 before anything was measured."""
        pace = self.throughput()
        return self.work / pace if pace else 0.0

    def refuses(self) -> int | None:
        """Seconds to come back after, if a new request would wait too long; counted as rejected."""
        if self.most_wait is None:
            return None
        wait = self.wait()
        if wait <= self.most_wait:
            return None
        self.rejected += 1
        return max(1, math.ceil(wait - self.most_wait - 1e-6))

    def _advance(self, now: float) -> None:
        if self.in_flight:
            passed = max(0.0, now - self._since)
            fade = 0.5 ** (passed / HALF_LIFE)
            self._done *= fade
            self._busy = self._busy * fade + passed
        self._since = now
