"""One worker's control socket: what it holds, and what may be done to a session of it.

::

    GET  /v1/worker                     state, sessions, hops, what holds it back
    GET  /v1/sessions?limit=&ids=1      its sessions; IDs only with ids=1, and where they are known
    GET  /v1/session?id=                one session, by its ID or by the name that the list shows
    POST /v1/session/end {"id": "…"}    end it now, as the app's own `Session.end` does
    POST /v1/session/drain {"id": "…"}  end it when nothing of it is open any more: 202 until then
    POST /v1/explain {"method": "GET", "path": "/…", "headers": [["cookie", "…"]], "body": "…"}
    GET  /-/ready, /-/live

A session is named by the first digits of its claim's key: the ID itself is nowhere kept.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from sessionworkers import __version__
from sessionworkers.affinity.decide import Claim
from sessionworkers.affinity.ids import claim_key
from sessionworkers.affinity.lifecycle import Event, State
from sessionworkers.affinity.ruleset import NeedBody
from sessionworkers.affinity.views import RequestView
from sessionworkers.ledger.book import Record
from sessionworkers.ledger.current import Session
from sessionworkers.observe.http import VERSION, BadRequest, Exchange, Request, refusal, reply
from sessionworkers.observe.words import explain

if TYPE_CHECKING:
    from sessionworkers.worker.worker import Worker

PATIENCE = 10.0
NAME_DIGITS = 12
MOST = 10_000

Answer = tuple[int, dict[str, Any]]


class Control:
    """Serves ``listener`` on the running loop."""

    def __init__(self, worker: Worker, listener: socket.socket) -> None:
        self._answers = Answers(worker)
        self._listener = listener
        self._protocols: set[_Protocol] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener.fileno(), self._accept)
        self._tasks: set[asyncio.Task[Any]] = set()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (0, os.geteuid()):
            sock.close()
            return
        sock.setblocking(False)
        task = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: _Protocol(self._answers.answer, self._protocols), sock)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """No new connections; the path is the member's to remove."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for protocol in list(self._protocols):
            protocol.close()


class _Protocol(asyncio.Protocol):
    def __init__(self, answer: Callable[[Request], Answer], all_: set[_Protocol]) -> None:
        self._answer = answer
        self._all = all_
        self._exchange = Exchange()
        self._transport: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._all.add(self)
        self._late = asyncio.get_running_loop().call_later(PATIENCE, self.close)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            request = self._exchange.feed(data)
            if request is None:
                return
            answer = reply(*self._answer(request))
        except BadRequest as error:
            answer = refusal(error)
        self._transport.write(answer)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.discard(self)
        if self._late is not None:
            self._late.cancel()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Answers:
    """The requests, answered from the worker's own memory; nothing waits."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._book = worker.ledger.book

    def answer(self, request: Request) -> Answer:
        """Status and JSON of the reply."""
        routes: dict[tuple[str, str], Callable[[Request], Answer]] = {
            ("GET", "/v1/worker"): self._about,
            ("GET", "/v1/sessions"): self._list,
            ("GET", "/v1/session"): self._show,
            ("POST", "/v1/session/end"): self._end,
            ("POST", "/v1/session/drain"): self._drain,
            ("POST", "/v1/explain"): self._explain,
            ("GET", "/-/live"): lambda _: (200, {"live": True}),
            ("GET", "/-/ready"): self._ready,
        }
        route = routes.get((request.method, request.path))
        if route is not None:
            return route(request)
        if any(path == request.path for _, path in routes):
            return 405, {"error": f"not with {request.method}"}
        return 404, {"error": f"nothing is at {request.path} in version {VERSION}"}

    def _ready(self, request: Request) -> Answer:
        ready = self._worker.ready()
        return (200 if ready else 503), {"ready": ready}

    def _about(self, request: Request) -> Answer:
        worker, book = self._worker, self._book
        now = book.clock()
        held = worker.held(worker.requests, 0)
        return 200, {
            "version": VERSION,
            "release": __version__,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "uid": book.store.me,
            "state": worker.drain.phase.value,
            "age": round(now - worker.made, 1),
            "draining_for": round(now - worker.drain.since, 1) if worker.drain.since else None,
            "held_by": worker.drain.holding(held, now),
            "sessions": book.live,
            "claims": len(book),
            "requests": worker.requests,
            "hopped": worker.hopped,
            "rules": worker.names,
        }

    def _list(self, request: Request) -> Answer:
        limit = request.query.get("limit", "1000")
        most = min(int(limit), MOST) if limit.isdigit() else 1_000
        ids = request.query.get("ids") == "1"
        sessions: list[dict[str, Any]] = []
        total = 0
        for record in self._book.records():
            if not record.counted:
                continue
            total += 1
            if len(sessions) < most:
                sessions.append(self._view(record, ids))
        return 200, {"total": total, "sessions": sessions}

    def _view(self, record: Record, ids: bool) -> dict[str, Any]:
        now = self._book.clock()
        until = record.deadline()
        view: dict[str, Any] = {
            "name": next(iter(record.keys), "")[:NAME_DIGITS],
            "rule": record.rule.name,
            "state": record.state.value,
            "age": round(now - record.made, 1),
            "idle": 0.0 if record.in_use else round(now - record.last, 1),
            "open": record.in_use,
            "requests": record.requests,
            "names": len(record.keys),
            "ends_in": None if until in (float("inf"), float("-inf")) else round(until - now, 1),
        }
        if ids:
            view["id"] = record.handle.id if record.handle is not None else None
        return view

    def _find(self, text: str) -> Record | None:
        """By ID under any rule, or by a name of the list."""
        if not text:
            return None
        rules = self._worker.rules
        spaces = {rule.key_space for rule in rules.rules}
        if rules.auto is not None:
            spaces |= {rules.auto.rule.key_space, rules.auto.sight.key_space}
        if self._worker.explicit is not None:
            spaces.add(self._worker.explicit.owner.rule.key_space)
        for space in spaces:
            record = self._book.get(claim_key(space, text))
            if record is not None:
                return record
        if len(text) < NAME_DIGITS:
            return None
        return next(
            (record for record in self._book.records() if any(key.startswith(text) for key in record.keys)), None
        )

    def _show(self, request: Request) -> Answer:
        record = self._find(request.query.get("id", ""))
        if record is None:
            return 404, {"error": "no session of that name is here"}
        view = self._view(record, request.query.get("ids") == "1")
        return 200, {**view, "worker": self._book.store.me, "pid": os.getpid()}

    def _end(self, request: Request) -> Answer:
        record = self._find(str(request.body.get("id", "")))
        if record is None:
            return 404, {"error": "no session of that name is here"}
        self._finish(record)
        return 200, {"ended": True}

    def _drain(self, request: Request) -> Answer:
        record = self._find(str(request.body.get("id", "")))
        if record is None:
            return 404, {"error": "no session of that name is here"}
        if record.in_use:
            return 202, {"ended": False, "open": record.in_use}
        self._finish(record)
        return 200, {"ended": True}

    def _finish(self, record: Record) -> None:
        if record.state is State.ENDED:
            return
        session = record.handle
        if session is None:
            session = Session(self._worker.ledger)
            session.key = next(iter(record.keys))
        self._worker.ledger.end_by_app(session, Event.ENDED_BY_APP)
        record.last = self._book.clock()
        self._book.settle(record)

    def _explain(self, request: Request) -> Answer:
        body = request.body
        try:
            view = _view_of(body)
        except (TypeError, ValueError, KeyError):
            return 422, {"error": "method, path, and headers as pairs of texts are needed"}
        if self._worker.router is None or self._worker.rules.off(view):
            return 200, {"way": "handled where it arrives", "reasons": ["this path is not routed"]}
        found = self._worker.rules.find(view)
        if found is None or isinstance(found, NeedBody):
            start = self._worker.rules.start_without_id(view)
            if start is None:
                return 200, {"way": "handled where it arrives", "reasons": ["no rule finds a session ID in it"]}
            placement = self._worker.settings.placement
            reasons = [f"rule {start.name} knows it as the start of a session"]
            if placement != "accept" and not self._worker.connections_move:
                reasons.append("its connection cannot move: if that stays open, it begins where it arrives")
            return 200, {"way": f"placed ({placement})", "reasons": reasons, "rule": start.name}
        for named in found.candidates:
            if self._whose(named.key)[0] is not Claim.NONE:
                found.primary = named
                break
        claim, owner = self._whose(found.primary.key)
        return 200, explain(found, claim, owner, owner == self._book.store.me)

    def _whose(self, key: str) -> tuple[Claim, str | None]:
        me = self._book.store.me
        owner = me if self._book.get(key) is not None else self._book.store.owner(key)
        if owner is None or owner == me:
            return (Claim.NONE if owner is None else Claim.MINE), owner
        roster = self._worker.roster
        return (Claim.OTHER if roster is not None and roster.alive(owner) else Claim.GONE), owner


def _view_of(body: dict[str, Any]) -> RequestView:
    path, _, query = str(body["path"]).partition("?")
    headers = [(str(name).lower().encode("latin-1"), str(value).encode("latin-1")) for name, value in body["headers"]]
    request = RequestView.from_scope(
        {
            "type": "websocket" if body.get("kind") == "websocket" else "http",
            "method": str(body.get("method", "GET")).upper(),
            "path": path,
            "query_string": query.encode("latin-1"),
            "headers": headers,
            "root_path": "",
        }
    )
    request.body = str(body.get("body", "")).encode()
    return request
