"""The manager with real processes: what dies is replaced, what is told to stop stops, nothing stays."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness import ROOT, fetch, wait_for

PARENT = pathlib.Path(__file__).with_name("parent.py")


@dataclass
class Running:
    process: subprocess.Popen[str]
    port: int
    log: pathlib.Path

    def ask(self, path: str = "/") -> dict[str, Any] | None:
        with contextlib.suppress(OSError):
            reply: dict[str, Any] = fetch(self.port, "GET", path, timeout=1.0).json
            return reply
        return None

    def workers(self) -> set[int]:
        """Pids of the manager's children."""
        return set(children(self.process.pid))

    def serving(self, count: int) -> set[int]:
        """The pids that answer, once ``count`` different ones did and no others run."""
        seen: set[int] = set()

        def found() -> bool:
            if reply := self.ask():
                seen.add(reply["pid"])
            seen.intersection_update(self.workers())
            return len(seen) == count == len(self.workers())

        wait_for(found, 15.0, f"{count} workers", interval=0.0)
        return seen

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextlib.contextmanager
def manager(tmp_path: pathlib.Path, workers: int, behaviour: str = "", *more: str) -> Iterator[Running]:
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, str(PARENT), str(workers), behaviour, *more],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    seen: set[int] = set()
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 40.0)[0], log.read_text()
        address = process.stdout.readline()
        running = Running(process, int(address.rpartition(":")[2] or 0), log)
        yield running
    finally:
        seen.update(children(process.pid))
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        for pid in seen:
            if alive(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        print(log.read_text())


def refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_killed_worker_is_replaced(tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 2) as running:
        before = running.serving(2)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not alive(victim))
        after = running.serving(2)
        assert len(before & after) == 1
        assert f"Worker [{victim}] was ended by SIGKILL." in running.log.read_text()


def test_a_worker_is_execed_in_a_group_of_its_own_and_sees_the_servers_argv(tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 1) as running:
        reply = running.ask()
        assert reply is not None
        assert reply["group"] == reply["pid"] and reply["parent"] == running.process.pid
        assert "stand_in" in pathlib.Path(f"/proc/{reply['pid']}/cmdline").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_stops_at_a_signal(number: signal.Signals, tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 2) as running:
        workers = running.serving(2)
        begun = time.monotonic()
        running.signal(number)
        assert running.process.wait(10.0) == 0
        assert time.monotonic() - begun < 5.0
        assert not any(map(alive, workers)) and refused(running.port)


def test_a_second_interrupt_kills_workers_that_do_not_stop(tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 2, "stuck", "60") as running:
        workers = running.serving(2)
        running.signal(signal.SIGINT)
        wait_for(lambda: "Received SIGINT, exiting" in running.log.read_text())
        begun = time.monotonic()
        wait_for(lambda: time.monotonic() - begun > 0.6)
        assert all(map(alive, workers))
        running.signal(signal.SIGINT)
        assert running.process.wait(5.0) == 130
        assert not any(map(alive, workers))


def test_one_interrupt_that_comes_twice_is_one(tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 2) as running:
        running.serving(2)
        running.signal(signal.SIGINT)
        wait_for(lambda: "Received SIGINT, exiting" in running.log.read_text(), interval=0.0)
        running.signal(signal.SIGINT)
        assert running.process.wait(5.0) == 0
        assert "Killing" not in running.log.read_text()


def test_a_quick_stop_kills_workers_that_do_not_stop(tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 1, "stuck", "60") as running:
        workers = running.serving(1)
        running.signal(signal.SIGQUIT)
        assert running.process.wait(10.0) == 0
        assert not any(map(alive, workers))


@pytest.mark.parametrize("behaviour", ["", "stuck"])
def test_workers_leave_when_the_manager_is_killed(behaviour: str, tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 2, behaviour) as running:
        workers = running.serving(2)
        begun = time.monotonic()
        running.signal(signal.SIGKILL)
        try:
            wait_for(lambda: not any(map(alive, workers)), 8.0)
        finally:
            for pid in filter(alive, workers):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() - begun < 5.0
        assert refused(running.port)


@pytest.mark.parametrize(("behaviour", "starts"), [("exit=3", 1), ("exit=1", 5)])
def test_workers_that_cannot_start_end_the_server(behaviour: str, starts: int, tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 1, behaviour) as running:
        assert running.process.wait(20.0) == 3
        log = running.log.read_text()
        assert log.count("ended with exit code") == starts
        assert log.count("No worker could start, stopping.") == 1


def test_restart_replaces_every_worker_and_a_broken_release_none(tmp_path: pathlib.Path) -> None:
    release = tmp_path / "release"
    release.write_text("")
    with manager(tmp_path, 2, f"file={release}") as running:
        before = running.serving(2)
        running.signal(signal.SIGHUP)
        wait_for(lambda: not (before & running.workers()), 15.0)
        after = running.serving(2)
        assert not before & after
        release.write_text("exit=3")
        running.signal(signal.SIGHUP)
        wait_for(lambda: "restart given up" in running.log.read_text())
        assert running.serving(2) == after


def test_more_and_fewer_workers(tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 1) as running:
        running.serving(1)
        running.signal(signal.SIGTTIN)
        running.serving(2)
        running.signal(signal.SIGTTOU)
        running.serving(1)
        running.signal(signal.SIGTTOU)
        wait_for(lambda: "1 workers wanted already" in running.log.read_text())


def test_a_stopped_worker_is_found_and_replaced(tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 2, "", "2", "1") as running:
        before = running.serving(2)
        victim = min(before)
        os.kill(victim, signal.SIGSTOP)
        wait_for(lambda: not alive(victim), 10.0)
        assert "gave no sign of life" in running.log.read_text()
        assert len(running.serving(2) & before) == 1


def test_a_manager_that_was_stopped_itself_blames_nobody(tmp_path: pathlib.Path) -> None:
    with manager(tmp_path, 1, "", "2", "4") as running:  # 5 s of silence: the test itself may be late on a busy machine
        before = running.serving(1)
        pids = [running.process.pid, *before]
        for pid in pids:  # as docker pause does
            os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        wait_for(lambda: time.monotonic() - begun > 6.5, 9.0, interval=0.1)
        running.signal(signal.SIGCONT)  # the manager first: it finds nothing but silence
        wait_for(lambda: pathlib.Path(f"/proc/{running.process.pid}/stat").read_text().split()[2] == "S")
        os.kill(min(before), signal.SIGCONT)
        assert running.serving(1) == before
        assert "no sign of life" not in running.log.read_text()


def test_orphans_are_buried(tmp_path: pathlib.Path) -> None:
    """As PID 1 of a container the manager is the parent of whatever its workers leave behind."""
    with manager(tmp_path, 1, "orphan") as running:
        left = wait_for(lambda: set(orphans(running.process.pid)), 5.0)
        wait_for(lambda: not left & set(children(running.process.pid)), 5.0)
        assert running.serving(1)


def orphans(pid: int) -> list[int]:
    """Children of ``pid`` that are in a group of another process."""
    found = []
    for child in children(pid):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) != child:
                found.append(child)
    return found


def test_no_worker_is_waited_for_and_nothing_spins(tmp_path: pathlib.Path) -> None:
    """TERM is obeyed although a restart waits for a worker that does not stop; and idling costs no CPU."""
    with manager(tmp_path, 1, "stuck", "60") as running:
        before = running.serving(1)
        running.signal(signal.SIGHUP)
        wait_for(lambda: len(running.workers()) == 2 and running.ask(), 10.0)
        wait_for(lambda: (running.ask() or {}).get("pid") not in before | {None}, 10.0)
        used = cpu(running.process.pid)
        begun = time.monotonic()
        wait_for(lambda: time.monotonic() - begun > 1.0, 3.0, interval=0.1)
        assert cpu(running.process.pid) - used < 0.1
        running.signal(signal.SIGTERM)
        wait_for(lambda: "Received SIGTERM, exiting." in running.log.read_text(), 1.0)
        begun = time.monotonic()
        wait_for(lambda: time.monotonic() - begun > 0.6)
        running.signal(signal.SIGINT)
        assert running.process.wait(5.0) == 130


def cpu(pid: int) -> float:
    """Seconds of CPU that ``pid`` has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
