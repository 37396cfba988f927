from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionworkers.members import RuntimeDir


@pytest.fixture
def base() -> Iterator[str]:
    """An empty directory with a short path: pytest's own are too deep for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="b-") as path:
        yield path


@pytest.fixture
def runtime(base: str) -> Iterator[RuntimeDir]:
    made = RuntimeDir.create(base)
    yield made
    made.close()


@pytest.fixture
def stranger() -> tuple[str, ...]:
    """What to put before a command to run it as another user."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to act as another user")
    return ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


@pytest.fixture
def strange_python(stranger: tuple[str, ...], base: str) -> tuple[str, ...]:
    """The same for a Python script, where the other user can run this interpreter at all."""
    os.chmod(base, 0o755)
    if subprocess.run([*stranger, sys.executable, "-c", ""], cwd=base, capture_output=True).returncode:
        pytest.skip("another user cannot run this interpreter")
    return stranger


def tree(path: str) -> list[str]:
    """Every path below ``path``, relative."""
    return sorted(str(entry.relative_to(path)) for entry in Path(path).rglob("*"))
