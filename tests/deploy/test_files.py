"""What is in deploy/, each file checked by a validator that is not ours."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.harness import ROOT

DEPLOY = ROOT / "deploy"
BIN = pathlib.Path(sys.executable).parent


def tool(name: str) -> str:
    """A validator of this environment; the test is skipped without it."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def passes(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_dockerfile() -> None:
    # DL3006, DL3042 and the like are on; nothing is ignored.
    assert passes(tool("hadolint"), "--failure-threshold", "style", str(DEPLOY / "Dockerfile")).strip() == ""


def test_the_dockerfile_runs_the_launcher_itself_and_as_nobody() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r'^ENTRYPOINT \["sessionworkers", "run"', text, re.M)
    assert re.search(r"^USER \d+$", text, re.M)


def test_the_compose_file() -> None:
    passes(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml"))


def test_the_kubernetes_manifests() -> None:
    passes(tool("kubernetes-validate"), "--strict", str(DEPLOY / "kubernetes.yaml"))


def test_the_times_of_kubernetes_fit() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    grace = int(re.findall(r"terminationGracePeriodSeconds: (\d+)", text)[0])
    drain = int(re.findall(r'"--for", "(\d+)"', text)[0])
    shutdown = int(re.findall(r'SHUTDOWN_TIMEOUT, value: "(\d+)"', text)[0])
    assert grace >= drain + shutdown + 10


def test_the_times_of_systemd_and_docker_fit() -> None:
    text = (DEPLOY / "systemd" / "sessionworkers.service").read_text()
    assert int(re.findall(r"TimeoutStopSec=(\d+)", text)[0]) > int(re.findall(r"SHUTDOWN_TIMEOUT=(\d+)", text)[0]) + 10
    assert "KillMode=mixed" in text
    text = (DEPLOY / "compose.yaml").read_text()
    assert 60 * int(re.findall(r"stop_grace_period: (\d+)m", text)[0]) >= 110 + 10
    assert 'SHUTDOWN_TIMEOUT: "110"' in text


def test_the_systemd_units(tmp_path: pathlib.Path) -> None:
    """`systemd-analyze verify` wants the binaries to be there."""
    analyze = tool("systemd-analyze")
    for path in (DEPLOY / "systemd").iterdir():
        text = path.read_text().replace("/srv/venv/bin/sessionworkers", shutil.which("true") or "/bin/true")
        (tmp_path / path.name).write_text(text.replace("/srv/app", "/"))
    out = passes(analyze, "verify", "--man=no", *(str(path) for path in sorted(tmp_path.iterdir())))
    assert not [line for line in out.splitlines() if "sessionworkers" in line], out


def test_every_file_is_named_in_the_readme() -> None:
    text = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.iterdir():
        assert path.name == "README.md" or path.name in text


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "kubernetes.yaml", "systemd/sessionworkers.service"])
def test_every_setting_that_is_named_exists(name: str) -> None:
    from sessionworkers.settings import Settings

    for variable in re.findall(r"SESSIONWORKERS_([A-Z_]+)", (DEPLOY / name).read_text()):
        assert variable.lower() in Settings.model_fields
