"""What the session tests share: a server with the session API on, calls to its routes, hooks that are counted."""

from __future__ import annotations

import contextlib
import json
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness import Reply, Server, server

APP = "tests.sessions.app:app"
AUTH = {"url": "http://127.0.0.1", "endpoint": "e", "cost": 10, "reqnum": 1, "request_idx": 2, "signature": "s"}
UNKNOWN = "sw_" + "x" * 43


class Api:
    """The session routes of one server, a new connection each time."""

    def __init__(self, running: Server, log: pathlib.Path) -> None:
        self.server = running
        self.port = running.port
        self.log = log

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **options: Any) -> Reply:
        return self.server.fetch("POST", path, body, headers, **options)

    def create(self, auth_data: Any = AUTH, **payload: Any) -> Reply:
        return self.post("/session/create", {"auth_data": auth_data, "payload": payload})

    def open(self, auth_data: Any = AUTH, **payload: Any) -> str:
        """The ID of a new session; AssertionError if there is none."""
        reply = self.create(auth_data, **payload)
        assert reply.status == 201, (reply.status, reply.text)
        return str(reply.json["session_id"])

    def end(self, session_id: Any, auth: Any = AUTH) -> Reply:
        return self.post("/session/end", {"session_id": session_id, "session_auth": auth})

    def get(self, session_id: Any, auth: Any = AUTH) -> Reply:
        return self.post("/session/get", {"session_id": session_id, "session_auth": auth})

    def health(self, session_id: Any, auth: Any = AUTH) -> Reply:
        return self.post("/session/health", {"session_id": session_id, "session_auth": auth})

    def use(
        self, session_id: Any, route: str = "/echo", payload: Any = None, auth: Any = AUTH, **options: Any
    ) -> Reply:
        document = {"auth_data": auth, "session_id": session_id, "payload": payload if payload is not None else {}}
        return self.post(route, document, **options)

    def load(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.fetch("GET", "/session/load").json
        return found

    def events(self, event: str | None = None, **match: Any) -> list[dict[str, Any]]:
        """What the app noted."""
        if not self.log.exists():
            return []
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [
            each
            for each in lines
            if event in (None, each["event"]) and all(each.get(name) == value for name, value in match.items())
        ]

    def hooks(self, session_id: str) -> list[dict[str, Any]]:
        return [each for each in self.events("hook") if each["body"].get("session_id") == session_id]


@contextlib.contextmanager
def sessions(
    *options: str,
    workers: int = 4,
    app: str = APP,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    **keywords: Any,
) -> Iterator[Api]:
    """A server with the session API on."""
    with tempfile.TemporaryDirectory() as home:
        log = pathlib.Path(home, "events")
        environ = {"SW_TEST_LOG": str(log), **(env or {})}
        given: dict[str, Any] = dict(keywords)
        if command is None:
            given["options"] = ["--session-api", *options]
        else:
            given["command"] = command
        with server(app, workers=workers, env=environ, **given) as running:
            yield Api(running, log)


class HookServer:
    """A server that is posted to; ``got`` holds (path, body, time) of each. ``delay``: seconds before it answers."""

    def __init__(self, delay: float = 0.0, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.got: list[tuple[str, Any, float]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.got.append((self.path, body, time.time()))
                time.sleep(delay)
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

        class Threads(ThreadingHTTPServer):
            request_queue_size = 512
            daemon_threads = True

        self._server = Threads(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def of(self, session_id: str) -> list[Any]:
        return [body for _, body, _ in self.got if body.get("session_id") == session_id]

    def __enter__(self) -> HookServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
