"""What the framework cases share: the launchers, the sizes, and a run of sessions that counts the right ones.

A case is ``async def case(server) -> None``: one session from start to end, AssertionError (or any other error) if a
step was wrong. Small sizes by default; ``SESSIONWORKERS_FULL=1`` runs four workers and twenty sessions everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.harness import GUNICORN, SESSIONWORKERS, UVICORN, Server, server

FULL = os.environ.get("SESSIONWORKERS_FULL", "") not in ("", "0")
SESSIONS = 20 if FULL else 5
TOGETHER = 5  # sessions at once
CONTROL = "uvicorn-1"
GRACE = ("--timeout-graceful-shutdown", "3")  # Engine.IO keeps a poll open for half a minute
LAUNCHERS: dict[str, Sequence[str]] = {
    CONTROL: (*UVICORN, *GRACE),
    "run": (*SESSIONWORKERS, *GRACE),
    "gunicorn": (*GUNICORN, "--graceful-timeout", "3"),
}

Case = Callable[[Server], Awaitable[None]]


def needs(module: str) -> None:
    """Skip the calling test module if a framework is not installed."""
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(module) is not None:
            return
    pytest.skip(f"{module} is not installed", allow_module_level=True)


@contextlib.contextmanager
def launched(
    launcher: str, app: str, *, workers: int = 4, options: Sequence[str] = (), python: str | None = None, **kw: Any
) -> Iterator[Server]:
    """``app`` under one of `LAUNCHERS`: one worker for the control, else ``workers`` (four in full size)."""
    command = LAUNCHERS[launcher]
    if python is not None:
        command = [python, *command[1:]]
    count = 1 if launcher == CONTROL else max(workers, 4) if FULL else workers
    own = () if launcher == CONTROL else options
    with server(app, command=command, workers=count, options=own, boot_timeout=120, **kw) as running:
        yield running


def run_sessions(server: Server, case: Case, count: int = SESSIONS, *, together: int = TOGETHER) -> None:
    """``count`` sessions; AssertionError with what was wrong, and how often, unless all were right."""
    wrong: Counter[str] = Counter()

    async def one(gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                await asyncio.wait_for(case(server), 30)
            except Exception as error:
                inner: BaseException = error
                while parts := getattr(inner, "exceptions", None):  # an ExceptionGroup, which 3.10 has not
                    inner = parts[0]
                text = f"{type(inner).__name__}: {inner}".splitlines()[0]
                wrong[re.sub(r"[0-9a-fA-F-]{12,}", "<id>", text)[:200]] += 1

    async def main() -> None:
        gate = asyncio.Semaphore(together)
        await asyncio.gather(*(one(gate) for _ in range(count)))

    asyncio.run(main())
    assert not wrong, f"{count - wrong.total()} of {count} sessions right; {dict(wrong.most_common(5))}"


async def leave(client: Any) -> None:
    """End a python-socketio client. One that polls would wait for its open poll to run out: it is cut off."""
    try:
        await asyncio.wait_for(client.disconnect(), 2)
    except asyncio.TimeoutError:
        pass
    if client.eio.http is not None and not client.eio.http.closed:
        await client.eio.http.close()
