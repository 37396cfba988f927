"""What every test gets: an environment without this machine's own server settings."""

from __future__ import annotations

import os
import re

import pytest

_OURS = re.compile(r"^(SESSIONWORKERS_(?!FULL$|NEMO_|VASTAI_)|UVICORN_|WEB_CONCURRENCY$|FORWARDED_ALLOW_IPS$)")


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if _OURS.match(name):
            monkeypatch.delenv(name)
