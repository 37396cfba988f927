"""What the workers carry, for people and for scrapers. No session ever stands in it."""

from __future__ import annotations

from typing import Any, Final

from sessionworkers.members.load import Load


def figures(loads: dict[str, Load]) -> dict[str, Any]:
    """Every worker's figures, and the sums; ``free_slots`` null: no cap."""
    workers = [_figures(uid, load) for uid, load in loads.items()]
    names = ("current_load", "sessions", "in_flight", "rejected", "max_sessions")
    total = {name: sum(each[name] for each in workers) for name in names}
    free = [each["free_slots"] for each in workers]
    return {"workers": workers, "total": {**total, "free_slots": None if None in free else sum(free)}}


def _figures(uid: str, load: Load) -> dict[str, Any]:
    return {
        "worker": uid[:8],
        "current_load": load.current,
        "session_load": load.held,
        "request_load": load.work,
        "sessions": load.sessions,
        "max_sessions": load.cap,
        "free_slots": load.free,
        "in_flight": load.in_flight,
        "rejected": load.rejected,
        "wait": load.wait,
        "draining": load.draining,
    }


_METRICS: Final = (
    ("current_load", "gauge", "Costs of open sessions and of requests in flight.", lambda load: load.current),
    ("sessions", "gauge", "Open explicit sessions.", lambda load: load.sessions),
    ("free_slots", "gauge", "Sessions that may still be opened; -1 without a cap.", lambda load: _free(load)),
    ("in_flight", "gauge", "Requests in flight.", lambda load: load.in_flight),
    ("wait_seconds", "gauge", "Work in flight over measured throughput.", lambda load: load.wait),
    ("rejected_total", "counter", "Sessions and requests that were refused with 429.", lambda load: load.rejected),
)


def _free(load: Load) -> int:
    return -1 if load.free is None else load.free


def metrics(loads: dict[str, Load]) -> str:
    """The figures in Prometheus' text format: labelled by worker, no session ever."""
    lines: list[str] = []
    for name, kind, text, value in _METRICS:
        full = f"sessionworkers_session_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        lines += [f'{full}{{worker="{uid[:8]}"}} {value(load):g}' for uid, load in loads.items()]
    return "\n".join(lines) + "\n"
