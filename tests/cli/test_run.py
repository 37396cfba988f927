"""``sessionworkers run`` as a real server: one worker, several, reload; how it ends and what it leaves."""

from __future__ import annotations

import contextlib
import http.client
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.harness import ROOT, SESSIONWORKERS, Server, fetch, free_port, server, wait_for

APP = "tests.cli.app:app"
CLI = (sys.executable, "-m", "sessionworkers")


def run(
    args: Sequence[str], env: Mapping[str, str] | None = None, cwd: str = str(ROOT)
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run(
        [*CLI, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=40,
    )


def pids(running: Server) -> set[int]:
    """The pids of all workers, once each has answered."""
    seen: set[int] = set()

    def all_seen() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            seen.add(running.fetch("GET", "/").json["pid"])
        return len(seen) >= running.workers

    wait_for(all_seen, 10.0, interval=0.0)
    return seen


@contextlib.contextmanager
def alone(
    command: Sequence[str], env: Mapping[str, str] | None = None, **kwargs: Any
) -> Iterator[subprocess.Popen[str]]:
    """A server on something that is no port of the harness."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **kwargs,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            output, _ = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        print(output)


def test_several_workers_under_a_manager() -> None:
    with server(APP, workers=2) as running:
        found = pids(running)
        reply = running.fetch("GET", "/").json
        assert running.process.pid not in found and reply["parent"] == running.process.pid
        assert reply["start_method"] is None  # as in any program; a spawned worker would say "spawn"
        assert reply["argv"][1:4] == ["run", APP, "--host"]
        assert reply["input"] == "/dev/null"
        log = running.log
        assert f"Uvicorn running on {running.url} (Press CTRL+C to quit)" in log
        assert f"2 workers, runtime directory {running.runtime_dir}" in log
        assert log.count("Session rules: ") == 1


def test_one_worker_runs_here_without_any_other_process_or_file() -> None:
    with server(APP, workers=1) as running:
        reply = running.fetch("GET", "/").json
        assert reply["pid"] == running.process.pid and running.processes() == [running.process.pid]
        assert os.listdir(running.base) == []
        assert f"Uvicorn running on {running.url} (Press CTRL+C to quit)" in running.log
        assert running.log.count("Session rules: ") == 1
        assert running.stop() == -signal.SIGTERM  # uvicorn's: it raises the signal again when it is done


@pytest.mark.parametrize(
    ("workers", "number", "code"),
    [(2, signal.SIGTERM, 0), (2, signal.SIGINT, 0), (2, signal.SIGQUIT, 0), (1, signal.SIGINT, 0)],
)
def test_exit_codes(workers: int, number: int, code: int) -> None:
    with server(APP, workers=workers) as running:
        running.signal(number)
        assert running.process.wait(10) == code


def test_a_second_interrupt_does_not_wait_for_an_open_stream() -> None:
    with server(APP, workers=2, options=["--timeout-graceful-shutdown", "60"]) as running:
        with socket.create_connection(("127.0.0.1", running.port)) as stream:
            stream.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
            assert stream.recv(100)
            running.signal(signal.SIGINT)
            wait_for(lambda: "Received SIGINT, exiting." in running.log)
            begun = time.monotonic()
            wait_for(lambda: time.monotonic() - begun > 0.6)
            running.signal(signal.SIGINT)
            assert running.process.wait(5) == 130


def test_a_second_interrupt_ends_one_worker_quietly() -> None:
    with server(APP, workers=1, options=["--timeout-graceful-shutdown", "60"]) as running:
        with socket.create_connection(("127.0.0.1", running.port)) as stream:
            stream.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
            assert stream.recv(100)
            running.signal(signal.SIGINT)
            wait_for(lambda: "Waiting for connections to close" in running.log)
            running.signal(signal.SIGINT)
            assert running.process.wait(5) == 130
        assert "Traceback" not in running.log and "appears unsupported" not in running.log


def test_workers_and_port_are_free_after_the_manager_was_killed_and_the_next_start_sweeps() -> None:
    with server(APP, workers=2) as running:
        left = running.runtime_dir
        running.process.kill()
        running.process.wait()
        begun = time.monotonic()
        wait_for(lambda: not running.processes(), 8.0)
        assert time.monotonic() - begun < 5.0
        assert os.path.isdir(left)
        env = {"XDG_RUNTIME_DIR": running.base}
        with alone([*CLI, "run", APP, "--workers", "2", "--port", str(running.port)], env):
            wait_for(lambda: answers(running.port), 15.0)
            assert not os.path.exists(left)


def answers(port: int, **kwargs: Any) -> Any:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return fetch(port, "GET", "/", **kwargs).json
    return None


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("app", "env", "shown"),
    [
        ("tests.cli.nothing:app", {}, 'Could not import module "tests.cli.nothing"'),
        ("tests.cli.app:nothing", {}, 'Attribute "nothing" not found in module "tests.cli.app"'),
        ("tests.cli.broken:app", {}, "RuntimeError: this app is broken"),
        ("tests.cli.app:number", {}, "The app cannot be loaded: tests.cli.app:number gives 42, which cannot be called"),
        ("tests.cli.app:make_number", {}, "tests.cli.app:make_number gives 42, which cannot be called"),
        (APP, {"TEST_LIFESPAN": "fails"}, "the database is away"),
    ],
)
def test_an_app_that_cannot_start_is_shown_and_exits_3(workers: str, app: str, env: dict[str, str], shown: str) -> None:
    result = run(["run", app, "--workers", workers, "--port", str(free_port())], env)
    assert result.returncode == 3
    assert shown in result.stderr
    assert result.stderr.count(shown) <= int(workers)
    assert "Uvicorn running" not in result.stderr
    if "broken" in app:  # shown from the app's own code on
        assert "The app cannot be loaded:\nTraceback" in result.stderr and "importlib" not in result.stderr
        assert "sessionworkers/cli" not in result.stderr and "uvicorn/" not in result.stderr


def test_a_syntax_error_is_shown_where_it_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "slip.py").write_text("def app(scope, receive, send)\n    pass\n")
    result = run(["run", "slip:app", "--port", str(free_port())], cwd=str(tmp_path))
    assert result.returncode == 3
    assert result.stderr.startswith(f'The app cannot be loaded:\n  File "{tmp_path}/slip.py", line 1\n')


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_cost_function_that_is_not_there_is_named(workers: str) -> None:
    args = ["run", APP, "--workers", workers, "--port", str(free_port()), "--session-api", "--local-port", "0"]
    result = run([*args, "--request-cost", "tests.cli.nothing:cost"])
    assert result.returncode == 3 and "Traceback" not in result.stderr
    assert "--request-cost: the function tests.cli.nothing:cost cannot be imported" in result.stderr


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--port", "8000", "--session-api", "--local-port", "8000"], "--local-port is 8000, which is the public port"),
        (["--workers", "4", "--max-workers", "2"], "--max-workers is 2, fewer than the 4 workers"),
        (["--workers", "2", "--runtime-dir", "/proc/none"], "runtime directory /proc/none: cannot be used"),
    ],
)
def test_options_that_do_not_fit_exit_2_before_anything_starts(options: list[str], shown: str) -> None:
    result = run(["run", APP, "--port", str(free_port()), *options])
    assert result.returncode == 2
    assert shown in result.stderr and "Started" not in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_exits_3(workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run(["run", APP, "--workers", workers, "--port", str(taken.getsockname()[1])])
    assert result.returncode == 3
    assert "ddress already in use" in result.stderr and "Traceback" not in result.stderr


def test_settings_that_are_wrong_exit_2_before_anything_starts(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sessionworkers.toml").write_text("idle = 3\n")
    result = run(["run", APP, "--workers", "2", "--retry-window", "x"], {"SESSIONWORKERS_AUTO": "x"}, str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.startswith("sessionworkers: 3 problems with the settings:\n  ")
    assert "Traceback" not in result.stderr and "parent process" not in result.stderr


def test_web_concurrency_decides_and_is_named() -> None:
    command = [part for part in SESSIONWORKERS if part not in ("--workers", "{workers}")]
    with server(APP, workers=2, command=command, env={"WEB_CONCURRENCY": "2"}) as running:
        assert len(pids(running)) == 2
        assert "2 workers (WEB_CONCURRENCY), runtime directory" in running.log
    result = run(["run", APP], {"WEB_CONCURRENCY": "many"})
    assert result.returncode == 2 and "WEB_CONCURRENCY is 'many'" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("how", [["--workers", "1"], ["--workers", "2"], ["--reload", "--reload-dir", "tests/cli"]])
def test_a_unix_socket_is_made_and_removed(how: list[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "s"
    with alone([*CLI, "run", APP, *how, "--uds", str(path)]) as process:
        reply = wait_for(lambda: answers(0, uds=str(path)), 15.0)
        assert reply["pid"]
        process.terminate()
        process.wait(10)
        assert not path.exists()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_an_inherited_descriptor(workers: str, family: socket.AddressFamily, tmp_path: pathlib.Path) -> None:
    uds = str(tmp_path / "s") if family == socket.AF_UNIX else None
    with socket.socket(family) as given:
        given.bind(uds or ("127.0.0.1", 0))
        given.listen()
        port = 0 if uds else given.getsockname()[1]
        number = given.fileno()
        command = [*CLI, "run", APP, "--workers", workers, "--fd", str(number)]
        with alone(command, pass_fds=[number]):
            reply = wait_for(lambda: answers(port, uds=uds, timeout=2.0), 15.0)
            assert reply["client"] is None if uds else reply["client"][0] == "127.0.0.1"


def test_factory_app_dir_env_file_log_config_and_root_path(tmp_path: pathlib.Path) -> None:
    (tmp_path / "far").mkdir()
    shutil.copy(ROOT / "tests" / "cli" / "app.py", tmp_path / "far" / "distant.py")
    (tmp_path / "env").write_text("TEST_VARIABLE=from the file\nSESSIONWORKERS_AUTO=false\n")
    (tmp_path / "log.json").write_text(
        '{"version": 1, "disable_existing_loggers": false, "formatters": {"f": {"format": "OWN %(message)s"}},'
        ' "handlers": {"h": {"class": "logging.StreamHandler", "formatter": "f"}},'
        ' "root": {"handlers": ["h"], "level": "INFO"}}'
    )
    options = ["--factory", "--app-dir", str(tmp_path / "far"), "--env-file", str(tmp_path / "env")]
    options += ["--log-config", str(tmp_path / "log.json"), "--root-path", "/below"]
    with server("distant:make", workers=2, options=options, cwd=tmp_path) as running:
        reply = running.fetch("GET", "/").json
        assert reply["variable"] == "from the file" and reply["root_path"] == "/below"
        log = running.log
        assert log.count("Loading environment from") == 1
        assert "OWN Started parent process" in log and "OWN Started server process" in log
        assert "Session rules: none" in log


def test_secrets_show_nowhere() -> None:
    with server(
        APP,
        workers=2,
        env={"SESSIONWORKERS_SESSION_SECRET": "geheim-1"},
        options=["--ssl-keyfile-password", "geheim-2"],
    ) as running:
        for pid in running.processes():
            assert b"geheim-2" not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            if pid != running.process.pid:
                assert b"geheim" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        assert "geheim" not in running.log


def test_a_closed_standard_input_does_not_become_the_public_socket() -> None:
    port = free_port()
    command = ["sh", "-c", f"exec {' '.join([*CLI, 'run', APP, '--workers', '2', '--port', str(port)])} <&-"]
    with alone(command):
        assert wait_for(lambda: answers(port), 15.0)["input"] == "/dev/null"


def test_tls(tmp_path: pathlib.Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    with server(APP, workers=2, options=["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]) as running:
        context = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", running.port, context=context, timeout=10)
        connection.request("GET", "/")
        assert b'"scheme": "https"' in connection.getresponse().read()
        connection.close()
        assert f"Uvicorn running on https://127.0.0.1:{running.port} " in running.log


def test_a_worker_that_reached_its_request_limit_is_replaced() -> None:
    with server(APP, workers=2, options=["--limit-max-requests", "3"]) as running:
        seen: set[int] = set()

        def four() -> bool:
            if reply := answers(running.port):
                seen.add(reply["pid"])
            return len(seen) >= 4

        wait_for(four, 20.0)
        assert "was ended by" not in running.log and "Killing" not in running.log


def test_reload(tmp_path: pathlib.Path) -> None:
    shutil.copy(ROOT / "tests" / "cli" / "app.py", tmp_path / "changing.py")
    command = [part for part in SESSIONWORKERS if part not in ("--workers", "{workers}")]
    options = ["--reload", "--reload-dir", str(tmp_path), "--reload-delay", "0.1"]
    with server("changing:app", workers=1, command=command, options=options, cwd=tmp_path) as running:
        first = running.fetch("GET", "/").json
        assert first["parent"] == running.process.pid and first["start_method"] is None
        with socket.create_connection(("127.0.0.1", running.port)) as stream:
            stream.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
            assert stream.recv(100)

            def changed() -> Any:
                (tmp_path / "changing.py").touch()
                reply = answers(running.port, timeout=1.0)
                return reply and reply["pid"] != first["pid"]

            wait_for(changed, 25.0, interval=0.3)  # an open stream does not hold it up


def test_a_reloaded_worker_leaves_when_the_reloader_is_killed(tmp_path: pathlib.Path) -> None:
    command = [part for part in SESSIONWORKERS if part not in ("--workers", "{workers}")]
    with server(APP, workers=1, command=command, options=["--reload", "--reload-dir", str(tmp_path)]) as running:
        worker = running.fetch("GET", "/").json["pid"]
        running.process.kill()
        running.process.wait()
        wait_for(lambda: worker not in running.processes(), 5.0)


def test_reload_ignores_workers_and_says_so() -> None:
    with server(
        APP, workers=1, options=["--workers", "3", "--reload", "--reload-dir", tempfile.gettempdir()]
    ) as running:
        assert '"workers" flag is ignored when reloading is enabled.' in running.log


def test_python_flags_reach_the_workers_and_nobody_warns() -> None:
    command = [SESSIONWORKERS[0], "-X", "dev", *SESSIONWORKERS[1:]]
    with server(APP, workers=2, command=command) as running:
        for pid in running.processes():
            assert b"\0-X\0dev\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        running.stop()
        assert "Warning" not in running.log
