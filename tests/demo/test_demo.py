"""The demo: its client tells right from wrong, its command shows both servers and leaves nothing behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter

import pytest

from sessionworkers.demo import cli, client, servers
from tests.harness import MARK, ROOT, UVICORN, processes, server, wait_for

COMMAND = [sys.executable, "-c", "from sessionworkers.demo.cli import demo; demo()"]


def run_client(port: int, count: int) -> tuple[client.Outcome, int]:
    seen: list[int] = []
    outcome = asyncio.run(client.run(port, count, seen.append))
    return outcome, sum(seen)


def test_one_worker_gets_every_session_right() -> None:
    with server(servers.APP, workers=1, command=UVICORN) as s:
        outcome, seen = run_client(s.port, 50)
    assert (outcome.right, outcome.wrong, seen) == (50, Counter(), 50)


def test_four_plain_workers_lose_sessions() -> None:
    with server(servers.APP, workers=4, command=UVICORN) as s:
        outcome, seen = run_client(s.port, 50)
    assert outcome.right < 40
    assert set(outcome.wrong) == {"404 no such session"}
    assert outcome.right + sum(outcome.wrong.values()) == seen == 50


def test_a_server_that_is_not_there_is_wrong_in_words() -> None:
    outcome, _ = run_client(servers.free_port(), 3)
    assert outcome.wrong == Counter({"ConnectionRefusedError": 3})


def test_table() -> None:
    shown = cli.table({"plain": client.Outcome(3, Counter({"404 no such session": 7})), "ours": client.Outcome(10)})
    assert shown.splitlines() == [
        "server  right  wrong  what wrong looked like",
        "plain       3      7  404 no such session (7)",
        "ours       10      0  -",
    ]


def marked() -> tuple[str, dict[str, str]]:
    mark = uuid.uuid4().hex
    return mark, {**os.environ, MARK: mark, "PYTHONPATH": os.fspath(ROOT)}


def test_the_command_shows_both_and_exits_0(tmp_path: pathlib.Path) -> None:
    mark, environ = marked()
    done = subprocess.run([*COMMAND, "--sessions", "50"], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    uvicorn_row, our_row = (line.split() for line in done.stdout.strip().splitlines()[-2:])
    assert int(uvicorn_row[3]) < 40
    assert our_row[:6] == ["sessionworkers", "run", "--workers", "4", "50", "0"]
    assert processes(mark) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("children", [2, 5], ids=["while-starting", "while-up"])
def test_interrupted_it_leaves_no_process(tmp_path: pathlib.Path, number: signal.Signals, children: int) -> None:
    mark, environ = marked()
    demo = subprocess.Popen(
        [*COMMAND, "--sessions", "5000"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len(processes(mark)) >= children, 20, "the demo's servers started")
        demo.send_signal(number)
        assert demo.wait(20) == 1
        assert processes(mark) == []
    finally:
        demo.kill()
        demo.wait()


def test_killed_it_leaves_no_process(tmp_path: pathlib.Path) -> None:
    mark, environ = marked()
    demo = subprocess.Popen([*COMMAND, "--sessions", "5000"], cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(processes(mark)) >= 5, 20, "the demo's servers started")
    finally:
        demo.kill()
        demo.wait()
    wait_for(lambda: not processes(mark), 20, "its servers ended with it")


def test_a_server_that_cannot_start_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "BOOT_TIMEOUT", 5.0)
    with pytest.raises(servers.DemoError, match="No module named"):
        with servers.serve([sys.executable, "-m", "sessionworkers.no_such_module"], 1):
            raise AssertionError("never up")


def test_what_killed_demos_left_goes_at_the_next_start(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, used, young, other = (tmp_path / f"{servers.HOME}{name}" for name in ("old", "used", "young", "other"))
    for path in (old, used, young):
        path.mkdir()
        (path / "log").write_text("Started")
    other.symlink_to(ROOT)
    for path in (old, used):
        os.utime(path, (0, 0))
    fd = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)  # as a demo that runs does
        with servers._home() as home:
            assert {path.name for path in tmp_path.iterdir()} == {used.name, young.name, other.name, home.name}
            os.utime(home, (0, 0))
            servers._sweep()
            assert home.exists(), "its own is in use"
    finally:
        os.close(fd)
    assert not home.exists()
