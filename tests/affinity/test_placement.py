"""Placement: the least loaded worker with room; ties go round."""

from __future__ import annotations

from sessionworkers.affinity.placement import Standing, by_load, by_sessions


def uids(found: list[Standing]) -> list[str]:
    return [each.uid for each in found]


def test_the_least_load_first_then_the_fewest_sessions() -> None:
    workers = [Standing("a", 30, 1), Standing("b", 10, 2), Standing("c", 10, 1), Standing("d", 0, 9)]
    assert uids(by_load(workers, "a")) == ["d", "c", "b", "a"]
    assert uids(by_sessions(workers, "a")) == ["c", "a", "b", "d"]


def test_ties_go_round_from_the_accepting_worker() -> None:
    workers = [Standing(each, 0, 0) for each in "abcd"]
    assert [uids(by_load(workers, each))[0] for each in "abcd"] == ["a", "b", "c", "d"]
    assert uids(by_load(workers, "c")) == ["c", "d", "a", "b"]


def test_full_and_draining_workers_get_nothing() -> None:
    workers = [Standing("a", 0, 3, cap=3), Standing("b", 0, 0, draining=True), Standing("c", 9, 2, cap=3)]
    assert uids(by_load(workers, "a")) == ["c"]
    assert by_load(workers[:2], "a") == []
    assert uids(by_load([Standing("a", 0, 10**6)], "x")) == ["a"]
