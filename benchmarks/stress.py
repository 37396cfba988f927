"""Thousands of sessions at once against 8 workers, and what must be true of every one of them.

    python -m benchmarks.stress [--workers 8] [--scale 1.0] [--only ROW ...]

Each row runs against the same server (`benchmarks.stress_app`, rules below, all windows 5 s), every request on a new
connection. Afterwards: no session was made on two workers, none is live after its close, and no claim is left 6 s
after the end. The last row kills a worker. Prints a table; exits 1 unless every row is right.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import functools
import os
import pathlib
import random
import resource
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.stress_app import SECRET, TOKEN
from benchmarks.stress_client import Client, Reply
from sessionworkers.demo import servers

WINDOW = 5.0  # seconds: retry window, return window and idle time
GRACE = 6.0  # seconds after the end in which the last claim must go

LIFE = "start=POST:/seed_session start=POST:/seed_quiet end=POST:/close_session end=POST:/verify"
TYPED = "json:resources_session_id@/seed_session,/close_session"
RULES = [
    f"token:{TOKEN}/sid@/mcp space=stress",
    f"{TYPED} starlette-cookie:session/session_id {LIFE} late-start=refuse space=stress",
]


class Wrong(Exception):
    """A session was not right; the message says what was seen first."""


def check(condition: bool, seen: str) -> None:
    if not condition:
        raise Wrong(seen)


def ok(reply: Reply, what: str) -> dict[str, Any]:
    check(reply.status == 200, f"{what}: {reply.status} {reply.json.get('error', '')}")
    return reply.json


def new_id() -> str:
    return f"resources-session-{uuid.uuid4().hex}"


def plan(number: int) -> tuple[int, list[int]]:
    """The first count and the steps of session ``number``: the same in every run."""
    rng = random.Random(number)
    return rng.randint(0, 9), [rng.randint(1, 9) for _ in range(rng.randint(3, 6))]


async def play(client: Client, cookie: str | None, start: int, steps: list[int], *, keep: bool = False) -> None:
    """Tool calls and the verify of one session by its cookie."""
    check(cookie is not None, "no cookie")
    for step in steps:
        ok(await client.post("/increment", {"count": step}, cookie=cookie), "increment")
    got = ok(await client.post("/value", {}, cookie=cookie), "value")["count"]
    check(got == start + sum(steps), "a wrong count")
    expected = {"expected": start + sum(steps), "keep": keep}
    check(ok(await client.post("/verify", expected, cookie=cookie), "verify")["reward"] == 1.0, "reward 0")


async def episode(client: Client, number: int) -> None:
    """A typed start, tool calls and the verify by cookie, and the close that names both."""
    sid, (start, steps) = new_id(), plan(number)
    reply = await client.post("/seed_session", {"resources_session_id": sid, "count": start})
    ok(reply, "seed")
    await play(client, reply.cookie, start, steps, keep=True)
    closed = await client.post("/close_session", {"resources_session_id": sid}, cookie=reply.cookie)
    check(ok(closed, "close")["held"], "the close reached a worker without the session")


async def failing(client: Client, number: int) -> None:
    """A start that fails half way and sets no cookie; the clean-up close by ID alone; a new attempt."""
    sid = new_id()
    reply = await client.post("/seed_session", {"resources_session_id": sid, "fail": True})
    check(reply.status == 500 and reply.cookie is None, f"failing seed: {reply.status}")
    closed = ok(await client.post("/close_session", {"resources_session_id": sid}), "close")
    check(closed["partial"], "the close did not find the partial state")
    await episode(client, number)


async def dropped(client: Client, number: int) -> None:
    """A start whose first reply is dropped (even numbers) or cut off (odd), sent again without a cookie."""
    sid, (start, steps) = new_id(), plan(number)
    body = {"resources_session_id": sid, "count": start}
    with contextlib.suppress(OSError):
        await client.hang_up("/seed_session", body, after=number % 2 * 20)
    reply = await client.post("/seed_session", body)
    starts = ok(reply, "seed again")["starts"]
    check(starts == 2 or (starts == 1 and number % 2 == 0), f"started {starts} times")
    await play(client, reply.cookie, start, steps, keep=True)
    ok(await client.post("/close_session", {"resources_session_id": sid}), "close")


async def early_close(client: Client, number: int) -> None:
    """A close that comes before its delayed start: the start is refused."""
    sid = new_id()
    ok(await client.post("/close_session", {"resources_session_id": sid}), "close")
    reply = await client.post("/seed_session", {"resources_session_id": sid})
    check(reply.status == 409, f"the late start got {reply.status}")


async def quiet(client: Client, number: int) -> None:
    """A start that never reads the session, then five calls and an end that do."""
    reply = await client.post("/seed_quiet", {})
    ok(reply, "seed")
    await play(client, reply.cookie, 0, [1, 2, 3, 4])


async def mcp(client: Client, number: int) -> None:
    """Tool calls at /mcp by the token alone; the end by the cookie of the start."""
    start, steps = plan(number)
    seeded = await client.post("/seed_session", {"count": start})
    token = ok(seeded, "seed")["headers"][TOKEN]

    async def call(name: str, **arguments: int) -> int:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        result = ok(await client.post("/mcp", body, token=token), name)["result"]
        check(not result["isError"], "tool error")
        return int(result["structuredContent"]["count"])

    for step in steps:
        await call("increment", count=step)
    check(await call("value") == start + sum(steps), "a wrong count")
    verified = await client.post("/verify", {"expected": start + sum(steps)}, cookie=seeded.cookie)
    check(ok(verified, "verify")["reward"] == 1.0, "reward 0")


ROWS: dict[str, tuple[str, int, Callable[[Client, int], Awaitable[None]]]] = {
    "episodes": ("concurrent episodes", 4000, episode),
    "failing": ("starts that fail without a cookie, clean-up close, new attempt", 1000, failing),
    "dropped": ("starts whose first reply is dropped or cut, sent again", 1000, dropped),
    "early-close": ("a close before its delayed start", 1000, early_close),
    "quiet": ("starts that never read the session, then five calls", 1000, quiet),
    "mcp": ("MCP sequences with only the token", 1000, mcp),
}
KILLED = ("killed", "a worker killed: gone for its sessions, the others right", 200)


@dataclass
class Line:
    """One line of the table. ``wrong``: what was seen, and how often."""

    text: str
    right: int
    total: int
    seconds: float
    wrong: collections.Counter[str] = field(default_factory=collections.Counter)


async def run_row(text: str, total: int, one: Callable[[int], Awaitable[None]]) -> Line:
    """``total`` sessions at once."""
    line = Line(text, 0, total, 0.0)

    async def guarded(number: int) -> None:
        try:
            await one(number)
            line.right += 1
        except Wrong as wrong:
            line.wrong[str(wrong)] += 1
        except (OSError, asyncio.TimeoutError, ValueError, KeyError) as error:
            line.wrong[f"{type(error).__name__}: {error}"[:100]] += 1

    began = time.monotonic()
    await asyncio.gather(*(guarded(number) for number in range(total)))
    line.seconds = time.monotonic() - began
    return line


async def inspect(client: Client, workers: int) -> dict[int, dict[str, Any]]:
    """What each worker says of itself, by pid. TimeoutError if they do not all answer within 30 s."""
    found: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + 30
    while len(found) < workers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(found)} of {workers} workers answered")
        for reply in await asyncio.gather(*(client.get("/debug") for _ in range(4 * workers))):
            found[reply.json["pid"]] = reply.json
    return found


def claims(base: str) -> int:
    """Files in the claims directory of the one server whose runtime directory is under ``base``."""
    return sum(1 for path in pathlib.Path(base).glob("*/claims/*") if not path.name.startswith("."))


async def aftermath(client: Client, workers: int, base: str) -> list[Line]:
    """What must be true once every session has ended."""
    ended = time.monotonic()
    states = await inspect(client, workers)
    count = collections.Counter(sid for state in states.values() for sid in state["made"])
    split = sum(1 for times in count.values() if times > 1)
    left = len({sid for state in states.values() for sid in state["live"]})
    lines = [
        Line("sessions made on one worker only", len(count) - split, len(count), 0.0),
        Line("sessions not live after their close", len(count) - left, len(count), 0.0),
    ]
    while (kept := claims(base)) and time.monotonic() < ended + GRACE:
        await asyncio.sleep(0.1)
    line = Line(f"no claim left {GRACE:g} s after the end", int(not kept), 1, time.monotonic() - ended)
    if kept:
        line.wrong[f"{kept} claims left"] = 1
    return [*lines, line]


async def killed(client: Client, total: int, workers: int) -> Line:
    """SIGKILL one worker with sessions open: its sessions get 410 on every request, the others go on."""
    opened: list[tuple[str, str, int]] = []

    async def start(number: int) -> None:
        sid = new_id()
        reply = await client.post("/seed_session", {"resources_session_id": sid, "count": 0})
        opened.append((sid, reply.cookie or "", ok(reply, "seed")["pid"]))

    line = await run_row(KILLED[1], total, start)
    if line.right < total:
        return line
    victim = collections.Counter(pid for _, _, pid in opened).most_common(1)[0][0]
    os.kill(victim, signal.SIGKILL)

    async def go_on(number: int) -> None:
        sid, cookie, pid = opened[number]
        if pid == victim:
            for path in ("/increment", "/value", "/verify", "/close_session"):
                body = {"resources_session_id": sid} if path == "/close_session" else {}
                status = (await client.post(path, body, cookie=cookie)).status
                check(status == 410, f"{path} of a gone session: {status}")
            return
        await play(client, cookie, 0, [1, 2, 3], keep=True)
        ok(await client.post("/close_session", {"resources_session_id": sid}), "close")

    return await run_row(KILLED[1], total, go_on)


async def run(port: int, base: str, workers: int, scale: float, only: list[str]) -> list[Line]:
    lines: list[Line] = []

    def show(line: Line) -> None:
        lines.append(line)
        print(f"{line.text:<62} {line.right:>6} of {line.total:<6} {line.seconds:6.1f} s", flush=True)
        for seen, times in line.wrong.most_common(3):
            print(f"    {times} x {seen}", flush=True)

    client = Client(port)
    for name, (text, full, session) in ROWS.items():
        if not only or name in only:
            show(await run_row(text, max(1, round(full * scale)), functools.partial(session, client)))
    for line in await aftermath(client, workers, base):
        show(line)
    if not only or KILLED[0] in only:
        show(await killed(client, max(4 * workers, round(KILLED[2] * scale)), workers))
    return lines


def command(workers: int) -> list[str]:
    rules = [part for rule in RULES for part in ("--session-id", rule)]
    tail = ["--host", "127.0.0.1", "--workers", str(workers), "--no-access-log", "--log-level", "info"]
    return [sys.executable, "-m", "sessionworkers", "run", "benchmarks.stress_app:app", *tail, *rules]


@contextlib.contextmanager
def runtime_base() -> Iterator[str]:
    """Where the server makes its runtime directory, so that its claims can be counted."""
    with tempfile.TemporaryDirectory(prefix="stress-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as base:
        yield base


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of sessions; 0.05 for CI")
    parser.add_argument("--only", nargs="*", default=[], choices=[*ROWS, KILLED[0]], metavar="ROW")
    parser.add_argument("--plain", action="store_true", help="plain uvicorn instead, to see the rows fail")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else 65_536, hard))
    line = command(options.workers)
    if options.plain:
        line = [sys.executable, "-m", "uvicorn", *line[4 : line.index("--session-id")]]
    windows = {f"SESSIONWORKERS_{n}": str(WINDOW) for n in ("RETRY_WINDOW", "RETURN_WINDOW", "SESSION_IDLE")}
    with runtime_base() as base:
        environment = {**windows, "SESSIONWORKERS_SESSION_SECRET": SECRET, "XDG_RUNTIME_DIR": base}
        with servers.serve(line, options.workers, environment) as running:
            lines = asyncio.run(run(running.port, base, options.workers, options.scale, options.only))
        left = [f"process {pid}" for pid in running.left] + os.listdir(base)
    if left:
        print(f"left behind: {left}")
    return int(bool(left) or any(line.right != line.total for line in lines))


if __name__ == "__main__":
    sys.exit(main())
