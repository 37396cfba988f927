"""The life of a claimed session as a table. No I/O and no clock: ``now`` is an argument.

Rule 1: everything that decides how long a claim lives stands in this file.
Rule 2: this file does not know what a request, a worker or a claim file is.

A session is born in one of four states: STARTING (a start claims it), ENDING (an end of an ID that nobody started),
LEARNED (a reply handed the ID out) or IMPLICIT (claimed on sight, or used without a start). Outcomes of requests move
it by `TABLE`; a pair that the table does not hold leaves it where it is. While a request, stream or WebSocket of it is
open it never expires. Otherwise `deadline` says when (DESIGN, *Lifetime*):

=========================================  ===============================================================
state                                      the claim ends
=========================================  ===============================================================
in use, whatever the state                 not now
OPEN (a rule with start and end)           not now: one retry window after the last request that follows its end
ENDED                                      one retry window after its last request
FAILED start                               one retry window after its last request (the clean-up close comes here)
LEARNED, never sent back                   min(return window, idle) after it was made
IMPLICIT                                   idle after its last request ended
DROPPED                                    at once
=========================================  ===============================================================
"""

from __future__ import annotations

import enum
import math
from typing import Final

from sessionworkers.affinity.rules import FailedStart, Rule


class State(enum.Enum):
    """Where a session is in its life."""

    STARTING = "starting"
    OPEN = "open"
    FAILED = "failed start"
    ENDING = "ending, never started"
    ENDED = "ended"
    LEARNED = "learned, not yet sent back"
    IMPLICIT = "implicit"
    DROPPED = "dropped"


class Event(enum.Enum):
    """What happened to a session."""

    USED = "a request named it"
    START_OK = "a start was answered 2xx"
    START_FAILED = "a start was not answered 2xx"
    START_RELEASED = "a start failed, the rule says release, and nothing else came for it"
    END_OK = "an end was answered 2xx"
    END_REFUSED = "an end was not answered 2xx"
    ENDED_BY_APP = "the app ended it"
    DISCARDED = "the app says that the start made nothing"


_S, _E = State, Event

TABLE: Final[dict[tuple[State, Event], State]] = {
    (_S.LEARNED, _E.USED): _S.IMPLICIT,
    # starts
    (_S.STARTING, _E.START_OK): _S.OPEN,
    (_S.IMPLICIT, _E.START_OK): _S.OPEN,
    (_S.LEARNED, _E.START_OK): _S.OPEN,
    (_S.FAILED, _E.START_OK): _S.OPEN,
    (_S.ENDING, _E.START_OK): _S.OPEN,
    (_S.ENDED, _E.START_OK): _S.OPEN,  # only where the rule lets late starts pass
    (_S.STARTING, _E.START_FAILED): _S.FAILED,
    (_S.STARTING, _E.START_RELEASED): _S.DROPPED,
    (_S.FAILED, _E.START_RELEASED): _S.DROPPED,
    # ends
    (_S.STARTING, _E.END_OK): _S.ENDED,
    (_S.OPEN, _E.END_OK): _S.ENDED,
    (_S.FAILED, _E.END_OK): _S.ENDED,
    (_S.ENDING, _E.END_OK): _S.ENDED,
    (_S.LEARNED, _E.END_OK): _S.ENDED,
    (_S.IMPLICIT, _E.END_OK): _S.ENDED,
    (_S.ENDING, _E.END_REFUSED): _S.DROPPED,
    # the app's own word
    (_S.STARTING, _E.ENDED_BY_APP): _S.ENDED,
    (_S.OPEN, _E.ENDED_BY_APP): _S.ENDED,
    (_S.FAILED, _E.ENDED_BY_APP): _S.ENDED,
    (_S.ENDING, _E.ENDED_BY_APP): _S.ENDED,
    (_S.LEARNED, _E.ENDED_BY_APP): _S.ENDED,
    (_S.IMPLICIT, _E.ENDED_BY_APP): _S.ENDED,
    (_S.STARTING, _E.DISCARDED): _S.DROPPED,
    (_S.IMPLICIT, _E.DISCARDED): _S.DROPPED,
    (_S.LEARNED, _E.DISCARDED): _S.DROPPED,
    (_S.OPEN, _E.DISCARDED): _S.DROPPED,
    (_S.FAILED, _E.DISCARDED): _S.DROPPED,
}


def step(state: State, event: Event, *, has_lifetime: bool = True) -> State:
    """The state after ``event``. Under a rule without start and end (``has_lifetime`` false) OPEN is IMPLICIT."""
    after = TABLE.get((state, event), state)
    return State.IMPLICIT if after is State.OPEN and not has_lifetime else after


def start_outcome(ok: bool, *, failed_start: FailedStart, alone: bool) -> Event:
    """What a start's reply means. ``alone``: no other request came for the session so far."""
    if ok:
        return Event.START_OK
    if failed_start is FailedStart.RELEASE and alone:
        return Event.START_RELEASED
    return Event.START_FAILED


def deadline(state: State, rule: Rule, *, in_use: bool, made: float, last: float) -> float:
    """When the claim ends (same clock as ``made`` and ``last``, seconds); ``inf`` for not now.

    ``made``: when the session came to be; ``last``: when its last request ended.
    """
    if in_use:
        return math.inf
    if state is State.OPEN:
        return math.inf
    if state in (State.ENDED, State.FAILED, State.STARTING, State.ENDING):
        # STARTING and ENDING without a request: it broke off before its outcome was known, as a failed start does.
        return last + rule.retry_window
    if state is State.LEARNED:
        return made + return_window(rule)
    if state is State.IMPLICIT:
        return last + rule.idle
    if state is State.DROPPED:
        return -math.inf
    raise AssertionError(f"no row for {state}")


def return_window(rule: Rule) -> float:
    """How long an ID that a reply handed out may wait for its first request, seconds."""
    return min(rule.return_window, rule.idle)
