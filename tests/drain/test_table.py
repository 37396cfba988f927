"""What holds a draining worker back, row by row."""

from __future__ import annotations

import math

import pytest

from sessionworkers.affinity.lifecycle import State
from sessionworkers.affinity.rules import Rule
from sessionworkers.affinity.words import parse_rule
from sessionworkers.worker.drain import LINGER, Drain, End, Held, Phase, session_holds

TIMES = {"retry_window": 300.0, "return_window": 300.0, "idle": 3_600.0}
RULE = parse_rule("path:/s/{id} start=POST:/s end=DELETE:/s/{id}", "r", **TIMES)
SHORT = parse_rule("path:/s/{id} start=POST:/s end=DELETE:/s/{id} window=5 idle=7", "r", **TIMES)


@pytest.mark.parametrize(
    ("state", "rule", "in_use", "until"),
    [
        (State.IMPLICIT, RULE, True, math.inf),
        (State.ENDED, RULE, True, math.inf),
        (State.OPEN, RULE, False, math.inf),
        (State.IMPLICIT, RULE, False, 100.0 + 120.0),
        (State.IMPLICIT, SHORT, False, 100.0 + 7.0),
        (State.LEARNED, RULE, False, 50.0 + 120.0),
        (State.LEARNED, SHORT, False, 50.0 + 7.0),
        (State.ENDED, RULE, False, 100.0 + 120.0),
        (State.ENDED, SHORT, False, 100.0 + 5.0),
        (State.FAILED, SHORT, False, 100.0 + 5.0),
        (State.ENDING, SHORT, False, 100.0 + 5.0),
        (State.DROPPED, RULE, False, -math.inf),
    ],
)
def test_until_when_a_session_holds(state: State, rule: Rule, in_use: bool, until: float) -> None:
    assert session_holds(state, rule, in_use=in_use, made=50.0, last=100.0, idle=120.0) == until


def test_every_state_has_a_row() -> None:
    for state in State:
        session_holds(state, RULE, in_use=False, made=0.0, last=0.0, idle=1.0)


NOTHING = Held()
BEGUN = 1_000.0
LATER = BEGUN + LINGER + 1


@pytest.mark.parametrize(
    ("held", "now", "end"),
    [
        (NOTHING, BEGUN, End.DONE),
        (Held(requests=1), LATER, None),
        (Held(hopped=1), LATER, None),
        (Held(sessions=math.inf), LATER, None),
        (Held(sessions=LATER + 1), LATER, None),
        (Held(sessions=LATER), LATER, End.DONE),
        (Held(connections=3), BEGUN, None),
        (Held(connections=3), LATER, End.DONE),
        (Held(requests=1, hopped=1, sessions=math.inf), BEGUN + 300.0, End.DEADLINE),
        (NOTHING, BEGUN + 300.0, End.DEADLINE),
    ],
)
def test_when_a_drain_is_over(held: Held, now: float, end: End | None) -> None:
    drain = Drain()
    assert drain.begin(BEGUN, 300.0)
    assert drain.over(held, now) is end
    assert drain.phase is (Phase.DRAINING if end is None else Phase.ENDING)


def test_a_server_that_stops_waits_for_no_idle_connection_and_for_sessions_if_told_so() -> None:
    drain = Drain()
    drain.begin(BEGUN, 300.0, all=True)
    assert drain.over(Held(connections=3, sessions=math.inf), BEGUN) is None
    drain.begin(BEGUN, 300.0, sessions=False)
    assert drain.over(Held(connections=3, sessions=math.inf), BEGUN) is End.DONE


def test_a_second_order_only_brings_the_deadline_forward() -> None:
    drain = Drain()
    assert drain.begin(BEGUN, math.inf)
    assert not drain.begin(BEGUN + 1, 5.0) and drain.deadline == BEGUN + 6
    assert not drain.begin(BEGUN + 2, 60.0) and drain.deadline == BEGUN + 6
    assert drain.since == BEGUN and drain.over(Held(requests=1), BEGUN + 6) is End.DEADLINE


def test_giving_way_and_taking_it_back() -> None:
    drain = Drain()
    assert not drain.give_way(False) and not drain.away
    assert drain.give_way(True) and drain.away and not drain.give_way(True)
    assert drain.over(NOTHING, BEGUN) is None, "one that gives way does not leave"
    assert drain.give_way(False) and not drain.away
    drain.begin(BEGUN, 1.0)
    assert not drain.give_way(True) and not drain.give_way(False)


def test_it_says_what_it_waits_for() -> None:
    drain = Drain()
    drain.begin(BEGUN, 300.0)
    assert drain.holding(Held(2, 1, BEGUN + 7.0, 3), BEGUN) == [
        "2 open requests",
        "1 open requests of other workers",
        "sessions for 7 s",
        "3 idle connections",
    ]
    assert drain.holding(Held(sessions=math.inf), BEGUN) == ["sessions"]
