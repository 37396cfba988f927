"""Commands to a running server: status, reload, scale, drain, stop.

Exit codes: 0 done; 1 it did not come to be (a restart was given up); 2 asked wrongly; 4 no such server; 5 it does not
answer; 6 not within ``--timeout``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from sessionworkers.observe.place import NoAnswer, NoServer, Place, find

GIVEN_UP, LATE = 1, 6
EVERY = 0.2

FRESHER = ("sessions", "requests", "hopped", "held_by", "rules", "claims")
"""What a worker says itself; the manager hears of it once a second."""

COLUMNS = ("pid", "state", "age", "sessions", "requests", "hopped", "cpu", "notes")

where_options = (
    click.option("--runtime-dir", envvar="SESSIONWORKERS_RUNTIME_DIR", help="The server's runtime directory."),
    click.option("--pid", type=int, help="Pid of the server, or of one of its workers."),
)


def where(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name a server."""
    for option in reversed(where_options):
        command = option(command)
    return command


@click.command("status", help="Show a running server: its workers, their states, sessions and load.")
@where
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--watch", is_flag=True, help="Again every second, until Ctrl-C.")
def status_command(runtime_dir: str | None, pid: int | None, as_json: bool, watch: bool) -> None:
    place = find(runtime_dir, pid)
    while True:
        status = status_of(place)
        text = json.dumps(status) if as_json else "\n".join(status_lines(status))
        if watch and not as_json and sys.stdout.isatty():
            click.clear()
        click.echo(text)
        if not watch:
            return
        time.sleep(1.0)


def status_of(place: Place) -> dict[str, Any]:
    """What manager and workers say, put together."""
    workers = {about["pid"]: about for about in place.each("GET", "/v1/worker")}
    if not place.managed:
        status: dict[str, Any] = {"runtime_dir": place.path, "state": "serving", "manager": False}
        parents = {about["parent"] for about in workers.values()}
        status["pid"] = min(parents) if len(parents) == 1 else None
        status["workers"] = list(workers.values())
        return status
    status = {"runtime_dir": place.path, "manager": True, **place.manager("GET", "/v1/status")}
    for worker in status["workers"]:
        about = workers.get(worker["pid"], {})
        worker |= {name: about[name] for name in FRESHER if name in about}
    return status


def status_lines(status: dict[str, Any]) -> list[str]:
    """The status as a table."""
    wanted = f", {status['wanted']} workers wanted" if "wanted" in status else ""
    most = f" (up to {status['most']})" if status.get("most") else ""
    lines = [f"server {status['pid']}: {status['state']}{wanted}{most}, {status['runtime_dir']}"]
    if status.get("gave_up"):
        lines.append("the last restart was given up: its workers could not start")
    rows = [COLUMNS] + [_row(worker) for worker in status["workers"]]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines


def _row(worker: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    if worker.get("worn"):
        notes.append(f"to be replaced: {worker['worn']}")
    if worker.get("draining_for") is not None:
        notes.append(f"for {worker['draining_for']:.0f} s")
        notes += worker.get("held_by") or []
    busy = worker.get("busy")
    return (
        str(worker["pid"]),
        str(worker["state"]),
        _age(worker["age"]),
        str(worker["sessions"]),
        str(worker["requests"]),
        str(worker.get("hopped", "–")),
        "–" if busy is None else f"{100 * busy:.0f} %",
        "; ".join(notes),
    )


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


@click.command("reload", help="Restart all workers, the new ones first; sessions are served to their end.")
@where
@click.option("--no-wait", is_flag=True, help="Do not wait for the new workers.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds to wait.")
def reload_command(runtime_dir: str | None, pid: int | None, no_wait: bool, timeout: float) -> None:
    place = find(runtime_dir, pid)
    before = place.manager("POST", "/v1/reload", {})["generation"]
    if no_wait:
        return

    def done(status: dict[str, Any]) -> tuple[bool, str]:
        if status["gave_up"]:
            click.echo(
                "The new workers cannot start, the old ones serve on; the server's log has the reason.", err=True
            )
            sys.exit(GIVEN_UP)
        new = [w for w in status["workers"] if w["generation"] >= before and w["state"] == "serving"]
        old = [w for w in status["workers"] if w["generation"] < before and w["state"] != "draining"]
        draining = [w for w in status["workers"] if w["state"] == "draining"]
        text = f"{len(new)} of {status['wanted']} new workers serve, {len(draining)} drain"
        return len(new) >= status["wanted"] and not old, text

    _wait(place, done, timeout)


@click.command("scale", help="Set the number of workers. Fewer: those with the fewest sessions drain.")
@where
@click.argument("workers", type=click.IntRange(1))
@click.option("--no-wait", is_flag=True, help="Do not wait for the workers.")
@click.option("--timeout", type=float, default=120.0, show_default=True, help="Seconds to wait.")
def scale_command(runtime_dir: str | None, pid: int | None, workers: int, no_wait: bool, timeout: float) -> None:
    place = find(runtime_dir, pid)
    place.manager("POST", "/v1/scale", {"workers": workers})
    if no_wait:
        return

    def done(status: dict[str, Any]) -> tuple[bool, str]:
        serving = sum(worker["state"] == "serving" for worker in status["workers"])
        starting = sum(worker["state"] == "starting" for worker in status["workers"])
        return serving == workers and not starting, f"{serving} of {workers} workers serve, {starting} start"

    _wait(place, done, timeout)


@click.command(
    "drain", help="Drain the worker WORKER (a pid), which is replaced; or the whole server, which then ends."
)
@where
@click.argument("worker", type=int, required=False)
@click.option("--for", "limit", type=float, help="Longest time to drain the server, seconds. Default: --drain-timeout.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end of it.")
@click.option("--timeout", type=float, help="Seconds to wait. Default: without a limit.")
def drain_command(
    runtime_dir: str | None,
    pid: int | None,
    worker: int | None,
    limit: float | None,
    no_wait: bool,
    timeout: float | None,
) -> None:
    place = find(runtime_dir, pid)
    order: dict[str, Any] = {} if limit is None else {"timeout": limit}
    place.manager("POST", "/v1/drain", {"pid": worker} if worker is not None else order)
    if no_wait:
        return

    def done(status: dict[str, Any]) -> tuple[bool, str]:
        left = [w for w in status["workers"] if worker is None or w["pid"] == worker]
        sessions = sum(w["sessions"] for w in left)
        requests = sum(w["requests"] for w in left)
        return not left, f"{len(left)} workers with {sessions} sessions, {requests} open requests"

    _wait(place, done, timeout, may_end=worker is None)


@click.command(
    "stop", help="Stop the server, as TERM does: open requests and, with --shutdown-timeout, sessions first."
)
@where
@click.option("--now", is_flag=True, help="Within 3 seconds, as QUIT.")
@click.option("--no-wait", is_flag=True, help="Do not wait for its end.")
@click.option("--timeout", type=float, help="Seconds to wait. Default: without a limit.")
def stop_command(runtime_dir: str | None, pid: int | None, now: bool, no_wait: bool, timeout: float | None) -> None:
    place = find(runtime_dir, pid)
    place.manager("POST", "/v1/stop", {"now": now})
    if not no_wait:
        _wait(place, lambda status: (False, f"{len(status['workers'])} workers left"), timeout, may_end=True)


def _wait(
    place: Place,
    done: Callable[[dict[str, Any]], tuple[bool, str]],
    timeout: float | None,
    *,
    may_end: bool = False,
) -> None:
    """Ask for the status until it is so, with a line on what is waited for. Exits `LATE` if it takes too long."""
    deadline = None if timeout is None else time.monotonic() + timeout
    shown = ""
    while True:
        try:
            over, text = done(place.manager("GET", "/v1/status"))
        except (NoAnswer, NoServer):
            if may_end:
                return
            raise
        if text != shown:
            shown = text
            click.echo(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, err=True, nl=not sys.stderr.isatty())
        if over:
            if sys.stderr.isatty():
                click.echo(err=True)
            return
        if deadline is not None and time.monotonic() > deadline:
            click.echo("not within the time given", err=True)
            sys.exit(LATE)
        time.sleep(EVERY)
