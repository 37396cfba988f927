"""The stress run itself, small: every row right under sessionworkers, and wrong where nothing routes."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.harness import ROOT


def stress(*options: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    command = [sys.executable, "-m", "benchmarks.stress", *options]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=55)


def test_every_row_is_right() -> None:
    done = stress("--workers", "4", "--scale", "0.03")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 10, lines
    assert " 120 of 120 " in lines[0], lines[0]


def test_without_routing_it_fails() -> None:
    done = stress("--workers", "4", "--scale", "0.01", "--plain", "--only", "episodes", "quiet")
    assert done.returncode == 1
    assert "a wrong count" in done.stdout, done.stdout + done.stderr
