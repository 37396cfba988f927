"""The plan, step by step, without a process or a clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionworkers.manager.actions import Action, Drain, Finish, Kill, Note, Start, Terminate, Yield
from sessionworkers.manager.plan import BEAT_MARGIN, KILL_MARGIN, MAX_PAUSE, QUICK, SERVED_PAUSE, STABLE, Fleet
from sessionworkers.manager.slots import State


def up(workers: int, *, graceful: float | None = 30.0, healthcheck: float = 1e6) -> Fleet:
    """A fleet of workers that serve since 0.0, keys from 1; silence is no matter unless ``healthcheck`` says so."""
    fleet = Fleet(workers, graceful=graceful, healthcheck=healthcheck)
    fleet.step(0.0)
    for key in list(fleet.slots):
        fleet.serving(key, 0.0)
    assert fleet.step(0.0) == []
    return fleet


def kinds(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


def test_starts_what_is_missing_once() -> None:
    fleet = Fleet(3)
    assert fleet.step(0.0) == [Start(1), Start(2), Start(3)]
    assert fleet.step(0.0) == []
    assert fleet.due(0.0) is None  # starting workers have all the time they need


def test_a_worker_that_died_after_a_while_is_replaced_at_once() -> None:
    fleet = up(2)
    fleet.exited(1, -9, STABLE)
    assert fleet.step(STABLE) == [Start(3)]


def test_a_worker_that_left_by_itself_is_no_failure() -> None:
    fleet = up(2)
    for key in (1, 2):
        fleet.exited(key, 0, 0.1)
    assert fleet.step(0.1) == [Start(3), Start(4)]


def test_a_leaving_worker_gets_its_successor_before_it_is_gone() -> None:
    fleet = up(2)
    fleet.leaving(1, 1.0)
    assert fleet.step(1.0) == [Start(3)]
    fleet.serving(3, 2.0)
    fleet.exited(1, 0, 3.0)
    assert fleet.step(3.0) == []


def test_early_crashes_are_answered_by_pauses_that_double_and_end() -> None:
    fleet = up(1)
    now = 0.0
    pauses: list[float] = []
    for _ in range(9):
        (key,) = fleet.slots
        fleet.exited(key, -11, now)
        due = fleet.due(now)
        pauses.append(0.0 if due is None else due - now)
        now += pauses[-1]
        assert kinds(fleet.step(now)) == [Start]
        (key,) = fleet.slots
        fleet.serving(key, now)
    assert pauses == [0.0, 0.25, *[SERVED_PAUSE] * 7]
    (key,) = fleet.slots
    fleet.exited(key, -11, now + STABLE)  # it was stable this time: the count begins anew
    assert kinds(fleet.step(now + STABLE)) == [Start]


def test_failures_to_start_are_answered_by_longer_pauses() -> None:
    fleet = up(1)
    fleet.exited(1, -9, STABLE)
    now = STABLE
    pauses: list[float] = []
    for _ in range(8):
        assert kinds(fleet.step(now)) == [Start]
        fleet.exited(max(fleet.slots), 1, now)
        due = fleet.due(now)
        pauses.append(0.0 if due is None else due - now)
        now += pauses[-1]
    assert pauses == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, MAX_PAUSE, MAX_PAUSE]


def test_nothing_starts_within_a_pause() -> None:
    fleet = up(2)
    fleet.exited(1, -9, 1.0)
    assert fleet.step(1.0) == [Start(3)]
    fleet.exited(2, -9, 1.0)
    assert fleet.step(1.1) == []
    assert fleet.due(1.1) == 1.25
    assert fleet.step(1.25) == [Start(4)]


def test_startup_failure_of_the_first_generation_ends_the_server() -> None:
    fleet = Fleet(2)
    fleet.step(0.0)
    fleet.exited(1, 3, 1.0)
    actions = fleet.step(1.0)
    assert kinds(actions) == [Note, Terminate]
    assert fleet.due(1.0) == 1.0 + QUICK
    fleet.exited(2, -15, 1.1)
    assert fleet.step(1.1) == [Finish(3)]


def test_crashes_before_serving_end_the_server_at_the_limit() -> None:
    fleet = Fleet(2)
    now = 0.0
    failures = 0
    while not fleet.stopping:
        now += MAX_PAUSE
        fleet.step(now)
        fleet.exited(min(fleet.slots), -11, now)
        failures += 1
    assert failures == 2 + 4
    assert fleet.code == 3


def test_once_served_a_worker_that_cannot_start_is_tried_for_ever() -> None:
    fleet = up(2)
    now = STABLE
    fleet.exited(1, -9, now)
    for _ in range(50):
        assert kinds(fleet.step(now)) == [Start]
        fleet.exited(max(fleet.slots), 3, now)
        now += MAX_PAUSE
    assert not fleet.stopping and 2 in fleet.slots


def test_stop_is_told_once_and_ends_when_all_are_gone() -> None:
    fleet = up(2)
    fleet.stop(5.0)
    assert fleet.step(5.0) == [Terminate(1), Terminate(2)]
    fleet.stop(6.0)
    assert fleet.step(6.0) == []
    fleet.exited(1, 0, 7.0)
    assert fleet.step(7.0) == []
    fleet.exited(2, 0, 7.0)
    assert fleet.step(7.0) == [Finish(0)]


@pytest.mark.parametrize(("graceful", "by"), [(30.0, 5.0 + 30.0 + KILL_MARGIN), (None, None)])
def test_a_worker_that_does_not_stop_is_killed_if_there_is_a_limit(graceful: float | None, by: float | None) -> None:
    fleet = up(1, graceful=graceful)
    fleet.stop(5.0)
    fleet.step(5.0)
    assert by is None or fleet.due(5.0) == by
    if by is not None:
        assert fleet.step(by - 0.1) == []
        assert kinds(fleet.step(by)) == [Kill]
        assert fleet.step(by) == [] and fleet.due(by) is None
        fleet.exited(1, -9, by)
        assert fleet.step(by) == [Finish(0)]


def test_a_second_interrupt_kills_at_once() -> None:
    fleet = up(2)
    fleet.stop(1.0)
    fleet.step(1.0)
    fleet.stop_at_once(2.0, code=130)
    assert kinds(fleet.step(2.0)) == [Kill, Kill]
    for key in (1, 2):
        fleet.exited(key, -9, 2.0)
    assert fleet.step(2.0) == [Finish(130)]


def test_a_quick_stop_shortens_one_that_is_under_way() -> None:
    fleet = up(1)
    fleet.stop(1.0)
    fleet.stop(2.0, limit=QUICK)
    fleet.step(2.0)
    assert fleet.due(2.0) == 2.0 + QUICK


def test_restart_replaces_one_at_a_time_new_first_oldest_out() -> None:
    fleet = up(2)
    fleet.restart()
    assert fleet.step(20.0) == [Start(3)]
    assert fleet.step(20.5) == []  # both old ones serve until the new one does
    fleet.serving(3, 21.0)
    assert fleet.step(21.0) == [Yield(1), Yield(2), Drain(1, 300.0)]  # new sessions go to the new one from now on
    assert fleet.step(21.0) == [Start(4)]  # a slow drain does not hold the restart up
    fleet.serving(4, 22.0)
    assert fleet.step(22.0) == [Drain(2, 300.0)]
    fleet.exited(1, 0, 22.5)
    fleet.exited(2, 0, 22.5)
    assert fleet.step(23.0) == []
    assert {slot.state for slot in fleet.slots.values()} == {State.SERVING}


def test_a_restart_within_a_restart_drops_what_is_still_starting() -> None:
    fleet = up(2)
    fleet.restart()
    fleet.step(1.0)
    fleet.restart()
    assert fleet.step(2.0) == [Terminate(3)]  # of yesterday's release, and serves nobody
    actions = fleet.step(2.0)
    for _ in range(10):
        for action in actions:
            if isinstance(action, Start):
                fleet.serving(action.key, 4.0)
        if not (actions := fleet.step(4.0)):
            break
    assert sorted(slot.generation for slot in fleet.slots.values() if slot.state is State.SERVING) == [3, 3]


@pytest.mark.parametrize(("code", "attempts"), [(3, 1), (1, 6)])
def test_a_restart_that_cannot_start_keeps_the_old_workers(code: int, attempts: int) -> None:
    fleet = up(2)
    fleet.restart()
    now = 1.0
    for _ in range(attempts):
        assert kinds(fleet.step(now)) == [Start]
        fleet.exited(max(fleet.slots), code, now)
        now += MAX_PAUSE
    (note,) = fleet.step(now)
    assert isinstance(note, Note) and note.bad and "2 stay" in note.text
    assert sorted(fleet.slots) == [1, 2] and not fleet.stopping


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["serve", "die", "leave", "restart", "more", "fewer", "beat", "wait"]), st.integers(0, 9)
    ),
    max_size=60,
)


@settings(deadline=None)  # a busy machine is no fault of the plan
@given(st.integers(1, 4), EVENTS)
def test_whatever_happens_the_fleet_ends_as_wanted(target: int, events: list[tuple[str, int]]) -> None:
    """Never more starting or serving than one beyond the target, each told once, and in the end the target serves."""
    fleet = Fleet(target, graceful=1.0)
    fleet.step(0.0)
    fleet.serving(1, 0.0)
    now, told, running = 0.0, set[int](), set(fleet.slots)

    def settle() -> None:
        while not (fleet.stopping and not running) and (actions := fleet.step(now)):
            for action in actions:
                if isinstance(action, Start):
                    running.add(action.key)
                elif isinstance(action, Terminate | Drain):
                    assert action.key in running and action.key not in told
                    told.add(action.key)
                elif isinstance(action, Kill):
                    running.remove(action.key)
                    fleet.exited(action.key, -9, now)
        counted = [slot for slot in fleet.slots.values() if slot.state is not State.DRAINING]
        assert len(counted) <= fleet.target + 1
        assert running == set(fleet.slots)

    for what, number in events:
        key = sorted(running)[number % len(running)] if running else 0
        if what == "serve" and key and fleet.slots[key].state is State.STARTING:
            fleet.serving(key, now)
        elif what == "die" and key:
            running.discard(key)
            fleet.exited(key, number - 5, now)
        elif what == "leave" and key:
            fleet.leaving(key, now)
        elif what == "beat" and key:
            fleet.heard(key, now)
        elif what == "restart":
            fleet.restart()
        elif what in ("more", "fewer"):
            fleet.resize(1 if what == "more" else -1)
        now += number / 4
        settle()
        if fleet.stopping:  # a restart in which nobody served any more, old or new
            assert fleet.code == 3 and not fleet.served
            return
    for _ in range(200):
        now += 1.0
        for key, slot in list(fleet.slots.items()):
            if slot.state is State.DRAINING:
                running.discard(key)
                fleet.exited(key, 0, now)
            else:
                fleet.serving(key, now)
        settle()
    states = [(slot.state, slot.generation) for slot in fleet.slots.values()]
    assert states == [(State.SERVING, fleet.generation)] * fleet.target
    fleet.stop(now)
    fleet.step(now)
    for key in list(fleet.slots):
        fleet.exited(key, 0, now)
    assert fleet.step(now) == [Finish(0)]


def test_more_and_fewer_workers() -> None:
    fleet = up(2)
    assert fleet.resize(+1)
    assert fleet.step(1.0) == [Start(3)]
    fleet.serving(3, 2.0)
    assert fleet.resize(-1)
    assert fleet.step(3.0) == [Drain(3, 300.0)]  # the newest, of those with as few sessions
    fleet.exited(3, 0, 4.0)
    assert fleet.resize(-1) and fleet.step(5.0) == [Drain(2, 300.0)]
    assert not fleet.resize(-1) and fleet.target == 1


def test_a_silent_worker_is_killed_and_replaced() -> None:
    fleet = up(2, healthcheck=5.0)
    fleet.heard(1, 3.0)
    silent = 0.0 + fleet.healthcheck + BEAT_MARGIN
    assert fleet.due(3.0) == silent
    kill, start = fleet.step(silent)
    assert isinstance(kill, Kill) and kill.key == 2 and isinstance(start, Start)
    fleet.exited(2, -9, silent)
    assert not any(isinstance(action, Start) for action in fleet.step(silent))  # its successor is there already


def test_time_in_which_the_manager_slept_is_nobodys_silence() -> None:
    fleet = up(1, healthcheck=5.0)
    fleet.slept(100.0)  # docker pause, say
    assert fleet.step(100.0) == []
    assert kinds(fleet.step(100.0 + fleet.healthcheck + BEAT_MARGIN)) == [Kill, Start]


def test_no_sign_of_life_is_asked_of_those_that_start_or_drain() -> None:
    fleet = Fleet(1, graceful=None)
    fleet.step(0.0)
    assert fleet.step(1_000.0) == []
    fleet.serving(1, 1_000.0)
    fleet.stop(1_001.0)
    assert fleet.step(1_001.0) == [Terminate(1)]
    assert fleet.step(9_000.0) == []
