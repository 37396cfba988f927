"""Where a new session goes, as a pure choice over what all workers have published. No I/O.

What a worker published and what is on its way to it (reserved by whoever accepted, see `members.load`) count alike, so
a burst that many workers place at once spreads evenly.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """One worker as it stands: ``load`` and ``sessions`` with reservations; ``cap`` 0 means none."""

    uid: str
    load: float
    sessions: int
    cap: int = 0
    draining: bool = False

    @property
    def room(self) -> bool:
        """True if it may take one session more."""
        return not self.draining and (self.cap == 0 or self.sessions < self.cap)


def by_load(standings: Sequence[Standing], me: str) -> list[Standing]:
    """The workers with room, the least load first, then the fewest sessions.

    Ties go round from ``me``: what costs no hop first, and workers that choose at the same moment choose differently.
    """
    return _ordered(standings, me, lambda each: (each.load, each.sessions))


def by_sessions(standings: Sequence[Standing], me: str) -> list[Standing]:
    """The workers with room, the fewest sessions first, then the least load; ties as `by_load`."""
    return _ordered(standings, me, lambda each: (each.sessions, each.load))


def _ordered(
    standings: Sequence[Standing], me: str, weight: Callable[[Standing], tuple[float, float]]
) -> list[Standing]:
    uids = [each.uid for each in standings]
    first = uids.index(me) if me in uids else 0
    turned = [*standings[first:], *standings[:first]]
    return sorted((each for each in turned if each.room), key=weight)


class Policy(enum.Enum):
    """Where a recognised start begins (``--placement``)."""

    LEAST_SESSIONS = "least-sessions"
    LEAST_LOAD = "least-load"
    ACCEPT = "accept"
    """Where it arrives."""


NEAR = 1
"""Within this of the emptiest a worker keeps what it accepted: the connection, too, stays where its session is."""


def places(standings: Sequence[Standing], me: str, policy: Policy) -> list[str]:
    """The workers to try for a new session, best first. ``me``, if it takes any, comes first while it is near the best.

    With `Policy.ACCEPT` too: for a worker that may not keep what it accepts.
    """
    ordered = by_load(standings, me) if policy is Policy.LEAST_LOAD else by_sessions(standings, me)
    mine = next((each for each in ordered if each.uid == me), None)
    if mine is not None:
        best = ordered[0]
        near = mine.load <= best.load + NEAR if policy is Policy.LEAST_LOAD else mine.sessions <= best.sessions + NEAR
        if near or policy is Policy.ACCEPT:
            ordered.remove(mine)
            ordered.insert(0, mine)
    return [each.uid for each in ordered]
