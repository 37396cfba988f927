"""One pair of workers for each mechanism and loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.raw.servers import Pair, pair

KINDS = [(mechanism, loop) for mechanism in ("frames", "raw", "handover") for loop in ("asyncio", "uvloop")]
KINDS.append(("handover+api", "uvloop"))


@pytest.fixture(scope="session", params=KINDS, ids="-".join)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="session")
def two(kind: tuple[str, str]) -> Iterator[Pair]:
    with pair(*kind) as found:
        yield found
