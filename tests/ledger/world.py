"""Several workers in one process: real ledgers and routers over one shared memory store and a clock set by hand.

Only the hop is a stand-in: it calls the owner's ledger as the private socket would.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sessionworkers.affinity.auto import Auto, LocalNames
from sessionworkers.affinity.decide import Arrival
from sessionworkers.affinity.ruleset import RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import parse_rule
from sessionworkers.claims.memory import MemoryStore
from sessionworkers.errors import NotMine, OwnerGone
from sessionworkers.ledger.answers import Refused, refuse
from sessionworkers.ledger.ledger import Ledger
from sessionworkers.worker.passport import decode
from sessionworkers.worker.router import Router

Headers = list[tuple[bytes, bytes]]


@dataclass
class Request:
    """What the app sees of a request."""

    worker: str
    method: str
    path: str
    headers: Headers
    json: Any


@dataclass
class Reply:
    """What the client sees of a reply; ``by`` is the worker whose app ran, None if none did."""

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    by: str | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Handler = Callable[[Request], "Awaitable[Reply] | Reply"]


class World:
    """``workers`` named w0, w1, …; ``app`` is called for each request that an app would see."""

    def __init__(self, words: list[str], app: Handler, *, workers: int = 2, max_claims: int = 0) -> None:
        self.now = 1000.0
        self.shared: dict[str, str] = {}
        self.app = app
        self.dead: set[str] = set()
        self.ledgers: dict[str, Ledger] = {}
        self.routers: dict[str, Router] = {}
        self.ran: list[str] = []
        self.words = words
        self.max_claims = max_claims
        self.names = [f"w{number}" for number in range(workers)]
        for name in self.names:
            self.boot(name, alone=workers == 1)

    def boot(self, name: str, *, alone: bool = False) -> None:
        """Start a worker (again)."""
        rules = RuleSet([parse_rule(text, f"rule{number}") for number, text in enumerate(self.words)])
        store = MemoryStore(name, self.shared)
        ledger = Ledger(self._asgi(name), rules, store, max_claims=self.max_claims, clock=lambda: self.now)
        self.ledgers[name] = ledger
        self.routers[name] = Router(ledger, None if alone else self)

    def boot_with_auto(self) -> None:
        """Start every worker again with inference on; they share what they learn."""
        names = LocalNames()
        for name in self.names:
            ledger = Ledger(
                self._asgi(name), RuleSet([], Auto(names)), MemoryStore(name, self.shared), clock=lambda: self.now
            )
            self.ledgers[name] = ledger
            self.routers[name] = Router(ledger, self)

    def kill(self, name: str) -> None:
        """The worker dies: its claims stay as tombstones."""
        self.dead.add(name)

    async def carry(self, owner: str, scope: Any, receive: Any, send: Any, meta: dict[str, Any]) -> None:
        """The hop."""
        if owner in self.dead:
            raise OwnerGone(sent=False)
        ledger = self.ledgers[owner]
        request = RequestView.from_scope(scope)
        found = decode(json.loads(json.dumps(meta)), ledger.rules, request)
        try:
            await ledger.serve(scope, receive, send, request, found, Arrival.PRIVATE)
        except NotMine as error:
            error.replay = receive  # nothing was read: the ledger refuses before the app runs
            raise
        except Refused as refused:
            await refuse(scope, send, refused)

    def _asgi(self, name: str) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            message = await receive()
            self.ran.append(name)
            body = message.get("body", b"")
            answer = self.app(
                Request(
                    name, scope["method"], scope["path"], list(scope["headers"]), json.loads(body) if body else None
                )
            )
            reply = await answer if not isinstance(answer, Reply) else answer
            headers = [(b"x-by", name.encode()), *reply.headers]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": reply.body})

        return app

    async def ask(
        self, worker: str, method: str, path: str, *, headers: dict[str, str] | None = None, body: Any = None
    ) -> Reply:
        """One request that ``worker`` accepted."""
        raw = json.dumps(body).encode() if body is not None else b""
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        if body is not None:
            pairs += [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
        where, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": where,
            "raw_path": where.encode(),
            "query_string": query.encode(),
            "headers": pairs,
            "root_path": "",
            "scheme": "http",
        }
        messages = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()

        events: list[Any] = []

        async def send(event: Any) -> None:
            events.append(event)

        await self.routers[worker](scope, receive, send)
        start = events[0]
        by = dict(start["headers"]).get(b"x-by")
        return Reply(
            start["status"],
            list(start["headers"]),
            b"".join(event.get("body", b"") for event in events[1:]),
            by.decode() if by else None,
        )

    async def pass_time(self, seconds: float) -> None:
        """Move the clock and let every worker sweep."""
        self.now += seconds
        for name, ledger in self.ledgers.items():
            if name not in self.dead:
                await ledger.sweep(self.now)
                await ledger.closed()


def as_json(status: int, value: Any, headers: Headers | None = None) -> Reply:
    """A JSON reply."""
    body = json.dumps(value).encode()
    pairs = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(headers or [])]
    return Reply(status, pairs, body)
