"""Rows 7 and 12: what the owner sees of a request that came by its private socket, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness import Server
from tests.validation.gym import at, cookie_of, new_id, ok, pids, typed

HEADERS = [
    ("X-One", "1"),
    ("x-two", "a, b"),
    ("X-One", "again"),
    ("accept", "*/*"),
    ("x-latin", "caf\xe9"),
    ("x-forwarded-for", "10.1.2.3"),
    ("x-empty", ""),
    ("te", "trailers"),
]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "target",
    [
        "/echo/plain",
        "/echo/a%2Fb/%C3%BC%20x/../y/./z//w?q=1&q=2&e=&=&%zz&a+b=c%20d",
        "/echo/;p=1/~tilde/%7Etilde/(x)?",
    ],
    ids=["plain", "odd-bytes", "empty-query"],
)
def test_row7_arrives_unchanged(many: Server, workers: list[int], method: str, target: str) -> None:
    home, other, _ = workers
    seeded = at(many, home, "POST", "/seed_session", typed(new_id()))
    body = bytes(range(256)) * 40 if method != "GET" else b""
    seen = [
        at(many, accepting, method, target, body, cookie_of(seeded), raw_headers=HEADERS) for accepting in (home, other)
    ]
    local, hopped = (ok(reply) for reply in seen)
    assert hopped == local
    assert local["pid"] == home
    assert [value for name, value in local["headers"] if name == "x-one"] == ["1", "again"]
    raw, _, query = target.partition("?")
    assert (local["raw_path"], local["query"]) == (raw, query)
    assert [reply.status for reply in seen] == [200, 200]


def test_row7_reply_carries_the_owners_cookies_alone(many: Server, workers: list[int]) -> None:
    home, other, _ = workers
    seeded = at(many, home, "POST", "/seed_session", typed(new_id()))
    for accepting in (home, other):
        reply = at(many, accepting, "GET", "/echo/x", headers=cookie_of(seeded))
        assert [line.split(";")[0] for line in reply.all("set-cookie")] == [f"app={home}"]
        assert len(reply.all("date")) == len(reply.all("server")) == 1


def loggers(s: Server) -> list[Any]:
    return [at(s, pid, "GET", "/loggers").json["loggers"] for pid in pids(s)]


def test_row12_the_private_socket_leaves_the_loggers_alone(many: Server, single: Server) -> None:
    """Each of several workers has them as the only one has, which has no private socket."""
    (alone,) = loggers(single)
    assert loggers(many) == [alone] * many.workers
