from __future__ import annotations

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
    import os

    if os.geteuid() != 0:
        pytest.skip("needs root, to act as another user")
    return ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


def tree(path: str) -> list[str]:
    """Every path below ``path``, relative."""
    return sorted(str(entry.relative_to(path)) for entry in Path(path).rglob("*"))
