"""How many workers the load asks for, and how many cores there are."""

from __future__ import annotations

import os
import pathlib

import pytest

from sessionworkers.manager.actions import Drain, Note, Start
from sessionworkers.manager.cores import usable_cores
from sessionworkers.manager.plan import Fleet
from sessionworkers.manager.scaling import GROW_AFTER, SHRINK_AFTER, Report, Scaling

FULL = Report(sessions=10, full=True)
BUSY = Report(busy=0.9)
EASY = Report(sessions=3)
IDLE = Report(idle=True)


def fleet(*reports: Report, ceiling: int = 4) -> Fleet:
    made = Fleet(2, scaling=Scaling(2, ceiling))
    made.target = len(reports)
    made.step(0.0)
    for key, report in zip(list(made.slots), reports, strict=True):
        made.serving(key, 0.0)
        made.heard(key, 1e9)
        made.reported(key, report)
    made.step(0.0)
    return made


@pytest.mark.parametrize("report", [FULL, BUSY])
def test_grows_when_all_have_been_full_for_a_while(report: Report) -> None:
    made = fleet(report, report)
    assert made.due(0.0) == GROW_AFTER
    assert made.step(GROW_AFTER - 0.1) == []
    note, start = made.step(GROW_AFTER)
    assert isinstance(note, Note) and start == Start(3) and made.target == 3
    made.step(GROW_AFTER + 100)
    assert made.target == 3, "not while a worker is starting"


def test_does_not_grow_over_the_ceiling_or_while_one_has_room() -> None:
    assert fleet(FULL, FULL, ceiling=2).step(100.0) == []
    assert fleet(FULL, EASY).step(100.0) == []


def test_a_short_peak_is_no_reason() -> None:
    made = fleet(FULL, FULL)
    made.step(1.0)
    made.reported(1, EASY)
    made.step(2.0)
    made.reported(1, FULL)
    assert made.step(GROW_AFTER + 1.9) == [] and made.target == 2


def test_shrinks_by_draining_the_idle_one() -> None:
    made = fleet(EASY, IDLE, EASY)
    assert made.step(SHRINK_AFTER - 1) == []
    note, drain = made.step(SHRINK_AFTER)
    assert isinstance(note, Note) and drain == Drain(2, 300.0) and made.target == 2


def test_never_below_the_floor_nor_with_sessions_in_all() -> None:
    assert fleet(IDLE, IDLE).step(1_000.0) == []
    assert fleet(EASY, EASY, EASY).step(1_000.0) == []


def test_an_order_moves_the_floor() -> None:
    made = fleet(IDLE, IDLE, IDLE)
    assert made.scale(3)
    assert made.step(SHRINK_AFTER) == [] and made.target == 3


def groups(tmp_path: pathlib.Path, line: str, files: dict[str, str]) -> dict[str, str]:
    (tmp_path / "cgroup").write_text(line + "\n")
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return {"proc": str(tmp_path / "cgroup"), "root": str(tmp_path / "fs")}


@pytest.mark.parametrize(
    ("line", "files", "cores"),
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/../other", {"cpu.max": "100000 100000"}, 1),
        ("3:cpu,cpuacct:/d", {"cpu/d/cpu.cfs_quota_us": "400000", "cpu/d/cpu.cfs_period_us": "100000"}, 4),
        ("3:cpu,cpuacct:/d", {"cpu/d/cpu.cfs_quota_us": "-1", "cpu/d/cpu.cfs_period_us": "100000"}, 8),
        ("0::/", {"cpu.max": "nonsense"}, 8),
    ],
)
def test_cores_by_affinity_and_quota(
    line: str, files: dict[str, str], cores: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores(**groups(tmp_path, line, files)) == cores


def test_it_works_here() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
