"""The unmodified ``vastai`` 1.9.1 client: 23 checks with four workers on one shared port.

``SESSIONWORKERS_VASTAI_PYTHON`` names the interpreter of a venv that holds it (``.ci/vastai`` makes one).
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

from tests.harness import GUNICORN
from tests.sessions.kit import sessions

PYTHON = os.environ.get("SESSIONWORKERS_VASTAI_PYTHON", "")
SCRIPT = pathlib.Path(__file__).with_name("real_client.py")
CHECKS = 23
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not PYTHON, reason="SESSIONWORKERS_VASTAI_PYTHON names no interpreter"),
]


def real_client(port: int, slots: int) -> dict[str, str]:
    """The checks that failed, by name, with what was seen."""
    done = subprocess.run(
        [PYTHON, str(SCRIPT), f"http://127.0.0.1:{port}", str(port + 1), str(slots)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    checks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(checks) == CHECKS, done.stdout[-2000:] + done.stderr[-2000:]
    return {each["check"]: each["note"] for each in checks if not each["ok"]}


def test_the_real_client_with_four_workers() -> None:
    with sessions("--hook-allow", "127.0.0.1") as api:
        assert real_client(api.port, 40) == {}


def test_the_real_client_with_one_worker() -> None:
    with sessions("--hook-allow", "127.0.0.1", workers=1) as api:
        assert real_client(api.port, 10) == {}


def test_the_real_client_under_gunicorn() -> None:
    environ = {"SESSIONWORKERS_SESSION_API": "true", "SESSIONWORKERS_HOOK_ALLOW": "127.0.0.1"}
    with sessions(command=[*GUNICORN, "--graceful-timeout", "4"], env=environ) as api:
        assert real_client(api.port, 40) == {}
