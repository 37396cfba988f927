"""The life of a session, checked as the table that it is."""

from __future__ import annotations

import itertools
import math

import pytest

from sessionworkers.affinity import lifecycle
from sessionworkers.affinity.lifecycle import Event, State, deadline, return_window, start_outcome, step
from sessionworkers.affinity.rules import FailedStart, Rule

RULE = Rule("r", (), retry_window=300.0, return_window=200.0, idle=1000.0)

STEPS = [
    (State.LEARNED, Event.USED, State.IMPLICIT),
    (State.IMPLICIT, Event.USED, State.IMPLICIT),
    (State.ENDED, Event.USED, State.ENDED),
    (State.STARTING, Event.START_OK, State.OPEN),
    (State.OPEN, Event.START_OK, State.OPEN),  # a retried start of an open session
    (State.OPEN, Event.START_FAILED, State.OPEN),  # which the app may refuse: the session is open all the same
    (State.STARTING, Event.START_FAILED, State.FAILED),
    (State.STARTING, Event.START_RELEASED, State.DROPPED),
    (State.FAILED, Event.START_OK, State.OPEN),
    (State.FAILED, Event.END_OK, State.ENDED),  # the clean-up close
    (State.ENDING, Event.END_OK, State.ENDED),  # a close before its start
    (State.ENDING, Event.END_REFUSED, State.DROPPED),
    (State.OPEN, Event.END_OK, State.ENDED),
    (State.OPEN, Event.END_REFUSED, State.OPEN),
    (State.ENDED, Event.END_OK, State.ENDED),
    (State.ENDED, Event.END_REFUSED, State.ENDED),
    (State.ENDED, Event.START_FAILED, State.ENDED),
    (State.IMPLICIT, Event.END_OK, State.ENDED),
    (State.OPEN, Event.ENDED_BY_APP, State.ENDED),
    (State.STARTING, Event.DISCARDED, State.DROPPED),
    (State.ENDED, Event.DISCARDED, State.ENDED),
]


@pytest.mark.parametrize(("state", "event", "after"), STEPS)
def test_step(state: State, event: Event, after: State) -> None:
    assert step(state, event) is after


def test_without_start_and_end_an_open_session_is_implicit() -> None:
    assert step(State.STARTING, Event.START_OK, has_lifetime=False) is State.IMPLICIT


def test_nothing_leads_out_of_dropped_and_only_a_start_out_of_ended() -> None:
    for event in Event:
        assert step(State.DROPPED, event) is State.DROPPED
        if event is not Event.START_OK:
            assert step(State.ENDED, event) is State.ENDED


DEADLINES = [
    (State.OPEN, math.inf),
    (State.ENDED, 50.0 + 300.0),
    (State.FAILED, 50.0 + 300.0),
    (State.STARTING, 50.0 + 300.0),
    (State.ENDING, 50.0 + 300.0),
    (State.LEARNED, 10.0 + 200.0),
    (State.IMPLICIT, 50.0 + 1000.0),
    (State.DROPPED, -math.inf),
]


@pytest.mark.parametrize(("state", "when"), DEADLINES)
def test_deadline(state: State, when: float) -> None:
    assert deadline(state, RULE, in_use=False, made=10.0, last=50.0) == when


@pytest.mark.parametrize("state", list(State))
def test_a_session_in_use_never_expires(state: State) -> None:
    assert deadline(state, RULE, in_use=True, made=10.0, last=50.0) == math.inf


def test_every_state_has_a_row() -> None:
    assert {state for state, _ in DEADLINES} == set(State)


def test_the_return_window_is_the_smaller_of_the_two() -> None:
    assert return_window(Rule("r", (), return_window=300.0, idle=40.0)) == 40.0
    assert return_window(Rule("r", (), return_window=300.0, idle=86_400.0)) == 300.0


@pytest.mark.parametrize(
    ("ok", "policy", "alone", "event"),
    [
        (True, FailedStart.KEEP, True, Event.START_OK),
        (True, FailedStart.RELEASE, False, Event.START_OK),
        (False, FailedStart.KEEP, True, Event.START_FAILED),
        (False, FailedStart.RELEASE, True, Event.START_RELEASED),
        (False, FailedStart.RELEASE, False, Event.START_FAILED),  # something else came for it: kept for the window
    ],
)
def test_start_outcome(ok: bool, policy: FailedStart, alone: bool, event: Event) -> None:
    assert start_outcome(ok, failed_start=policy, alone=alone) is event


def test_the_table_holds_no_step_that_stays() -> None:
    for (state, event), after in lifecycle.TABLE.items():
        assert state is not after, f"{state} on {event} need not be in the table"


def test_in_any_order_of_events_an_end_by_the_app_is_final_until_a_start() -> None:
    quiet = [Event.USED, Event.START_FAILED, Event.END_OK, Event.END_REFUSED]
    for events in itertools.permutations(quiet):
        state = step(State.OPEN, Event.ENDED_BY_APP)
        for event in events:
            state = step(state, event)
        assert state is State.ENDED
