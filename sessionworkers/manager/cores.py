"""How many cores this process may use: its affinity mask, and the CPU quota of its control groups."""

from __future__ import annotations

import math
import os

_PROC = "/proc/self/cgroup"
_ROOT = "/sys/fs/cgroup"


def usable_cores(*, proc: str = _PROC, root: str = _ROOT) -> int:
    """Cores by affinity, no more than the quota of any control group above (v2 and v1), 1 at least.

    A quota of 1.5 cores counts as two: one worker alone could not use it up.
    """
    cores = len(os.sched_getaffinity(0))
    quotas = [quota for quota in _quotas(proc, root) if quota is not None]
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas)]))


def _quotas(proc: str, root: str) -> list[float | None]:
    found: list[float | None] = []
    for line in _read(proc).splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0":
            found += [_v2(place) for place in _up(root, path)]
        elif "cpu" in controllers.split(","):
            found += [_v1(place) for base in ("cpu", controllers) for place in _up(os.path.join(root, base), path)]
    return found


def _up(root: str, path: str) -> list[str]:
    """The group's directory and those above it; in a container of its own name space that may be the root alone."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [os.path.join(root, *parts[:depth]) for depth in range(len(parts), -1, -1)]


def _v2(place: str) -> float | None:
    quota, _, period = _read(os.path.join(place, "cpu.max")).strip().partition(" ")
    return _share(quota, period)


def _v1(place: str) -> float | None:
    quota = _read(os.path.join(place, "cpu.cfs_quota_us")).strip()
    return _share(quota, _read(os.path.join(place, "cpu.cfs_period_us")).strip())


def _share(quota: str, period: str) -> float | None:
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max", -1, or no such file
    return int(quota) / int(period)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError):
        return ""
