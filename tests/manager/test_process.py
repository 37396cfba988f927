"""How a worker is started and told what it must know."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile

import pytest

from sessionworkers.manager.process import WorkerOptions, launch, reap, worker_command
from tests.harness import wait_for

OPTIONS = WorkerOptions(config={"app": "a:b", "headers": [["x", "ü"]]}, settings='{"session_secret": ["geheim"]}')


@pytest.mark.parametrize("memfd", [True, False])
def test_options_travel_by_descriptor(memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not memfd:
        monkeypatch.delattr(os, "memfd_create")
    assert WorkerOptions.from_fd(OPTIONS.to_fd()) == OPTIONS


def test_options_of_another_release() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps({"app_dir": "x", "of the next release": 1}).encode())
        file.seek(0)
        assert WorkerOptions.from_fd(os.dup(file.fileno())) == WorkerOptions(app_dir="x")


def test_the_interpreters_flags_are_handed_on() -> None:
    command = worker_command()
    assert command[0] == sys.executable and command[-3:] == ["-m", "sessionworkers", "_worker"]


def test_nothing_secret_shows_and_nothing_else_is_inherited(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    code = (
        "import os, sys, json, time\n"
        f"open({str(out)!r} + '.part', 'w').write(json.dumps([os.getpid(), os.getpgrp(), sys.argv[1:],"
        " sorted(int(n) for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n))]))\n"
        f"os.rename({str(out)!r} + '.part', {str(out)!r})\n"
        "time.sleep(60)\n"
    )
    private, _ = os.pipe()
    process = launch([sys.executable, "-c", code], OPTIONS)
    try:
        wait_for(out.exists)
        pid, group, argv, fds = json.loads(out.read_text())
        shown = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() + pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        os.kill(process.pid, 9)
        wait_for(lambda: (process.pid, -9) in reap())
        process.link.close()
    assert pid == group == process.pid
    assert b"geheim" not in shown
    assert int(argv[0]) in fds and private not in fds


def test_a_command_that_does_not_exist() -> None:
    with pytest.raises(OSError):
        launch(["/does/not/exist"], OPTIONS)
