"""The plan's drains: who yields, who drains when, who waits."""

from __future__ import annotations

import math

from sessionworkers.manager.actions import Drain, Kill, Start, Terminate, Yield
from sessionworkers.manager.plan import BEAT_MARGIN, KILL_MARGIN, Fleet
from sessionworkers.manager.scaling import Report
from sessionworkers.manager.slots import State


def up(workers: int, **more: float | None) -> Fleet:
    fleet = Fleet(workers, **{"healthcheck": 1e6, **more})  # type: ignore[arg-type]
    fleet.step(0.0)
    for key in list(fleet.slots):
        fleet.serving(key, 0.0)
    assert fleet.step(0.0) == []
    return fleet


def test_a_worn_worker_is_drained_when_its_successor_serves() -> None:
    fleet = up(2)
    fleet.worn(1, "old")
    assert fleet.step(1.0) == [Start(3)]
    assert fleet.slots[1].state is State.SERVING
    fleet.serving(3, 2.0)
    assert fleet.step(2.0) == [Drain(1, 300.0)]
    fleet.exited(1, 0, 9.0)
    assert fleet.step(9.0) == []


def test_recycling_waits_while_as_many_drain_as_serve() -> None:
    fleet = up(2)
    for key in (1, 2):
        fleet.worn(key, "old")
    fleet.step(1.0)
    fleet.serving(3, 2.0)
    assert fleet.step(2.0) == [Drain(1, 300.0)]
    assert fleet.step(2.0) == [Start(4)]  # one drains, two serve
    fleet.serving(4, 3.0)
    assert fleet.step(3.0) == [Drain(2, 300.0)]
    fleet.worn(3, "old")
    assert fleet.step(4.0) == []  # two drain, two serve
    fleet.exited(1, 0, 5.0)
    assert fleet.step(5.0) == [Start(5)]


def test_fewer_workers_means_those_with_the_fewest_sessions() -> None:
    fleet = up(3)
    for key, sessions in ((1, 5), (2, 1), (3, 9)):
        fleet.reported(key, Report(sessions=sessions))
    assert fleet.scale(1)
    assert fleet.step(1.0) == [Drain(2, 300.0), Drain(1, 300.0)]


def test_old_workers_yield_only_while_a_new_one_serves() -> None:
    fleet = up(2)
    fleet.restart()
    assert fleet.step(1.0) == [Start(3)]
    fleet.serving(3, 2.0)
    assert fleet.step(2.0) == [Yield(1), Yield(2), Drain(1, 300.0)]
    assert fleet.step(2.0) == [Start(4)]
    fleet.exited(3, -9, 20.0)  # the only new one: new sessions must go somewhere
    assert fleet.step(20.0) == [Yield(2, False), Start(5)]
    fleet.serving(4, 21.0)
    assert Yield(2) in fleet.step(21.0)


def test_a_drain_is_bounded_and_may_be_boundless() -> None:
    fleet = up(2, drain=10.0)
    fleet.scale(1)
    assert fleet.step(1.0) == [Drain(2, 10.0)]
    assert fleet.due(1.0) == 1.0 + 10.0 + KILL_MARGIN
    (kill,) = fleet.step(1.0 + 10.0 + KILL_MARGIN)
    assert isinstance(kill, Kill) and kill.key == 2
    fleet = up(2, drain=math.inf)
    fleet.scale(1)
    fleet.step(1.0)
    assert fleet.slots[2].stop_by is None


def test_the_end_of_the_server_shortens_drains() -> None:
    fleet = up(2, shutdown=5.0)
    fleet.scale(1)
    fleet.step(1.0)
    fleet.stop(2.0)
    assert fleet.step(2.0) == [Drain(1, 5.0, all=True), Drain(2, 5.0, all=True)]
    assert fleet.due(2.0) == 2.0 + 5.0 + KILL_MARGIN
    fleet.stop(3.0)
    assert fleet.step(3.0) == []


def test_an_interrupt_does_not_wait_for_sessions() -> None:
    fleet = up(2, shutdown=60.0, graceful=5.0)
    fleet.stop(1.0, wait=False)
    assert fleet.step(1.0) == [Terminate(1), Terminate(2)]
    assert fleet.due(1.0) == 1.0 + 5.0 + KILL_MARGIN


def test_a_shorter_stop_overrides_a_longer_one() -> None:
    fleet = up(1, shutdown=60.0, graceful=5.0)
    fleet.stop(1.0)
    assert fleet.step(1.0) == [Drain(1, 60.0, all=True)]
    fleet.stop(2.0, wait=False)
    assert fleet.step(2.0) == [Terminate(1)]
    assert fleet.due(2.0) == 2.0 + 5.0 + KILL_MARGIN


def test_silence_counts_while_draining_until_the_worker_says_that_it_ends() -> None:
    fleet = up(2, healthcheck=5.0)
    fleet.heard(1, 1e9)
    fleet.scale(1)
    fleet.step(0.0)
    assert fleet.slots[2].state is State.DRAINING
    (kill,) = fleet.step(5.0 + BEAT_MARGIN)
    assert isinstance(kill, Kill) and kill.key == 2
    fleet = up(2, healthcheck=5.0)
    fleet.heard(1, 1e9)
    fleet.scale(1)
    fleet.step(0.0)
    fleet.ending(2)
    assert fleet.step(50.0) == []


def test_a_worker_that_drains_by_itself_gets_a_successor() -> None:
    fleet = up(2)
    fleet.leaving(2, 1.0)
    assert fleet.step(1.0) == [Start(3)] and fleet.slots[2].drained == 1.0


def test_one_worker_can_be_replaced_by_order() -> None:
    fleet = up(1)
    assert not fleet.replace(9)
    assert fleet.replace(1)
    assert fleet.step(1.0) == [Start(2)]
    fleet.serving(2, 2.0)
    assert fleet.step(2.0) == [Drain(1, 300.0)]
    assert not fleet.replace(1)
