"""The accepting side of explicit sessions: an ASGI app in front of the router.

One request, step by step (the numbers stand again in the code):

1. A session route: create is placed (`placing`), the others go to the session's owner; load and the OpenAPI document
   are answered here.
2. A request that names an explicit session, in X-Session-ID or in its JSON envelope, goes to the owner: here, or by
   the hop. An ID that nobody claims, or whose owner lives no more, is 410.
3. A grant is checked where a platform's key is set.
4. Anything else goes on to the router, its body untouched. For most that is known by the head.

What travels with a hop is ``{"session": [what, ID, digest of the credential]}``; the owner decides.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.ruleset import Found, Named, RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.errors import AppFailed, ClaimError, HopBroken, HopError, NotMine, OwnerBusy, OwnerGone
from sessionworkers.ledger.answers import Refused, answer, app_failed, refuse
from sessionworkers.ledger.elsewhere import BELONGS, Elsewhere
from sessionworkers.sessions.costs import App, Incoming, Receive, Send, discard, read_front, read_whole, replay
from sessionworkers.sessions.envelope import NOTHING, PREFIX, Envelope, header_id, scan
from sessionworkers.sessions.figures import figures, metrics
from sessionworkers.sessions.grants import GrantKey
from sessionworkers.sessions.messages import Credentials, digest, malformed, parse_credentials
from sessionworkers.sessions.owner import Owner, not_found
from sessionworkers.sessions.placing import Placer
from sessionworkers.sessions.running import ended
from sessionworkers.sessions.table import minted

MOST_CREATE: Final = 1024 * 1024
MOST_CREDENTIALS: Final = 64 * 1024
"""Bytes of a session route's body."""

USE: Final = "use"
CREATE: Final = "create"

Scope = MutableMapping[str, Any]


class Gone(Exception):
    """The session's owner lives no more, or knows nothing of it: it has ended."""


class Front:
    """``inner`` is the router, or the app. ``links`` None: a single worker."""

    def __init__(
        self,
        inner: App,
        owner: Owner,
        placer: Placer,
        links: Elsewhere | None,
        rules: RuleSet,
        *,
        prefix: str,
        envelope: Sequence[PathTemplate] = (),
        grant_key: GrantKey | None = None,
        openapi: dict[str, Any],
        note: Callable[[Found, str], None],
    ) -> None:
        self.inner = inner
        self.owner = owner
        self.placer = placer
        self.links = links
        self._rules = rules
        self._envelope = tuple(envelope)
        self._grant_key = grant_key
        self._openapi = openapi
        self._note = note
        self._posts = {f"{prefix}/{name}": name for name in (CREATE, "end", "get", "health")}
        self._gets = {f"{prefix}/{name}": name for name in ("load", "openapi.json")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.inner(scope, receive, send)
            return
        request = RequestView.from_scope(scope)
        if self._passes(request):  # 4
            await self.inner(scope, receive, send)
            return
        path = request.route_path
        incoming: Incoming | None = None
        if scope["type"] == "http" and request.method != "GET":
            incoming = Incoming(receive)
            receive = incoming.receive
        try:
            if scope["type"] == "http":
                if path in self._posts:  # 1
                    await self._route(self._posts[path], scope, receive, send, request)
                    return
                if path in self._gets:
                    await self._show(self._gets[path], scope, send, request)
                    return
            session_id, auth, receive = await self._named(request, receive)  # 2
            if session_id is not None:
                self.log(request, session_id, "here")
                await self._use(scope, receive, send, request, session_id, auth)
                return
        except Refused as refused:
            await self._refuse(scope, incoming, send, refused)
            return
        await self.inner(scope, receive, send)  # 4

    def passes(self, scope: Mapping[str, Any]) -> bool:
        """True if a request goes on to the router whatever its body holds; for hosts that begin it without this app."""
        return self._passes(RequestView.from_scope(scope))

    def _passes(self, request: RequestView) -> bool:
        if request.kind == "http":
            path = request.route_path
            if path in self._posts or path in self._gets:
                return False
        if self._rules.off(request):
            return True
        if header_id(request) is not None or self._reads(request):
            return False
        return self._grant_key is None or not self._writes(request)

    async def _refuse(self, scope: Scope, incoming: Incoming | None, send: Send, refused: Refused) -> None:
        expected = any(name == b"expect" for name, _ in scope["headers"])  # then nothing was sent yet
        if incoming is not None and not incoming.read and not expected:
            await discard(incoming.receive)
        await refuse(scope, send, refused)

    async def end(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``POST …/end`` for the loopback server, which has checked where the request comes from."""
        request = RequestView.from_scope(scope)
        try:
            await self._route("end", scope, receive, send, request)
        except Refused as refused:
            await refuse(scope, send, refused)

    # 2 and 3

    async def _named(self, request: RequestView, receive: Receive) -> tuple[str | None, bytes | None, Receive]:
        """The explicit session that the request names, and the digest of the credential in its envelope."""
        by_header = header_id(request)
        envelope = NOTHING
        if self._reads(request):
            front, complete, receive = await read_front(receive, PREFIX)
            envelope = scan(front, complete)
        in_body = envelope.session_id if envelope.names_session else None
        if by_header is not None and in_body is not None and in_body != by_header:
            raise Refused(409, "session mismatch", "the header and the body name two different sessions")
        session_id = by_header if by_header is not None else in_body
        if self._grant_key is not None:
            self._check_grant(request, envelope, by_header)
        if session_id is None:
            return None, None, receive
        if not minted(session_id):
            raise ended()  # an envelope with an ID that was never given
        return session_id, digest(envelope.auth_data) if envelope.whole else None, receive

    def _writes(self, request: RequestView) -> bool:
        return request.kind == "http" and request.method not in ("GET", "HEAD", "OPTIONS", "DELETE")

    def _reads(self, request: RequestView) -> bool:
        """Whether the body may be an envelope: JSON, on the paths that are meant for it."""
        if not self._writes(request):
            return False
        kind = request.content_type
        if kind != "application/json" and not kind.endswith("+json") and (self._grant_key is None or kind):
            return False
        return not self._envelope or any(path.covers(request) for path in self._envelope)

    def _check_grant(self, request: RequestView, envelope: Envelope, by_header: str | None) -> None:
        """Where grants are signed, what writes must bring one; the ID of an open session stands for one."""
        assert self._grant_key is not None
        if not self._writes(request) or by_header is not None:
            return
        if self._envelope and not any(path.covers(request) for path in self._envelope):
            return
        if not envelope.whole:
            raise malformed("missing auth_data", "requests here are JSON envelopes with auth_data before the payload")
        if not self._grant_key.signed(envelope.auth_data):
            raise Refused(401, "signature is not valid", "the grant is not signed by the platform")

    async def _use(
        self, scope: Scope, receive: Receive, send: Send, request: RequestView, session_id: str, auth: bytes | None
    ) -> None:
        try:
            at = self._owner_of(session_id)
            if at is None:
                await self.owner.use(scope, receive, send, session_id, auth)
            else:
                self.log(request, session_id, f"hop {at[:8]}")
                await self._hop(at, scope, receive, _telling(scope, send, at, session_id), [USE, session_id, auth])
        except Gone:
            raise ended() from None

    # 1

    async def _route(self, name: str, scope: Scope, receive: Receive, send: Send, request: RequestView) -> None:
        if request.method != "POST":
            body = json.dumps({"error": "method not allowed", "detail": "this route is POST only"}).encode()
            await answer(scope, send, 405, [(b"content-type", b"application/json"), (b"allow", b"POST")], body)
            return
        limit = MOST_CREATE if name == CREATE else MOST_CREDENTIALS
        for each, value in request.headers:
            if each == b"content-length" and value.isdigit() and int(value) > limit:
                raise _too_large(limit)
        body_read, _ = await read_whole(receive, limit)
        if body_read is None or len(body_read) > limit:
            raise _too_large(limit)
        again = replay([{"type": "http.request", "body": body_read, "more_body": False}], receive)
        if name == CREATE:
            await self.placer.create(scope, again, send, body_read, request)
            return
        asked = parse_credentials(body_read)
        self.log(request, asked.session_id, "here")
        try:
            at = self._owner_of(asked.session_id)
            if at is None:
                await self.answer(name, scope, send, asked)
            else:
                self.log(request, asked.session_id, f"hop {at[:8]}")
                await self._hop(at, scope, again, send, [name, asked.session_id, asked.auth])
        except Gone:
            await self._answer_gone(name, scope, send)

    async def answer(self, name: str, scope: Scope, send: Send, asked: Credentials) -> None:
        """End, get or health on the owner. Raises `Refused`."""
        if name == "end":
            result = await self.owner.end(asked)
        elif name == "get":
            result = self.owner.get(asked)
        elif name == "health":
            result = self.owner.health(asked)
        else:
            raise not_found()
        await reply(scope, send, 200, result)

    async def _answer_gone(self, name: str, scope: Scope, send: Send) -> None:
        if name == "health":
            await reply(scope, send, 200, {"ok": False})
            return
        if name == "end":
            raise Refused(410, "session already closed", "the worker that held this session is no longer running")
        raise Refused(400, "session does not exist", "the worker that held this session is no longer running")

    # the owner's side of a hop

    async def serve_private(self, scope: Scope, receive: Receive, send: Send, told: Sequence[Any]) -> None:
        """A request that another worker's front carried here. Raises `NotMine` for a create that finds no room."""
        what, session_id, auth = told
        incoming: Incoming | None = None
        if scope["type"] == "http":
            incoming = Incoming(receive)
            receive = incoming.receive
        try:
            if what == USE:
                await self.owner.use(scope, receive, send, session_id, auth)
            elif what == CREATE:
                await self.placer.accept(scope, receive, send, session_id, auth)
            else:
                await self.answer(what, scope, send, Credentials(session_id, auth))
        except Refused as refused:
            await self._refuse(scope, incoming, send, refused)

    def _owner_of(self, session_id: str) -> str | None:
        """The worker to hop to; None: here, where an unknown ID is told from an ended one."""
        store = self.owner.ledger.book.store
        if self.links is None or not minted(session_id):
            return None
        key = self.owner.key(session_id)
        if self.owner.ledger.book.get(key) is not None:
            return None
        try:
            at = store.owner(key)
        except ClaimError as error:
            raise Refused(error.status, "claims unavailable", str(error), retry_after=1) from None
        return None if at == store.me else at

    async def _hop(self, at: str, scope: Scope, receive: Receive, send: Send, told: list[Any]) -> None:
        """Raises `Gone`, `Refused`; returns when the reply is through, or was cut off."""
        assert self.links is not None
        try:
            await self.links.carry(at, scope, receive, send, {"session": told})
        except (OwnerGone, NotMine):
            raise Gone from None
        except OwnerBusy:
            raise Refused(503, "owner busy", "the session's worker accepts no connection", retry_after=1) from None
        except AppFailed:
            await app_failed(scope, send)
        except HopBroken:
            return  # the host ends the connection with FIN
        except HopError as error:
            raise Refused(502, "hop failed", "the worker that holds this session broke off") from error

    # figures

    async def _show(self, name: str, scope: Scope, send: Send, request: RequestView) -> None:
        if request.method not in ("GET", "HEAD"):
            body = json.dumps({"error": "method not allowed", "detail": "this route is GET only"}).encode()
            await answer(scope, send, 405, [(b"content-type", b"application/json"), (b"allow", b"GET")], body)
            return
        loads = self.placer.loads()
        if name == "openapi.json":
            await reply(scope, send, 200, self._openapi)
        elif request.params.get("format") == "prometheus":
            text = metrics(loads).encode()
            await answer(scope, send, 200, [(b"content-type", b"text/plain; version=0.0.4")], text)
        else:
            await reply(scope, send, 200, figures(loads))

    def log(self, request: RequestView, session_id: str, way: str) -> None:
        """Keep the ID, and the key that some clients put into every URL, out of the access log."""
        secrets = [value for name, value in request.param_list() if name == "api_key" and value]
        also = tuple(Named(each, "", 0) for each in secrets)
        self._note(Found(self.owner.rule, Named(session_id, "", 0), also), way)


def _telling(scope: Scope, send: Send, at: str, session_id: str) -> Send:
    """``send`` that tells the host whose session answers."""

    def tell(event: Any) -> Awaitable[None]:
        if event["type"] == "http.response.start":
            scope[BELONGS] = (at, session_id)
        return send(event)

    return tell


async def reply(scope: Scope, send: Send, status: int, document: Any) -> None:
    """Answer with JSON."""
    await answer(scope, send, status, [(b"content-type", b"application/json")], json.dumps(document).encode())


def _too_large(limit: int) -> Refused:
    return Refused(413, "body too large", f"a body here has {limit} bytes at the most")
