"""Servers that several tests share; tests that kill or restart start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import Server
from tests.validation.gym import WINDOW, gym, pids


@pytest.fixture(scope="package")
def many() -> Iterator[Server]:
    """Three workers, the default windows."""
    with gym(3) as server:
        yield server


@pytest.fixture(scope="package")
def quick() -> Iterator[Server]:
    """Two workers, all windows one second."""
    with gym(2, window=WINDOW) as server:
        yield server


@pytest.fixture(scope="package")
def single() -> Iterator[Server]:
    """One worker."""
    with gym(1) as server:
        yield server


@pytest.fixture
def workers(many: Server) -> list[int]:
    return pids(many)
