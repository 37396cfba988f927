"""The short way misses nothing: what the whole machinery learns from a reply, it learns too."""

from __future__ import annotations

import asyncio
import gzip
import json
import uuid
from typing import Any

import pytest

from sessionworkers.affinity.auto import Auto
from sessionworkers.affinity.ids import claim_key
from sessionworkers.affinity.recall import UNKNOWN, Recall
from sessionworkers.affinity.ruleset import RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import parse_rule
from sessionworkers.claims.memory import MemoryStore
from sessionworkers.ledger.known import event_may_teach, may_teach
from sessionworkers.ledger.ledger import Ledger
from sessionworkers.ledger.shards import Shards
from sessionworkers.worker.router import DECIDED, Router

SID = "0123456789abcdef0123456789abcdef"
JSON = [(b"content-type", b"application/json")]


@pytest.mark.parametrize(
    ("body", "teaches"),
    [
        (b"{}", False),
        (b'{"session": "' + SID.encode() + b'", "n": 3}', False),
        (b'{"text": "lorem ipsum dolor sit amet consectetur"}', False),
        (b'{"at": "2026-11-30T08:47:20Z"}', False),
        (b'{"kind": "configuration"}', False),
        (b'{"job_id": "3f2b8c1e9a7d4e5f8b6a1c2d3e4f5a6b"}', True),
        (b'{"id":1234567890123456,"job_id":"3f2b8c1e9a7d4e5f8b6a1c2d3e4f5a6b"}', True),
        (b'{"url": "/jobs/3f2b8c1e9a7d4e5f8b6a1c2d3e4f5a6b"}', True),
        (b'{"job_id": "3f2b8c1e\\u0039a7d4e5f8b6a1c2d"}', True),
    ],
)
def test_may_teach(body: bytes, teaches: bool) -> None:
    assert may_teach(body, SID.encode()) is teaches


@pytest.mark.parametrize(
    ("piece", "teaches"),
    [
        (b"data: {}\n\n", False),
        (b'data: {"session": "' + SID.encode() + b'", "n": 3}\n\n', False),
        (b'data: {"n": 1}\n\ndata: {"job_id": "3f2b8c1e9a7d4e5f8b6a1c2d3e4f5a6b"}\n\n', False),
        (b'data: {"job_id": "3f2b8c1e9a7d4e5f8b6a1c2d3e4f5a6b"}\n\n', True),
        (b"data: /messages/?session_id=3f2b8c1e9a7d4e5f8b6a1c2d3e4f5a6b\n\n", True),
        (b"event: endpoint\ndata: {}\n\n", True),
        (b": ping\n\n", True),
        (b"data: {\ndata: }\n\n", True),
        (b"data: {}\r\n\r\n", True),
        (b"data: {", True),
        (b"", True),
    ],
)
def test_an_event_may_teach(piece: bytes, teaches: bool) -> None:
    """True where it must be read in earnest to know."""
    assert event_may_teach(piece, SID.encode()) is teaches


class Kit:
    """One worker; ``reply`` is what its app answers next."""

    def __init__(self) -> None:
        self.reply: tuple[list[tuple[bytes, bytes]], list[bytes]] = (JSON, [b"{}"])
        self.store = MemoryStore("me")
        rules = RuleSet([parse_rule("cookie:sid mint=client", "mine")], Auto())
        self.ledger = Ledger(self.app, rules, self.store)
        self.router = Router(self.ledger, None)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        headers, body = self.reply
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in body[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": body[-1]})

    async def ask(self, path: str = "/", **more: Any) -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {
            "type": "http", "method": "GET", "path": path, "query_string": b"", "root_path": "",
            "headers": [(b"cookie", f"sid={SID}".encode())], **more,
        }  # fmt: skip
        await self.router(scope, receive, send)
        return sent


def telling(where: str, job: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A reply's headers and body that tell the ID of a job there."""
    body = json.dumps({"job_id": job}).encode()
    headers = list(JSON)
    if where == "header":
        headers, body = [(b"x-job-id", job.encode())], b"made"
    elif where == "cookie":
        headers, body = [(b"set-cookie", f"job={job}; HttpOnly".encode())], b"made"
    elif where == "events":
        headers, body = [(b"content-type", b"text/event-stream")], b"data: " + body + b"\n\n"
    elif where == "an event's name":
        body = b"event: made\ndata: " + body + b"\n\n"
        headers = [(b"content-type", b"text/event-stream")]
    elif where.startswith("packed"):
        if where == "packed events":
            headers, body = [(b"content-type", b"text/event-stream")], b"data: " + body + b"\n\n"
        headers, body = [*headers, (b"content-encoding", b"gzip")], gzip.compress(body)
    return headers, body


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    "where", ["json", "header", "cookie", "events", "packed json", "packed events", "an event's name"]
)
def test_a_known_session_learns_on(where: str, pieces: int) -> None:
    async def main() -> None:
        kit = Kit()
        for _ in range(3):
            await kit.ask()  # known and recalled from here on
        job = uuid.uuid4().hex
        headers, body = telling(where, job)
        size = -(-len(body) // pieces)
        kit.reply = (headers, [body[at : at + size] for at in range(0, len(body), size)])
        sent = await kit.ask()
        assert b"".join(event.get("body", b"") for event in sent) == body
        record = kit.ledger.book.get(claim_key("auto", job))
        assert record is not None and record.in_use == 0
        own = kit.ledger.book.get(claim_key("mine", SID))
        assert own is not None and own.requests == 4 and own.in_use == 0

    asyncio.run(main())


def test_what_was_decided_before_a_drain_began_holds() -> None:
    async def main() -> None:
        kit = Kit()
        await kit.ask()
        record = kit.ledger.book.get(claim_key("mine", SID))
        assert record is not None
        found = kit.ledger.rules.find(RequestView(headers=[(b"cookie", f"sid={SID}".encode())]))
        kit.router.think()  # in the moment between the host's look and the request's task
        sent = await kit.ask(**{DECIDED: (found, record)})
        assert sent[0]["status"] == 200 and record.requests == 2

    asyncio.run(main())


def test_a_request_of_no_session_is_thought_over_again_once_a_drain_began() -> None:
    async def main() -> None:
        kit = Kit()
        assert (await kit.ask(**{DECIDED: (None, None)}))[0]["status"] == 200
        kit.router.think()
        assert (await kit.ask(**{DECIDED: (None, None)}))[0]["status"] == 200
        record = kit.ledger.book.get(claim_key("mine", SID))
        assert record is not None and record.requests == 1, "it does name one, which is seen only by who looks"

    asyncio.run(main())


def test_recall_knows_what_matters() -> None:
    rules = RuleSet([parse_rule("cookie:sid mint=client", "mine"), parse_rule("path:/v1/jobs/{id}", "jobs")])
    recall = Recall(rules)
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "root_path": ""}
    first = {**scope, "headers": [(b"cookie", b"sid=one-0000000000000001"), (b"accept", b"a")]}
    key, found = recall.find(first)
    assert found is UNKNOWN
    request = RequestView.from_scope(first)
    seen: Any = rules.find(request)
    recall.note(key, request, seen)
    assert recall.find({**first, "headers": [*first["headers"][:1], (b"accept", b"b")]})[1] is seen
    assert recall.find({**scope, "headers": [(b"cookie", b"sid=two-0000000000000002")]})[1] is UNKNOWN
    assert recall.find({**first, "path": "/v1/jobs/3"})[1] is UNKNOWN
    assert recall.find({**first, "method": "POST"})[1] is UNKNOWN


def test_shards_are_a_dict() -> None:
    shards: Shards[int] = Shards()
    for number in range(1000):
        shards[str(number)] = number
        shards[str(number)] = -number
    assert len(shards) == 1000 and shards.get("7") == -7 and shards.get("x") is None and "999" in shards
    del shards["7"]
    assert len(shards) == 999 and sorted(shards.values(), reverse=True)[:3] == [0, -1, -2]
    shards.clear()
    assert len(shards) == 0 and list(shards.values()) == []
