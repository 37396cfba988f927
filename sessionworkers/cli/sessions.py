"""Commands on the sessions of a running server: ``sessions list|show|end|drain`` and ``explain``."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from sessionworkers.affinity.decide import Answer
from sessionworkers.cli.control import LATE, where
from sessionworkers.cli.pasted import parse_request
from sessionworkers.observe.place import NoAnswer, Place, Refusal, ask, find
from sessionworkers.observe.words import WAYS

NOT_FOUND = 1
COLUMNS = ("name", "worker", "rule", "state", "age", "idle", "open", "requests")


@click.group("sessions", help="The sessions of a running server.")
def sessions_command() -> None:
    pass


@sessions_command.command("list", help="List them, with the names under which the server keeps them.")
@where
@click.option("--ids", is_flag=True, help="Show IDs where the server knows them.")
@click.option("--limit", type=int, default=1_000, show_default=True, help="Most sessions of each worker.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_command(runtime_dir: str | None, pid: int | None, ids: bool, limit: int, as_json: bool) -> None:
    place = find(runtime_dir, pid)
    found: list[dict[str, Any]] = []
    total = 0
    for sock in place.workers():
        try:
            worker = ask(sock, "GET", "/v1/worker")
            sessions = ask(sock, "GET", "/v1/sessions", query={"limit": limit, "ids": int(ids)})
        except (NoAnswer, Refusal):
            continue
        total += sessions["total"]
        found += [{**session, "worker": worker["pid"]} for session in sessions["sessions"]]
    if as_json:
        click.echo(json.dumps({"total": total, "sessions": found}))
        return
    columns = (*COLUMNS, "id") if ids else COLUMNS
    rows = [columns, *(tuple(_cell(session.get(name)) for name in columns) for session in found)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if total > len(found):
        click.echo(f"… {total - len(found)} more")


def _cell(value: object) -> str:
    return "–" if value is None else f"{value:.0f}s" if isinstance(value, float) else str(value)


@sessions_command.command("show", help="Show one: SESSION is its ID, or its name in the list.")
@where
@click.argument("session")
@click.option("--ids", is_flag=True, help="Show its ID where the server knows it.")
def show_command(runtime_dir: str | None, pid: int | None, session: str, ids: bool) -> None:
    place = find(runtime_dir, pid)
    _, found = _owner(place, session, ids)
    for name, value in found.items():
        click.echo(f"{name:10} {'–' if value is None else value}")


@sessions_command.command("end", help="End one now; its close callbacks and hooks run.")
@where
@click.argument("session")
def end_command(runtime_dir: str | None, pid: int | None, session: str) -> None:
    place = find(runtime_dir, pid)
    sock, _ = _owner(place, session, False)
    ask(sock, "POST", "/v1/session/end", {"id": session})


@sessions_command.command("drain", help="End one as soon as no request, stream or WebSocket of it is open.")
@where
@click.argument("session")
@click.option("--timeout", type=float, help="Seconds to wait. Default: without a limit.")
def drain_session_command(runtime_dir: str | None, pid: int | None, session: str, timeout: float | None) -> None:
    place = find(runtime_dir, pid)
    sock, _ = _owner(place, session, False)
    deadline = None if timeout is None else time.monotonic() + timeout
    shown = -1
    while not (answer := ask(sock, "POST", "/v1/session/drain", {"id": session}))["ended"]:
        if answer["open"] != shown:
            shown = answer["open"]
            click.echo(f"{shown} open requests", err=True)
        if deadline is not None and time.monotonic() > deadline:
            click.echo("not within the time given", err=True)
            sys.exit(LATE)
        time.sleep(0.1)


def _owner(place: Place, session: str, ids: bool) -> tuple[str, dict[str, Any]]:
    """The control socket of the worker that holds ``session``, and what it says. Exits `NOT_FOUND`."""
    for sock in place.workers():
        try:
            return sock, ask(sock, "GET", "/v1/session", query={"id": session, "ids": int(ids)})
        except (NoAnswer, Refusal):
            continue
    click.echo("no such session", err=True)
    sys.exit(NOT_FOUND)


@click.command("explain", help="Say where a request would go now, and why. Nothing is sent to the app.")
@where
@click.argument("request", type=click.File("rb"))
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain_command(runtime_dir: str | None, pid: int | None, request: Any, as_json: bool) -> None:
    """``request``: a file with a raw HTTP request, - for standard input."""
    place = find(runtime_dir, pid)
    try:
        view = parse_request(request.read(2**20), "")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'REQUEST'") from error
    query = f"?{view.query.decode('latin-1')}" if view.query else ""
    asked = {
        "method": view.method,
        "kind": view.kind,
        "path": view.path + query,
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in view.headers],
        "body": (view.body or b"").decode("utf-8", "replace"),
    }
    answers = place.each("POST", "/v1/explain", asked)
    if not answers:
        raise NoAnswer("no worker answers")
    # A worker says how it is from there. The owner, if it lives, is the only one with which it would be at home.
    here = WAYS[Answer.HERE]
    answer = next((each for each in answers if each["way"] != here), answers[0])
    if answer.get("owner"):
        pids = {about["uid"]: about["pid"] for about in place.each("GET", "/v1/worker")}
        answer["pid"] = pids.get(answer["owner"])
    if as_json:
        click.echo(json.dumps(answer))
        return
    click.echo(answer["way"])
    for reason in answer["reasons"]:
        click.echo(f"  {reason}")
    if answer.get("pid"):
        click.echo(f"  its worker is {answer['pid']}")
