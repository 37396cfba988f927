"""The demo's servers: started on a free port, awaited until all workers are up, ended by pid, and seen to be gone."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

APP = "sessionworkers.demo.app:app"
STARTED = "Application startup complete"  # uvicorn's words, one line per worker
BOOT_TIMEOUT = 30.0
STOP_TIMEOUT = 8.0
HOME = "sessionworkers-demo-"
JUST_MADE = 10.0  # seconds that a directory may go without its lock
ENDING = (signal.SIGINT, signal.SIGTERM)

_PR_SET_PDEATHSIG = 1  # prctl(2), Linux
_prctl = getattr(ctypes.CDLL(None), "prctl", None)


class DemoError(Exception):
    """A server of the demo did not start; the message ends with what it said."""


@dataclass
class Running:
    """One server. ``left`` is filled once it was stopped: pids that outlived it and had to be killed."""

    port: int
    process: subprocess.Popen[bytes]
    log: pathlib.Path
    left: list[int] = field(default_factory=list)


def commands(workers: int) -> dict[str, list[str]]:
    """Label: the command without its port, for both servers, in the order they are shown."""
    tail = [APP, "--host", "127.0.0.1", "--workers", str(workers), "--no-access-log", "--log-level", "info"]
    return {
        f"uvicorn --workers {workers}": [sys.executable, "-m", "uvicorn", *tail],
        f"sessionworkers run --workers {workers}": [sys.executable, "-m", "sessionworkers", "run", *tail],
    }


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def members(session: int) -> list[int]:
    """Pids that live in the session ``session`` (a pid: each server leads one of its own); none without /proc."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the name, which may hold anything in its brackets: state, ppid, pgrp, session.
            stat = entry.read_text().rpartition(")")[2].split()
            if int(stat[3]) == session and stat[0] not in "ZX":
                found.append(int(entry.parent.name))
    return found


def _environment() -> dict[str, str]:
    """This process's own, without settings that change either server, and with this very package importable."""
    dropped = ("SESSIONWORKERS_", "UVICORN_", "WEB_CONCURRENCY")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    package = os.fspath(pathlib.Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [package, kept.get("PYTHONPATH", "")]))
    return kept


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _wait(running: Running, workers: int) -> None:
    deadline = time.monotonic() + BOOT_TIMEOUT
    while running.log.read_text(errors="replace").count(STARTED) < workers or not _answers(running.port):
        if running.process.poll() is not None or time.monotonic() > deadline:
            said = "\n".join(running.log.read_text(errors="replace").strip().splitlines()[-12:])
            raise DemoError(f"the server did not come up:\n{said}")
        time.sleep(0.02)


def _stop(running: Running) -> None:
    """SIGTERM to the server; SIGKILL to what is left after ``STOP_TIMEOUT`` seconds, by pid."""
    process = running.process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT
    while (process.poll() is None or members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    running.left = members(process.pid)
    for pid in running.left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()


@contextlib.contextmanager
def serve(command: list[str], workers: int, environment: Mapping[str, str] | None = None) -> Iterator[Running]:
    """The server up with all its workers; stopped in the end, whatever happens meanwhile. ``environment`` is added.

    It leads a session of its own, so that Ctrl-C reaches this process alone, which then ends it. It runs in an empty
    directory: settings files of the caller's project are not the demo's.
    """
    with _home() as home:
        running: Running | None = None
        try:
            with _held_back():
                running = _start(command, home, environment or {})
            _wait(running, workers)
            yield running
        finally:
            if running is not None:
                with _uninterrupted():
                    _stop(running)


@contextlib.contextmanager
def _home() -> Iterator[pathlib.Path]:
    """An empty directory, locked while it is in use. Those that killed demos left behind go first."""
    _sweep()
    with tempfile.TemporaryDirectory(prefix=HOME) as home:
        fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield pathlib.Path(home)
        finally:
            os.close(fd)


def _sweep() -> None:
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{HOME}*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                about = os.fstat(fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: in use
                if about.st_uid == os.geteuid() and time.time() - about.st_mtime > JUST_MADE:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)


def _ends_with_parent() -> None:
    """In the child: a demo that is killed can stop no server, so the kernel does."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _start(command: list[str], home: pathlib.Path, environment: Mapping[str, str]) -> Running:
    port = free_port()
    log = home / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=home,
            env={**_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_ends_with_parent,
        )
    return Running(port, process, log)


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Ctrl-C or SIGTERM between the start of a process and its being known would leave it behind: it waits so long."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C or SIGTERM does not cut short the clean-up after the first."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
