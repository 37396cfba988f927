"""Deploys under load: what a rolling restart, scaling and recycling cost the sessions that live meanwhile.

    python -m benchmarks.rolling_restart          # a short run of all servers, HUP
    python -m benchmarks.rolling_restart --full   # 4 workers, 200 sessions, 10 HUPs
    python -m benchmarks.rolling_restart --full --servers sessionworkers --what hup scale recycle

For each server one table row: requests; what went wrong, by kind; sessions that came to their own end; time from HUP to
the first session on new code, and to the last one that still began on old code.
"""

# ruff: noqa: ASYNC220, ASYNC230, ASYNC240  (small files, between measurements)

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.rolling_load import Load

ROOT = pathlib.Path(__file__).resolve().parent.parent
APP = "benchmarks.rolling_app:app"
RULE = "path:/s/{id} json:sid start=POST:/s end=POST:/s/{id}/end"
BOOT = 30.0

COMMANDS = {
    "sessionworkers": (
        *("-m", "sessionworkers", "run", APP, "--host", "127.0.0.1", "--port", "{port}", "--workers", "{workers}"),
        *("--no-access-log", "--session-id", RULE, "--drain-idle", "10", "--log-level", "warning"),
    ),
    "uvicorn": (
        *("-m", "uvicorn", APP, "--host", "127.0.0.1", "--port", "{port}", "--workers", "{workers}"),
        *("--no-access-log", "--log-level", "warning"),
    ),
    "gunicorn": (
        *("-m", "gunicorn", APP, "-k", "uvicorn_worker.UvicornWorker", "-b", "127.0.0.1:{port}", "-w", "{workers}"),
        *("--no-control-socket", "--log-level", "warning"),
    ),
    "gunicorn + sessionworkers": (
        *("-m", "gunicorn", APP, "-k", "sessionworkers.Worker", "-b", "127.0.0.1:{port}", "-w", "{workers}"),
        *("--no-control-socket", "--log-level", "warning", "--graceful-timeout", "60"),
    ),
}


@dataclass
class Result:
    """One row of the table."""

    server: str
    what: str
    load: Load
    to_new: list[float] = field(default_factory=list)
    """Seconds from HUP to the first session on new code; ``inf`` if none came in time."""
    old_after: list[float] = field(default_factory=list)
    """Seconds from the first session on new code to the last that began on old code, 0 if none did."""
    most: int = 0
    """Most processes at a time."""


async def measure(server: str, what: str, args: argparse.Namespace) -> Result:
    """Run one server through one scenario."""
    with tempfile.TemporaryDirectory(prefix="rolling-") as home:
        release = pathlib.Path(home, "release")
        release.write_text("r0")
        port = _free_port()
        line = [part.format(port=port, workers=args.workers, id="{id}") for part in COMMANDS[server]]
        if what == "recycle":
            line += [
                "--max-requests" if server.startswith("gunicorn") else "--limit-max-requests",
                str(args.max_requests),
            ]
        env = {**os.environ, "ROLLING_RELEASE": str(release), "PYTHONPATH": str(ROOT)}
        env["SESSIONWORKERS_SESSION_ID"] = RULE
        log = pathlib.Path(home, "log")
        with log.open("wb") as stream:
            process = subprocess.Popen([sys.executable, *line], env=env, cwd=ROOT, stdout=stream, stderr=stream)
        try:
            await _up(port)
            result = await _drive(server, what, args, port, process, release)
        finally:
            process.terminate()
            try:
                process.wait(45)
            except subprocess.TimeoutExpired:
                process.kill()
        if args.log:
            print(log.read_text(errors="replace")[-8000:], file=sys.stderr)
        return result


async def _drive(
    server: str, what: str, args: argparse.Namespace, port: int, process: subprocess.Popen[bytes], release: pathlib.Path
) -> Result:
    load = Load(
        port,
        sessions=args.sessions,
        streams=args.streams,
        websockets=args.websockets,
        rate=args.rate,
        life=args.life,
    )
    result = Result(server, what, load)
    running = asyncio.create_task(load.run())
    await asyncio.sleep(3.0)
    if what == "hup":
        for number in range(1, args.hups + 1):
            await _restart(result, load, process, release, f"r{number}", args.every)
    elif what == "scale":
        for number in range(args.scalings):
            process.send_signal(signal.SIGTTIN if number % 4 < 2 else signal.SIGTTOU)
            await _pause(result, process, args.every / 2)
    else:
        while load.count.requests < args.requests:
            await _pause(result, process, 0.5)
    load.stop()
    await asyncio.wait([running], timeout=60)
    running.cancel()
    return result


async def _restart(
    result: Result, load: Load, process: subprocess.Popen[bytes], release: pathlib.Path, name: str, every: float
) -> None:
    before = set(load.count.releases)
    release.write_text(name)
    begun = time.monotonic()
    process.send_signal(signal.SIGHUP)
    await _pause(result, process, every)
    seen = load.count.releases.get(name)
    result.to_new.append(float("inf") if seen is None else seen - begun)
    if seen is not None:
        result.old_after.append(max([0.0, *(load.count.late[old] - seen for old in before)]))


async def _pause(result: Result, process: subprocess.Popen[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if children.exists():
            result.most = max(result.most, len(children.read_text().split()))
        await asyncio.sleep(0.1)


async def _up(port: int) -> None:
    deadline = time.monotonic() + BOOT
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await asyncio.sleep(2.0)  # the other workers
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def row(result: Result) -> str:
    """One Markdown row."""
    count = result.load.count
    wrong = ", ".join(f"{number} {kind}" for kind, number in count.wrong.most_common()) or "none"
    over = count.ended + count.lost
    kept = f"{count.ended} of {over}" + (f" ({100 * count.ended / over:.1f} %)" if over else "")
    seen = [seconds for seconds in result.to_new if seconds != float("inf")]
    new = f"{sum(seen) / len(seen):.2f} s" if seen else "–" if not result.to_new else "not in time"
    if seen and len(seen) < len(result.to_new):
        new += f" ({len(seen)} of {len(result.to_new)} in time)"
    old = f"{max(result.old_after):.2f} s" if result.old_after else "–"
    cells = [result.server, result.what, str(count.requests), wrong, kept, new, old, str(result.most)]
    return "| " + " | ".join(cells) + " |"


COLUMNS = ("server", "what", "requests", "errors", "sessions kept", "HUP to new code", "old code after it", "processes")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options; ``--full`` sets the sizes of the acceptance run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--what", nargs="+", default=["hup"], choices=["hup", "scale", "recycle"])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--log", action="store_true", help="print the servers' logs")
    sizes = {"workers": 2, "sessions": 20, "streams": 5, "websockets": 5, "rate": 20, "life": 5, "hups": 2, "every": 6}
    sizes |= {"scalings": 4, "requests": 400, "max_requests": 50}
    for name, value in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    args = parser.parse_args(argv)
    if args.full:
        full = {"workers": 4, "sessions": 200, "streams": 50, "websockets": 50, "rate": 100, "life": 15, "hups": 10}
        full |= {"every": 8, "scalings": 20, "requests": 20_000, "max_requests": 500}
        vars(args).update(full)
    return args


def main() -> int:
    """Print the table; exit code 1 if sessionworkers lost anything."""
    args = parse()
    print(HEAD, flush=True)
    failed = False
    for what in args.what:
        for server in args.servers:
            result = asyncio.run(measure(server, what, args))
            print(row(result), flush=True)
            for kind, example in result.load.count.first.items():
                print(f"<!-- {kind}: {example} -->", flush=True)
            failed = failed or (server == "sessionworkers" and bool(result.load.count.wrong))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
