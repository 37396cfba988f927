"""The queue demo, with four workers: polled, ended by its own webhook, cancelled by the hook."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sessionworkers.client import Client
from sessionworkers.demo import queue_client
from tests.harness import ROOT, wait_for
from tests.sessions.kit import Api, sessions

APP = "sessionworkers.demo.queue:app"


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions(app=APP) as running:
        yield running


def cancelled(api: Api) -> int:
    """What all workers have cancelled: asked often enough on fresh connections to have met each."""
    found: dict[int, int] = {}
    for _ in range(40):
        reply = api.post("/cancelled", {"payload": {}}).json
        found[reply["pid"]] = reply["cancelled"]
    return sum(found.values())


def test_the_client_says_in_one_line_what_is_wrong() -> None:
    line = [sys.executable, "-m", "sessionworkers.demo.queue_client", "127.0.0.1:8000"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr == ("queue_client: '127.0.0.1:8000' is no URL of a server: it begins with http:// or https://\n")


def test_a_job_is_polled_on_its_worker(api: Api) -> None:
    async def main() -> None:
        async with Client(api.server.url) as client:
            for status in await asyncio.gather(*(queue_client.poll(client) for _ in range(6))):
                assert (status["state"], status["epoch"]) == ("completed", 3)

    asyncio.run(main())
    assert api.load()["total"]["sessions"] == 0


def test_a_job_ends_its_own_session_by_the_loopback_port(api: Api) -> None:
    async def main() -> None:
        async with Client(api.server.url) as client:
            results = await asyncio.gather(*(queue_client.webhook(client) for _ in range(6)))
            assert results == ["the job has ended the session"] * 6

    asyncio.run(main())
    assert api.load()["total"]["sessions"] == 0


@pytest.mark.parametrize("how", ["closed", "abandoned"])
def test_the_hook_cancels_a_job_that_is_not_done(api: Api, how: str) -> None:
    before = cancelled(api)

    async def main() -> None:
        async with Client(api.server.url) as client:
            lifetime = 60 if how == "closed" else 1
            session = await client.session(lifetime=lifetime, on_close_route="/cancel_task")
            await session.request("/start_task", {"epochs": 1000})
            if how == "closed":
                await session.close()

    asyncio.run(main())
    wait_for(lambda: cancelled(api) == before + 1, 10, interval=0.2)


@pytest.mark.parametrize("options", [[], ["--webhook"]])
def test_the_command_of_the_readme(api: Api, options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sessionworkers.demo.queue_client", api.server.url, "--jobs", "2", *options],
        env={**os.environ, "PYTHONPATH": os.fspath(ROOT)},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = "the job has ended the session" if options else "{'state': 'completed', 'epoch': 3, 'epochs': 3}"
    assert done.stdout.splitlines()[-2:] == [last] * 2
