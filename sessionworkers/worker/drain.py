"""What holds a draining worker back, as a table. No I/O and no clock: ``now`` is an argument.

Rule 1: everything that decides how long a drain lasts stands in this file.
Rule 2: this file does not know what a connection, a signal or a manager is.

=======================================================  ==============================================================
what the worker has                                      it holds the worker back
=======================================================  ==============================================================
a request, stream or WebSocket open, its own or hopped   until it ends
a stream that it relays to another worker                until it ends: it would die with this worker
a session in use, or open under a rule with start, end   until it ends
a session used, or told to a client, a while ago         for the idle time of a drain since (--drain-idle), and no
                                                         longer than its claim would live anyway
a session that has ended (or whose start failed)         for its retry window, at most the idle time of a drain
an idle kept-alive connection                            LINGER seconds: it answers its next request with Connection:
                                                         close; closing it at once could lose one that is on its way. A
                                                         host that can hand it to another worker does so instead, last
nothing                                                  it leaves
=======================================================  ==============================================================

At the deadline it leaves whatever it has. When the whole server stops without a time for sessions, they hold nothing
back, and when it stops at all idle connections do not.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from sessionworkers.affinity.lifecycle import State, return_window
from sessionworkers.affinity.rules import Rule

LINGER = 10.0
"""Seconds. Pooled clients that have been silent for longer seldom speak just then; uvicorn's own timer ends them so."""


class Phase(enum.Enum):
    SERVING = "serving"
    YIELDING = "yielding"
    """Takes no new sessions while others do; serves everything else as ever."""
    DRAINING = "draining"
    ENDING = "ending"


class End(enum.Enum):
    """Why a drain is over."""

    DONE = "nothing holds it back"
    DEADLINE = "its time is up"


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker has: requests accepted here (relayed ones too), requests of other workers, idle connections;
    ``sessions``: until when sessions hold it back, ``-inf`` none, ``inf`` with no end in sight."""

    requests: int = 0
    hopped: int = 0
    sessions: float = -math.inf
    connections: int = 0


def session_holds(state: State, rule: Rule, *, in_use: bool, made: float, last: float, idle: float) -> float:
    """Until when a session holds the worker back; ``inf``: no end in sight, ``-inf``: not at all.

    ``made``: when it came to be; ``last``: when its last request ended; ``idle``: the idle time of a drain, seconds.
    """
    if in_use or state is State.OPEN:
        return math.inf
    if state in (State.ENDED, State.FAILED, State.STARTING, State.ENDING):
        return last + min(rule.retry_window, idle)
    if state is State.LEARNED:
        return made + min(return_window(rule), idle)
    if state is State.IMPLICIT:
        return last + min(rule.idle, idle)
    if state is State.DROPPED:
        return -math.inf
    raise AssertionError(f"no row for {state}")


class Drain:
    """One worker's way out. An order that makes no sense in its phase changes nothing."""

    def __init__(self) -> None:
        self.phase = Phase.SERVING
        self.since = 0.0
        self.deadline = math.inf
        self.all = False
        """The whole server stops: nobody else takes new sessions."""
        self.sessions = True
        """Sessions are waited for."""

    @property
    def away(self) -> bool:
        """New sessions belong to others."""
        return self.phase is not Phase.SERVING

    def give_way(self, on: bool) -> bool:
        """Leave new sessions to others, or take them again; False if that changes nothing."""
        before, after = (Phase.SERVING, Phase.YIELDING) if on else (Phase.YIELDING, Phase.SERVING)
        if self.phase is not before:
            return False
        self.phase = after
        return True

    def begin(self, now: float, timeout: float, *, all: bool = False, sessions: bool = True) -> bool:
        """Drain for ``timeout`` seconds. A second order may only bring the deadline forward; True for the first."""
        first = self.phase in (Phase.SERVING, Phase.YIELDING)
        if first:
            self.phase, self.since = Phase.DRAINING, now
        self.deadline = min(self.deadline, now + timeout)
        self.all = self.all or all
        self.sessions = self.sessions and sessions
        return first

    def over(self, held: Held, now: float) -> End | None:
        """Whether it may leave. Once it says so it is ENDING, and this is not asked again."""
        if self.phase is not Phase.DRAINING:
            return None
        end = End.DEADLINE if now >= self.deadline else None if self.holding(held, now) else End.DONE
        if end is not None:
            self.phase = Phase.ENDING
        return end

    def holding(self, held: Held, now: float) -> list[str]:
        """What holds it back, in words."""
        reasons = []
        if held.requests:
            reasons.append(f"{held.requests} open requests")
        if held.hopped:
            reasons.append(f"{held.hopped} open requests of other workers")
        if self.sessions and held.sessions > now:
            reasons.append("sessions" if held.sessions == math.inf else f"sessions for {held.sessions - now:.0f} s")
        if held.connections and not self.all and now < self.since + LINGER:
            reasons.append(f"{held.connections} idle connections")
        return reasons
