"""Worker processes: exec, never fork or spawn, and an inherited descriptor with all that a worker must know.

A worker is ``python -m sessionworkers _worker FD``. So an upgraded package starts under the old manager, the app sees
multiprocessing as in any program, and secrets are neither in the process list nor in the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

MAX_OPTIONS = 16 * 2**20


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker is told. ``config``: keywords of uvicorn.Config as JSON has them; ``settings``: Settings.to_json.

    Read by releases older and newer than the writer's: every field has a default, unknown ones are left out.
    """

    config: dict[str, Any] = field(default_factory=dict)
    settings: str = "{}"
    app_dir: str | None = None
    runtime_dir: str | None = None
    sockets: list[int] = field(default_factory=list)
    argv: list[str] = field(default_factory=list)
    """The server's own ``sys.argv``, which apps may look at."""
    link: int | None = None
    local: int | None = None
    """The loopback port's listening socket, where there is one."""

    def with_(self, **changes: Any) -> WorkerOptions:
        """These options with some fields changed."""
        return replace(self, **changes)

    def to_fd(self) -> int:
        """A descriptor of an unnamed file that holds these options, at its beginning. The caller closes it."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("sessionworkers-options")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        with open(os.dup(fd), "w", encoding="utf-8") as stream:
            json.dump(asdict(self), stream)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    @classmethod
    def from_fd(cls, fd: int) -> WorkerOptions:
        """Read what :meth:`to_fd` wrote and close ``fd``. Raises OSError or ValueError for anything else."""
        with open(fd, encoding="utf-8") as stream:
            found = json.loads(stream.read(MAX_OPTIONS))
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in found.items() if name in known})


@dataclass
class Process:
    """A running worker: its pid (also its process group) and the manager's end of the link."""

    pid: int
    link: socket.socket


def worker_command() -> list[str]:
    """The command of a worker, but for the number of its options' descriptor."""
    # The flags of this interpreter (-O, -W, -X …); what multiprocessing hands its children by the same function.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-m", "sessionworkers", "_worker"]


def launch(command: Sequence[str], options: WorkerOptions) -> Process:
    """Start a worker in a process group of its own, so that a terminal's Ctrl-C reaches the manager alone.

    The descriptors in ``options.sockets`` must be inheritable. Raises OSError.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs, _closing(options.with_(link=theirs.fileno()).to_fd()) as fd:
            os.set_inheritable(fd, True)
            theirs.set_inheritable(True)
            argv = [*command, str(fd)]
            # A terminal's input belongs to the group in its foreground; a worker that read it would be stopped.
            no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
            pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[no_input], setpgroup=0)
    except BaseException:
        ours.close()
        raise
    ours.setblocking(False)
    return Process(pid, ours)


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def reap() -> list[tuple[int, int]]:
    """(pid, exit code) of every child that has ended, the code negative for a signal. Never waits.

    All children, not only workers: as PID 1 of a container the manager also gets orphans to bury.
    """
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))
