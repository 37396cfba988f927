"""``sessionworkers check``: a pasted request, and what is said of it."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.ruleset import RuleSet
from sessionworkers.affinity.words import parse_rule
from sessionworkers.cli.explain import request_lines, rule_lines
from sessionworkers.cli.pasted import parse_request
from tests.harness import ROOT

JOBS = (
    "path:/v1/jobs/{id} json:job_id start=POST:/v1/jobs end=DELETE:/v1/jobs/{id} late-start=refuse failed-start=release"
)
RULES = RuleSet(
    [parse_rule(JOBS, "jobs"), parse_rule("header:x-session idle=1h gone=404 mint=client", "own")],
    None,
    [PathTemplate("/health")],
)


def said(raw: str, rules: RuleSet = RULES, max_body: int = 2**20) -> str:
    return "\n".join(request_lines(rules, parse_request(raw.encode()), max_body))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_pasted_request_is_read(newline: str) -> None:
    lines = ["", "POST /a%20b?x=1&y HTTP/1.1", "Host: x", "Cookie: a=b", "X-Two:  two ", "", '{"k": 1}']
    view = parse_request(newline.join(lines).encode())
    assert (view.kind, view.method, view.path, view.query) == ("http", "POST", "/a b", b"x=1&y")
    assert view.headers[:3] == [(b"host", b"x"), (b"cookie", b"a=b"), (b"x-two", b"two")]
    assert view.body == b'{"k": 1}' and view.header(b"content-length") == "8"


@pytest.mark.parametrize(
    ("raw", "kind", "path", "body"),
    [
        ("GET /", "http", "/", b""),
        ("GET http://example.org/x?y HTTP/1.0\n\n", "http", "/x", b""),
        ("GET /ws HTTP/1.1\nUpgrade: WebSocket\n\n", "websocket", "/ws", b""),
        ("POST / HTTP/1.1\nContent-Length: 2\n\nab\nnot this", "http", "/", b"ab"),
    ],
)
def test_what_requests_look_like(raw: str, kind: str, path: str, body: bytes) -> None:
    view = parse_request(raw.encode())
    assert (view.kind, view.path, view.body) == (kind, path, body)


@pytest.mark.parametrize(
    ("raw", "part"),
    [("", "no request line"), ("curl http://x", "no request line"), ("GET / HTTP/1.1\nHost x", "no header")],
)
def test_what_is_no_request(raw: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_request(raw.encode())


def test_rules_in_words() -> None:
    jobs = "\n".join(rule_lines(1, RULES.rules[0], "from the settings"))
    for part in (
        "1. jobs (from the settings)",
        "reads the ID from path:/v1/jobs/{id} or json:job_id",
        "opened by POST /v1/jobs",
        "closed by DELETE /v1/jobs/{id}",
        "a refused start leaves nothing",
        "a start after the end is refused (409)",
        "its worker died: 410",
        "kept until it is closed; after its end for 5m",
    ):
        assert part in jobs
    own = "\n".join(rule_lines(2, RULES.rules[1], "from the settings"))
    assert "claimed on sight" in own and "its worker died: 404" in own and "idle for 1h" in own


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        ("GET /health/x HTTP/1.1", ["not routed"]),
        ("GET /v1/jobs/0123456789abcdef HTTP/1.1", ["jobs finds the session ID 01234567… (16 characters)", "410"]),
        ("DELETE /v1/jobs/abcd HTTP/1.1", ["jobs finds the session ID ab… (4 characters)", "closes the session"]),
        (
            'POST /v1/jobs HTTP/1.1\nContent-Type: application/json\n\n{"job_id": "abcd"}',
            ["the ID may stand in the body", "in json:job_id", "opens the", "claims it at once", "refused (409)"],
        ),
        (
            'DELETE /v1/jobs/abcd HTTP/1.1\nContent-Type: application/json\n\n{"job_id": "efgh"}',
            ["It also names ef… (4 characters), in json:job_id: refused (409)"],
        ),
        ("GET / HTTP/1.1\nX-Session: s-1", ["own finds the session ID s…", "404", "claims it at once"]),
        ("GET /other HTTP/1.1", ["no session ID", "jobs: nothing in path:/v1/jobs/{id} or json:job_id"]),
        ("POST /v1/jobs HTTP/1.1", ["no session ID", "It opens a session of jobs"]),
        ("GET / HTTP/1.1\nX-Session: two words", ["own: x-session holds no ID that can be used"]),
        ("GET /v1/jobs/abcd HTTP/1.1\nX-Session: s-1", ["jobs finds", "of own then belongs to the same worker"]),
    ],
)  # fmt: skip
def test_what_a_request_meets(raw: str, parts: list[str]) -> None:
    text = said(raw)
    for part in parts:
        assert part in text, text


def test_a_body_that_is_too_long() -> None:
    raw = 'POST {} HTTP/1.1\nContent-Type: application/json\n\n{{"job_id": "abcd"}}'
    assert "refused (413)" in said(raw.format("/v1/jobs"), max_body=10)
    assert "as without an ID" in said(raw.format("/v1/jobs/other"), RuleSet([parse_rule("json:job_id", "a")]), 10)


def test_the_command(tmp_path: pathlib.Path) -> None:
    request = tmp_path / "request"
    request.write_text("GET /v1/jobs/0123456789abcdef HTTP/1.1\n\n")
    command = [sys.executable, "-m", "sessionworkers", "check", "tests.cli.app:make", "--factory", "--session-id", JOBS]
    result = subprocess.run(
        [*command, "--no-routing", "/health", "--request", str(request)],
        cwd=ROOT, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "1. session-id-1 (from the settings)" in result.stdout
    assert "not routed: /health and all below" in result.stdout
    assert "session-id-1 finds the session ID 01234567…" in result.stdout


@pytest.mark.parametrize(
    ("app", "shown"),
    [
        ("tests.cli.broken:app", "this app is broken"),
        ("nope:app", "nope"),
        ("tests.cli.app:number", "tests.cli.app:number gives 42, which cannot be called"),
    ],
)
def test_an_app_that_cannot_be_loaded(app: str, shown: str) -> None:
    command = [sys.executable, "-m", "sessionworkers", "check", app]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert result.returncode == 3 and shown in result.stderr
