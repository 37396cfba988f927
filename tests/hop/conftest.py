from __future__ import annotations

import pytest


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    """The kind of event loop that both ends run on."""
    kind: str = request.param
    return kind
