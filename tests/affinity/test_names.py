"""Which names are session-like."""

from __future__ import annotations

import pytest

from sessionworkers.affinity.names import (
    is_collection,
    is_no_session,
    is_session_header,
    is_session_key,
    is_sight_key,
    normal_key,
)


@pytest.mark.parametrize(
    "name",
    [
        "session",
        "session_id",
        "sessionId",
        "Session-ID",
        "sid",
        "SID",
        "job_id",
        "threadId",
        "run-id",
        "task_id",
        "conversation_id",
        "event_id",
        "chat_session_id",
        "contextId",
    ],
)
def test_session_keys(name: str) -> None:
    assert is_session_key(name)


@pytest.mark.parametrize(
    "name", ["id", "user_id", "component_class_id", "client_id", "request_id", "file_id", "side", "", "ids"]
)
def test_other_keys(name: str) -> None:
    assert not is_session_key(name)


def test_keys_of_clients_are_fewer() -> None:
    assert is_sight_key("thread_id")
    assert is_sight_key("marimo-session-id")
    assert not is_sight_key("job_id")
    assert not is_sight_key("environment_id")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"x-session-id", True),
        (b"session-id", True),
        (b"X-Job-Id", True),
        (b"mcp-session-id", True),
        (b"x-chainlit-session-id", True),
        (b"x-request-id", False),
        (b"x-trace-session-id", False),
        (b"session", False),
        (b"cookie", False),
        (b"sec-websocket-key", False),
    ],
)
def test_session_headers(name: bytes, expected: bool) -> None:
    assert is_session_header(name) is expected


def test_small_things() -> None:
    assert normal_key("Session-Id") == normal_key("session_id") == "sessionid"
    assert is_no_session("csrftoken")
    assert not is_no_session("access-token-unsecure-x")
    assert is_collection("Threads")
    assert not is_collection("users")
