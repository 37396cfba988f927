"""What every test gets: an environment without this machine's own server settings.

Variables that steer the tests themselves (``SESSIONWORKERS_FULL`` and the like) are read when modules are imported, and
go too: a server that a test starts takes any unknown one for a mistake.
"""

from __future__ import annotations

import os
import re
import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so, and all that a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_OURS = re.compile(r"^(SESSIONWORKERS_|UVICORN_|WEB_CONCURRENCY$|FORWARDED_ALLOW_IPS$)")


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if _OURS.match(name):
            monkeypatch.delenv(name)
