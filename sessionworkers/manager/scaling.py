"""How many workers the load asks for (``--max-workers``), from what the workers report. No clock: ``now`` comes in.

======  =========================================================================================
grow    every worker has been full for GROW_AFTER seconds, and no worker is starting
shrink  a worker has held nothing for SHRINK_AFTER seconds, and the others are not full without it
======  =========================================================================================

Shrinking drains the worker with the fewest sessions like any other scale-down: whatever it holds is served to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GROW_AFTER = 3.0
SHRINK_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker holds: ``sessions``; ``requests`` in flight; ``busy``: share of one CPU it used in the last
    seconds; ``full``: it takes no more sessions; ``idle``: nothing would hold it back if it drained now."""

    sessions: int = 0
    requests: int = 0
    busy: float = 0.0
    full: bool = False
    idle: bool = False


@dataclass
class Scaling:
    """``floor`` to ``ceiling`` workers; a worker is full at its cap of sessions or at ``load`` (share of a CPU)."""

    floor: int
    ceiling: int
    load: float = 0.8
    due: float | None = None
    """When `change` would decide, if nothing changes."""
    _full_since: float | None = None
    _idle_since: float | None = None

    def change(self, serving: Sequence[Report], target: int, settled: bool, now: float) -> int:
        """+1, -1 or 0. ``settled``: all workers that count serve already."""
        self.due = None
        full = [report for report in serving if self._full(report)]
        if not settled or len(serving) < target:
            self._full_since = self._idle_since = None
            return 0
        if len(full) == len(serving) and target < self.ceiling:
            self._idle_since = None
            self._full_since = now if self._full_since is None else self._full_since
            return self._decide(self._full_since + GROW_AFTER, now, +1)
        self._full_since = None
        if target > self.floor and not full and any(report.idle for report in serving):
            self._idle_since = now if self._idle_since is None else self._idle_since
            return self._decide(self._idle_since + SHRINK_AFTER, now, -1)
        self._idle_since = None
        return 0

    def _decide(self, at: float, now: float, change: int) -> int:
        if now < at:
            self.due = at
            return 0
        self._full_since = self._idle_since = None
        return change

    def _full(self, report: Report) -> bool:
        return report.full or report.busy >= self.load
