"""uvicorn's HTTP/1.1 protocol, with the routing in it and the one thing that affinity cannot live with taken out.

uvicorn with httptools appends chunked trailers to the very list that the app got as ``scope["headers"]``; when they
come in the packet of the request they are there before the app starts. A trailer could so name a session, or strip a
check that the headers had passed. Here a fresh list takes what comes after the head (0.07 µs a request).

Where a request belongs to another worker it is begun there as soon as its head is parsed (`hosts.raw_remote`).
Everything else, what is not understood included, runs as uvicorn runs it, and meets the router as an ASGI app.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sessionworkers.affinity.found import Found
from sessionworkers.affinity.recall import UNKNOWN
from sessionworkers.hosts.cycle import Base, direct, known_app
from sessionworkers.hosts.handover import shut
from sessionworkers.hosts.heads import LONGEST, Head, Heads, cycle_of, only_events
from sessionworkers.hosts.joiner import Joiner
from sessionworkers.hosts.moving import MovingProtocol
from sessionworkers.hosts.raw_remote import Remote, RemoteAgain
from sessionworkers.ledger.elsewhere import BELONGS
from sessionworkers.worker.router import DECIDED

HALF_CLOSED = 0.1
"""Seconds that an owner has to answer a client that has closed its half of the connection. uvicorn closes at once,
which an app on this very worker may outrun; a hop never could."""

_NO_SCOPE: Any = {}
"""Of a request whose scope nobody needs."""


class SessionHttpToolsProtocol(MovingProtocol):
    """`HttpToolsProtocol` that routes."""

    _choice: tuple[Found, str] | None = None  # of a WebSocket: its session and owner
    _joiner: Joiner | None = None
    remote: Remote | None = None
    """The request that another worker answers, while it does."""
    _unopened: Remote | None = None  # it, until its packet is parsed: a body that came along goes along
    _parsing = False
    _running: RequestResponseCycle | None = None  # the last one whose task was started
    _half: asyncio.TimerHandle | None = None
    _heads_known: Heads | None = None
    peer: bytes | None = None
    """`hop.codec.packed_peer` of this connection, once it was asked for."""

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        Base.__init__(self, config, server_state, app_state, _loop)
        self.accepting = accepting = config.accepting
        self._heads_known = config.heads
        self._follow = accepting is not None and accepting.handover is not None

    # requests

    def data_received(self, data: bytes) -> None:
        heads = self._heads_known
        if heads is None or not self._between or self.scope is not self._seen or self._begun is not None:
            self._parse(data)
            return
        head = heads.get(data) if len(data) <= LONGEST else None  # it hashes all of it
        body = b""
        if head is None:
            found = heads.find(data)
            if found is not None:
                head, body = found
        cycle = self.cycle
        if head is None or (cycle is not None and not (cycle.response_complete and cycle.keep_alive)):
            again = heads.seen(data)
            self._heads = 0
            self._parse(data)
            if again and self._heads == 1 and self._between and self.scope is self._seen and self._keeps():
                scope: Any = self.scope
                accepting = self.accepting
                heads.keep(data, scope, accepting.router.key(scope) if accepting is not None else None, again)
            return
        self._idle_since = 0.0
        if self._follow:
            self._chunk, self._heads = data, 1
        if not self._begin(head, body):
            cycle = cycle_of(self, head, body)
            self._seen = self.scope
            self._start_asgi_task(cycle, self.app)
            if self._moving is not None:
                self._move()
        self._chunk = None

    def _begin(self, head: Head, body: bytes) -> bool:
        """Begin a request that came before, where it is served or carried as it was then. False: think it over."""
        accepting = self.accepting
        if accepting is None or self.app is not accepting.app or not head.direct:
            return False  # the app is another one while this worker drains
        router = accepting.router
        found = router.again(head)
        if found is UNKNOWN:
            return False
        record = None
        if found is not None:
            record = router.here(found)
            if record is None:
                owner = router.owner(found)
                link = None if owner is None else accepting.links.raw_link(owner)
                if owner is None or link is None:
                    return False
                if accepting.handover is not None:
                    channel = self._way(owner, found, head.events)
                    if channel is not None:
                        self._moving = (channel, cycle_of(self, head, body))
                        self._seen = self.scope
                        self._move()
                        return True
                self.scope = self._seen = _NO_SCOPE
                self.remote = remote = RemoteAgain(accepting, link, self, head, body, found, owner)
                self.cycle = remote  # type: ignore[assignment]
                return True
        self._stays()
        cycle = cycle_of(self, head, body)
        self._seen = self.scope
        self._run(cycle, known_app(cycle, router, found, record))
        return True

    def _parse(self, data: bytes) -> None:
        """Read what was not read before."""
        if self._follow:
            self._read(data)
        else:
            Base.data_received(self, data)
        if self._unopened is not None:
            self._open()

    def _keeps(self) -> bool:
        """Whether the head that was just parsed may stand for the next one like it."""
        if self._heads_known is None or self._moving is not None:
            return False  # an upgrade; or it has left
        cycle = self.cycle
        return cycle is not None and cycle.keep_alive and self.loop.get_task_factory() is None

    def _read(self, data: bytes) -> None:
        """Read on a connection that may be handed over."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._chunk = begun + data
        elif self._between and self.scope is self._seen:
            self._chunk = data
        else:
            self._chunk = None  # it begins in a body, or in a head of which not all was kept
        self._heads = 0
        Base.data_received(self, data)
        if self._moving is not None:
            self._move()
        elif self.scope is not self._seen and self._heads == 0:
            self._begun = self._chunk  # a head that has come in part
        self._chunk = None

    def on_headers_complete(self) -> None:
        self._heads += 1
        self._seen = self.scope
        self._between = False
        self._parsing = True
        Base.on_headers_complete(self)
        self._parsing = False
        if self.parser.should_upgrade():
            self._heads_known = None  # the parser will not go on as it does otherwise
        else:  # an upgrade replays the headers into the WebSocket protocol
            self.headers = []

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        accepting = self.accepting
        if accepting is not None and app is self.app:
            scope: Any = cycle.scope
            choice = accepting.elsewhere(scope)
            if choice is not None:
                found, owner = choice
                if accepting.handover is not None:
                    channel = self._way(owner, found, only_events(scope))
                    if channel is not None:
                        self._moving = (channel, cycle)
                        return
                self.remote = self._unopened = accepting.begin(self, cycle, found, owner)
                if self.remote is not None:
                    if not self._parsing:
                        self._open()
                    return
            else:
                self._stays()
                if app is accepting.app and DECIDED in scope and direct(scope):
                    app = known_app(cycle, accepting.router, *scope.pop(DECIDED))
        self._run(cycle, app)

    def _run(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Run ``app`` for a request that is this worker's."""
        if self.tasks:
            joiner = self._joiner
            if joiner is None:
                joiner = self._joiner = Joiner(self.transport, self.loop)
            joiner.first = True
            cycle.transport = joiner  # type: ignore[assignment]
        self._running = cycle
        Base._start_asgi_task(self, cycle, app)

    def _open(self) -> None:
        """Send the request that was begun, with what has come of its body."""
        remote, self._unopened = self._unopened, None
        if remote is not None and not self.transport.is_closing() and not remote.open():
            self.remote = None
            self.run_here(remote.cycle)

    def on_body(self, body: bytes) -> None:
        Base.on_body(self, body)
        remote = self.remote
        if remote is not None and remote.id and remote.cycle is self.cycle:
            remote.pump()

    def on_message_complete(self) -> None:
        self._between = True
        Base.on_message_complete(self)
        remote = self.remote
        if remote is not None and remote.cycle is self.cycle:
            if remote is self._unopened:
                self._open()
            elif not remote.sent:
                remote.pump()

    def handle_websocket_upgrade(self) -> None:
        if self._moving is not None:
            return
        accepting = self.accepting
        if accepting is not None:
            choice = accepting.websocket(self)
            if choice is not None:
                self._choice = choice
                channel = self._channel(choice[1])
                if channel is not None:
                    self._moving = (channel, None)
                    return
        self._upgrade()

    def _upgrade(self) -> None:
        if self.first is not None:
            self.first.promote(self._upgrade)
            return
        self._forget_timer()  # the WebSocket protocol knows nothing of it
        choice, accepting = self._choice, self.accepting
        if choice is None or accepting is None or not accepting.tunnel(self, *choice):
            super().handle_websocket_upgrade()
        self._drop()

    def run_websocket_here(self, data: bytes) -> None:
        """Run a WebSocket that its owner has refused. ``data`` is what its client has sent since the handshake."""
        super().handle_websocket_upgrade()
        if data:
            protocol: Any = self.transport.get_protocol()
            protocol.data_received(data)

    def send_400_response(self, msg: str) -> None:
        if self._moving is None:  # else the new owner will find it out
            super().send_400_response(msg)

    # what a remote request asks of its connection

    def half_closed(self) -> bool:
        """True if the client will send nothing more."""
        return self._half is not None

    def remote_complete(self) -> None:
        """The reply of another worker is complete; it counted the request."""
        self.server_state.total_requests -= 1
        self.on_response_complete()
        if self._late and self.remote is None and not self.pipeline and self._idle_since:
            self._move_idle()

    def run_here(self, cycle: RequestResponseCycle) -> None:
        """Run a request that its owner has refused."""
        self._running = cycle
        Base._start_asgi_task(self, cycle, self.app)

    def on_response_complete(self) -> None:
        """As uvicorn's, but for the timer, of which it makes and cancels one for every request."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._arm(self.timeout_keep_alive)
        belongs: Any = self.scope.get(BELONGS)
        if belongs is not None:
            self.loop.call_soon(self._go_after, *belongs)
        elif self._uses:
            self._uses = 0

    # the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        first, self.first = self.first, None
        if first is not None:
            self.transport, self._joiner = transport, None
            first.take_over(transport)
            return
        super().connection_made(transport)
        if self._arrived is not None:
            config: Any = self.config
            self.accepting, self.app = config.accepting, config.loaded_app  # a drain may have begun meanwhile
            data, acknowledge = self._arrived
            if acknowledge is not None:
                acknowledge()  # before the first byte is fed
            if data:
                self.data_received(data)
            else:  # it came between two requests
                self._idle_since = self.loop.time()
                self._arm(self.timeout_keep_alive)
            if not self.transport.is_closing():
                self._arrived = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._shut:
            shut(self.transport)
        self._forget_timer()
        super().connection_lost(exc)
        running = self._running
        if running is not None and not running.response_complete:
            # uvicorn tells the newest request only; of pipelined ones the oldest is the one that runs.
            running.disconnected = True
            running.message_event.set()
        if self._half is not None:
            self._half.cancel()
        if self.remote is not None:
            self.remote.cancel()
            self.remote = None
        self._drop()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        if self.remote is None:
            return None
        self._half = self.loop.call_later(HALF_CLOSED, self.transport.close)
        return True

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.remote is not None:
            self.remote.resume()


class PlainHttpToolsProtocol(HttpToolsProtocol):
    """`HttpToolsProtocol` whose request headers end with the request's head, and no more; for a uvicorn whose insides
    are not as `SessionHttpToolsProtocol` knows them."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.parser.should_upgrade():
            self.headers = []


def replacement(protocol: type[asyncio.Protocol], *, known: bool) -> type[asyncio.Protocol]:
    """Our class for uvicorn's own httptools protocol; any other (h11 drops trailers itself) stays as it is.

    ``known``: it is as `raw.fits` wants it.
    """
    chosen: Any = protocol
    if protocol is HttpToolsProtocol:
        chosen = SessionHttpToolsProtocol if known else PlainHttpToolsProtocol
    return chosen  # type: ignore[no-any-return]
