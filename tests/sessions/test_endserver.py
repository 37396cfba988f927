"""The loopback end server: one route, for this machine, and nothing that a browser could be made to send."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.harness import GUNICORN, ROOT, SESSIONWORKERS, UVICORN, fetch, free_port, server, wait_for
from tests.sessions.kit import APP, AUTH, UNKNOWN, Api, sessions

TRIES = 8


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions("--max-sessions", "0") as running:
        yield running


def raw(port: int, request: bytes, timeout: float = 8) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout) as sock:
        sock.sendall(request)
        answer = b""
        while data := sock.recv(65536):
            answer += data
        return answer


def status(answer: bytes) -> int:
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.") else 0


def credentials(session_id: str) -> bytes:
    return json.dumps({"session_id": session_id, "session_auth": AUTH}).encode()


def request(
    body: bytes, *, line: str = "POST /session/end HTTP/1.1", headers: str = "", host: str | None = None
) -> bytes:
    lines = [line, *([f"Host: {host}"] if host else []), f"Content-Length: {len(body)}", *headers.split("\n")]
    return "\r\n".join(each for each in lines if each).encode() + b"\r\n\r\n" + body


def test_it_ends_sessions_of_any_worker(api: Api) -> None:
    for _ in range(TRIES):
        session_id = api.open()
        body = {"session_id": session_id, "session_auth": AUTH}
        reply = fetch(api.port + 1, "POST", "/session/end", body)
        assert (reply.status, reply.json) == (200, {"ended": True, "removed_session": session_id})
        assert api.use(session_id).status == 410
        assert fetch(api.port + 1, "POST", "/session/end", body).status == 410


def test_it_answers_as_the_main_port_does(api: Api) -> None:
    session_id = api.open()
    for body, expected in (
        ({"session_id": UNKNOWN, "session_auth": AUTH}, 400),
        ({"session_id": session_id, "session_auth": {}}, 401),
        ({"session_id": session_id}, 401),
        ({}, 422),
        ([], 422),
        (b"{", 422),
    ):
        assert fetch(api.port + 1, "POST", "/session/end", body).status == expected
    assert api.health(session_id).json == {"ok": True}


@pytest.mark.parametrize(
    "path", ["/", "/echo", "/session/get", "/session/create", "/session/health", "/session/load", "/session/end/x"]
)
def test_it_serves_nothing_else(api: Api, path: str) -> None:
    assert fetch(api.port + 1, "POST", path, {}).status == 404
    assert fetch(api.port + 1, "GET", path).status == 404


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_it_takes_posts_alone(api: Api, method: str) -> None:
    reply = fetch(api.port + 1, method, "/session/end")
    assert (reply.status, reply.header("allow")) == (405, "POST")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_hosts_of_this_machine_are_served(api: Api, name: str) -> None:
    answer = raw(api.port + 1, request(credentials(api.open()), host=f"{name}:{api.port + 1}"))
    assert status(answer) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "localhost",
        "127.0.0.1:1",
        "127.0.0.1.evil.example:{port}",
        "0.0.0.0:{port}",
        "",
    ],
)
def test_other_hosts_are_421(api: Api, host: str) -> None:
    session_id = api.open()
    answer = raw(api.port + 1, request(credentials(session_id), host=host.format(port=api.port + 1) or None))
    assert status(answer) in ((421,) if host else (400, 421))
    assert api.health(session_id).json == {"ok": True}


@pytest.mark.parametrize(
    "headers",
    [
        "Origin: http://evil.example",
        "Origin: null",
        "Origin: http://127.0.0.1",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-origin",
        "Origin: null\nContent-Type: text/plain",
    ],
)
def test_web_pages_are_403(api: Api, headers: str) -> None:
    session_id = api.open()
    answer = raw(api.port + 1, request(credentials(session_id), host=f"127.0.0.1:{api.port + 1}", headers=headers))
    assert status(answer) == 403
    assert api.health(session_id).json == {"ok": True}


def test_bodies_have_64_kib_whatever_they_say(api: Api) -> None:
    session_id = api.open()
    host = f"127.0.0.1:{api.port + 1}"
    large = json.dumps({"session_id": session_id, "session_auth": AUTH, "x": "x" * 100_000}).encode()
    assert status(raw(api.port + 1, request(large, host=host))) == 413
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(large[at : at + 8000]), large[at : at + 8000]) for at in range(0, len(large), 8000)
    )
    head = f"POST /session/end HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    assert status(raw(api.port + 1, head + chunks + b"0\r\n\r\n")) == 413
    assert api.health(session_id).json == {"ok": True}


def test_a_chunked_end_is_one(api: Api) -> None:
    body = credentials(api.open())
    head = (
        f"POST /session/end HTTP/1.1\r\nHost: 127.0.0.1:{api.port + 1}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    assert status(raw(api.port + 1, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))) == 200


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"POST /session/end HTTP/9.9\r\n\r\n", b"x" * 70_000 + b"\r\n\r\n"],
)
def test_what_is_no_http_is_turned_away(api: Api, data: bytes) -> None:
    try:
        assert status(raw(api.port + 1, data)) in (0, 400, 421, 431)
    except ConnectionError:
        pass
    assert fetch(api.port + 1, "POST", "/session/end", {"session_id": UNKNOWN}).status == 400


def test_a_request_that_never_ends_is_408(api: Api) -> None:
    begun = time.monotonic()
    answer = raw(api.port + 1, f"POST /session/end HTTP/1.1\r\nHost: 127.0.0.1:{api.port + 1}\r\n".encode(), 12)
    assert status(answer) == 408
    assert time.monotonic() - begun < 8


def test_idle_connections_do_not_keep_others_out(api: Api) -> None:
    held = [socket.create_connection(("127.0.0.1", api.port + 1)) for _ in range(100)]
    try:
        assert fetch(api.port + 1, "POST", "/session/end", {"session_id": UNKNOWN}).status == 400
    finally:
        for sock in held:
            sock.close()


def test_the_workers_know_the_port_before_the_app_is_imported(api: Api) -> None:
    found = api.server.fetch("GET", "/env").json
    port = str(api.port + 1)
    assert found == {"SESSIONWORKERS_LOCAL_PORT": port, "WORKER_HTTP_PORT": port, "at_import": port}


def test_the_port_can_be_named_or_left_out() -> None:
    port = free_port()
    with sessions("--local-port", str(port), workers=2) as api:
        body = {"session_id": api.open(), "session_auth": AUTH}
        assert fetch(port, "POST", "/session/end", body).status == 200
    with sessions("--local-port", "0", workers=2) as api:
        assert api.server.fetch("GET", "/env").json["WORKER_HTTP_PORT"] is None
        with pytest.raises(ConnectionRefusedError):
            fetch(api.port + 1, "POST", "/session/end", {})


def test_without_the_session_api_there_is_no_port() -> None:
    with server(APP, workers=2) as plain:
        assert plain.fetch("GET", "/env").json["WORKER_HTTP_PORT"] is None
        with pytest.raises(ConnectionRefusedError):
            fetch(plain.port + 1, "POST", "/session/end", {})
        assert plain.fetch("POST", "/session/create", {}).status == 404


def plain_environ() -> dict[str, str]:
    """This process's environment without settings, and with this package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SESSIONWORKERS_")}
    return {**kept, "PYTHONPATH": os.fspath(ROOT)}


def run(*arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    environ = plain_environ()
    command = [sys.executable, "-m", "sessionworkers", "run", APP, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout, check=False)


def test_a_unix_socket_has_no_port_to_count_from(tmp_path: pathlib.Path) -> None:
    done = run("--uds", str(tmp_path / "s"), "--session-api", "--workers", "2")
    assert done.returncode == 2
    assert "--local-port" in done.stderr


def test_a_unix_socket_with_a_named_port(tmp_path: pathlib.Path) -> None:
    port, path = free_port(), f"/dev/shm/sw-test-{os.getpid()}.sock"
    command = [part for part in SESSIONWORKERS if part not in ("--host", "127.0.0.1", "--port", "{port}")]
    process = subprocess.Popen(
        [
            *[part.format(app=APP, workers=2) for part in command],
            "--uds",
            path,
            "--session-api",
            "--local-port",
            str(port),
        ],
        env=plain_environ(),
        stderr=subprocess.DEVNULL,
    )
    try:

        def answers() -> bool:
            try:
                return fetch(0, "GET", "/plain", uds=path).status == 200
            except OSError:
                return False

        wait_for(answers, 20)
        made = fetch(0, "POST", "/session/create", {"auth_data": AUTH, "payload": {}}, uds=path)
        body = {"session_id": made.json["session_id"], "session_auth": AUTH}
        assert fetch(port, "POST", "/session/end", body).status == 200
    finally:
        process.terminate()
        process.wait(15)


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("--port", str(free_port()), "--session-api", "--local-port", str(taken.getsockname()[1]))
    assert done.returncode == 3
    assert "--local-port" in done.stderr


def test_gunicorns_workers_share_the_port() -> None:
    with sessions(workers=3, command=GUNICORN, env={"SESSIONWORKERS_SESSION_API": "true"}) as api:
        found = api.server.fetch("GET", "/env").json
        assert found["WORKER_HTTP_PORT"] == found["at_import"] == str(api.port + 1)
        for _ in range(TRIES):
            session_id = api.open(on_close_route="/hook")
            assert api.use(session_id).json["session"] == session_id
            body = {"session_id": session_id, "session_auth": AUTH}
            assert fetch(api.port + 1, "POST", "/session/end", body).status == 200
            assert api.use(session_id).status == 410
            assert len(api.hooks(session_id)) == 1


def test_one_worker_serves_the_port_too() -> None:
    with sessions(workers=1) as api:
        body = {"session_id": api.open(), "session_auth": AUTH}
        assert fetch(api.port + 1, "POST", "/session/end", body).status == 200


def test_reload_serves_the_port_too() -> None:
    with sessions("--reload", workers=1) as api:
        found = api.server.fetch("GET", "/env").json
        assert found["WORKER_HTTP_PORT"] == found["at_import"] == str(api.port + 1)
        body = {"session_id": api.open(), "session_auth": AUTH}
        assert fetch(api.port + 1, "POST", "/session/end", body).status == 200


def test_the_plain_asgi_way_in_serves_a_named_port(tmp_path: pathlib.Path) -> None:
    port = free_port()
    runtime = f"/dev/shm/sw-test-{os.getpid()}-runtime"
    environ = {
        "SESSIONWORKERS_RUNTIME_DIR": runtime,
        "SESSIONWORKERS_SESSION_API": "true",
        "SESSIONWORKERS_LOCAL_PORT": str(port),
    }
    with sessions(app="tests.sessions.routed:app", workers=2, command=UVICORN, env=environ) as api:
        for _ in range(TRIES):
            session_id = api.open()
            assert api.use(session_id).json["session"] == session_id
            body = {"session_id": session_id, "session_auth": AUTH}
            assert fetch(port, "POST", "/session/end", body).status == 200
            assert api.use(session_id).status == 410
    assert not os.path.exists(runtime)
