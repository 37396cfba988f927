"""Workers and managers that are killed or stopped: what is theirs is gone at once, everything else goes on."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.drain.world import FULL, restart, serving, state, workers
from tests.harness import Server, wait_for
from tests.hosts.client import start
from tests.hosts.test_gunicorn import alive

TIMES = 20 if FULL else 2


def sessions(running: Server, count: int) -> dict[str, int]:
    """New sessions: ID → pid of their worker."""
    return dict(start(running) for _ in range(count))


@pytest.mark.timeout(300 if FULL else 60)
def test_a_killed_worker_takes_only_its_own_sessions_along() -> None:
    with serving(3, "--retry-window", "5") as running:
        waits: list[float] = []
        for _ in range(TIMES):
            made = sessions(running, 12)
            victim = next(iter(made.values()))
            boots = running.started
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            dead = next(sid for sid, pid in made.items() if pid == victim)
            while (status := running.fetch("GET", f"/s/{dead}/n").status) == 200:
                pass
            took = time.monotonic() - killed
            assert status == 410 and took < (0.1 if FULL else 0.5), f"{status} after {took:.3f} s"
            for sid, pid in made.items():
                reply = running.fetch("GET", f"/s/{sid}/n")
                assert (reply.status, reply.json.get("pid")) == ((410, None) if pid == victim else (200, pid))
            wait_for(lambda boots=boots: running.started > boots, 10, "it is replaced")
            waits.append(time.monotonic() - killed)
            wait_for(lambda: [each["state"] for each in state(running)] == ["serving"] * 3, 10)
        # The first one is answered at once, so it shows what a boot takes here and now.
        assert max(waits) < 2 * waits[0] + 1.0, waits
        _as_many_names_as_workers(running)


def test_a_killed_draining_worker_is_gone_too() -> None:
    with serving(2) as running:
        sid, pid = start(running)
        restart(running)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: running.fetch("GET", f"/s/{sid}/n").status == 410, 2)
        wait_for(lambda: len(workers(running)) == 2, 15)
        assert [each["state"] for each in state(running)] == ["serving"] * 2
        _as_many_names_as_workers(running)


@pytest.mark.timeout(300 if FULL else 60)
def test_a_killed_manager_takes_all_along_and_the_next_start_cleans_up() -> None:
    with serving(2, check_leftovers=False) as running:
        start(running)
        pids = workers(running)
        left = running.runtime_dir
        running.signal(signal.SIGKILL)
        killed = time.monotonic()
        wait_for(lambda: not any(alive(pid) for pid in pids), 8, "the workers leave")
        assert time.monotonic() - killed < 5.0
        with serving(2, env={"XDG_RUNTIME_DIR": running.base}):
            assert not os.path.exists(left)
        wait_for(lambda: not os.listdir(running.base), 5, "the next server leaves nothing behind either")


def test_a_worker_that_is_stopped_for_a_while_serves_all_that_waited_once() -> None:
    with serving(2) as running:
        sid, pid = start(running)
        os.kill(pid, signal.SIGSTOP)
        answers: list[tuple[int, int]] = []

        def ask() -> None:
            reply = running.fetch("GET", f"/s/{sid}/n")
            answers.append((reply.status, reply.json.get("n", 0)))

        asking = [threading.Thread(target=ask) for _ in range(8)]
        for thread in asking:
            thread.start()
        begun = time.monotonic()
        wait_for(lambda: time.monotonic() - begun > 3.0, 5, interval=0.1)
        assert answers == [], "its requests wait"
        os.kill(pid, signal.SIGCONT)
        for thread in asking:
            thread.join(10)
        assert sorted(answers) == [(200, number) for number in range(1, 9)], "served, none doubled"
        assert pid in workers(running)


def test_a_worker_that_stays_stopped_is_killed_and_its_sessions_are_gone() -> None:
    with serving(2, "--timeout-worker-healthcheck", "2") as running:
        sid, pid = start(running)
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: pid not in workers(running), 12, "it is killed")
        assert "gave no sign of life" in running.log
        assert running.fetch("GET", f"/s/{sid}/n").status == 410


def _as_many_names_as_workers(running: Server) -> None:
    """Nothing of the dead is left in the runtime directory but tombstones."""
    pids = workers(running)
    sockets = os.path.join(running.runtime_dir, "s")
    wait_for(lambda: len(os.listdir(sockets)) == 2 * len(pids), 5, "the sockets of the dead are removed")
    members = os.listdir(os.path.join(running.runtime_dir, "members"))
    assert len([name for name in members if not name.endswith(".id")]) == 3 * len(pids), members
