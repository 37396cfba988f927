"""Idle kept-alive connections of a worker that leaves: another worker gets them, and their clients notice nothing."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from sessionworkers.worker.drain import LINGER
from tests.drain.world import client_of, restart, serving, workers
from tests.harness import GUNICORN, wait_for
from tests.hosts.client import start
from tests.raw.servers import Client


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_they_outlive_their_worker(loop: str) -> None:
    with serving(2, "--loop", loop) as running, contextlib.ExitStack() as stack:
        kept: list[tuple[Client, int]] = []
        while len(kept) < 6 or len({pid for _, pid in kept}) < 2:
            client = stack.enter_context(Client(running.port))
            kept.append((client, client.ask("/pid", None).json["pid"]))
        unused = stack.enter_context(Client(running.port))
        begun = time.monotonic()
        old = restart(running)
        wait_for(lambda: not old & workers(running), LINGER, "nothing holds the old ones back")
        assert time.monotonic() - begun < LINGER
        for client in [each for each, _ in kept] + [unused]:
            for _ in range(2):
                reply = client.ask("/pid", None)
                assert reply.status == 200 and reply.json["pid"] not in old
                assert reply.header("connection") is None


def test_they_stay_while_the_worker_has_sessions_and_go_at_the_end() -> None:
    with serving(2) as running, contextlib.ExitStack() as stack:
        sid, pid = start(running)
        kept = [client_of(running, stack, lambda accepted: accepted == pid) for _ in range(2)]
        old = restart(running)
        wait_for(lambda: workers(running) & old == {pid}, LINGER, "the one without a session leaves")
        with kept.pop() as client:
            reply = client.ask(f"/s/{sid}/n", None)
            assert reply.json == {"n": 1, "pid": pid} and reply.header("connection") == "close"
        assert running.fetch("POST", f"/s/{sid}/end").status == 200
        wait_for(lambda: not old & workers(running), 10, "its session has ended")
        assert kept[0].ask("/pid", None).json["pid"] not in old


def test_none_moves_to_a_worker_that_drains() -> None:
    """It would be sent away with its first reply, and with the drain's end in the middle of one."""
    with serving(2) as running:
        sid, pid = start(running)
        old = restart(running)
        assert pid in old
        with contextlib.ExitStack() as stack:
            while True:  # until a new one accepts
                client = stack.enter_context(Client(running.port))
                if client.ask("/pid", None).header("connection") is None:
                    break
            for number in range(1, 9):
                reply = client.ask(f"/s/{sid}/n", None)
                assert reply.json == {"n": number, "pid": pid}
                assert reply.header("connection") is None


def test_a_part_of_a_head_goes_with_its_connection() -> None:
    with serving(2) as running, contextlib.ExitStack() as stack:
        sid, pid = start(running)
        client = client_of(running, stack, lambda accepted: accepted == pid)
        old = restart(running)
        client.send(b"GET /pid HT")
        assert running.fetch("POST", f"/s/{sid}/end").status == 200
        wait_for(lambda: not old & workers(running), 10, "its session has ended")
        client.send(b"TP/1.1\r\nhost: t\r\n\r\n")
        reply = client.read()
        assert reply.status == 200 and reply.json["pid"] not in old


def test_under_gunicorn_too() -> None:
    with serving(2, command=GUNICORN) as running, Client(running.port) as client:
        before = client.ask("/pid", None).json["pid"]
        old = workers(running)
        running.signal(signal.SIGHUP)
        wait_for(lambda: not old & workers(running), 20, "the old ones leave")
        reply = client.ask("/pid", None)
        assert before in old and reply.status == 200 and reply.json["pid"] not in old
