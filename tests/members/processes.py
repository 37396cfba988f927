"""Real processes for what only processes show: fork, kill, locks. Each is a script that talks in lines."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Without the package's own public names: they would import all the rest, and starting is most of what scripts do here.
PRELUDE = f"""
import os, sys, time, socket, signal, types
sys.modules["sessionworkers"] = types.ModuleType("sessionworkers")
sys.modules["sessionworkers"].__path__ = [{ROOT!r} + "/sessionworkers"]
from sessionworkers.members import *
from sessionworkers.claims import *
def say(*words):
    print(*words, flush=True)
def wait():
    sys.stdin.readline()
"""


class Script:
    """A running script. ``line()`` is the next line it said; ``go()`` lets its ``wait()`` return."""

    def __init__(self, code: str, *args: str, prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(code), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the script ended with {self.process.wait(10)}"
        return text.strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait for it."""
        self.process.kill()
        self.process.wait(10)

    def ends(self) -> int:
        """Let it go on, and return its exit code."""
        self.go()
        return self.process.wait(20)


@contextmanager
def script(code: str, *args: str, prefix: tuple[str, ...] = ()) -> Iterator[Script]:
    running = Script(code, *args, prefix=prefix)
    try:
        yield running
    finally:
        running.kill()
        for stream in (running.process.stdin, running.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass


WORKER = """
runtime = RuntimeDir.adopt(sys.argv[1])
member = Member.enlist(runtime)
listener = member.bind()
member.publish()
say(member.uid)
wait()
"""
