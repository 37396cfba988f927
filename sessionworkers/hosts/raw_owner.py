"""The owner's side of raw frames: uvicorn's own request cycle on a stream that looks like its transport.

It is counted where uvicorn counts its own requests: in ``server_state.tasks`` (``limit_concurrency``, the wait of a
graceful shutdown) and ``total_requests`` (``limit_max_requests``), once, here. The access log is the acceptor's.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.server import ServerState

from sessionworkers.affinity.found import Found
from sessionworkers.hop import codec
from sessionworkers.hop.codec import ASK, COMPLETE, FIRST, KEEP, TUNNEL, Address, OpenRaw
from sessionworkers.hop.raw import ServedRaw
from sessionworkers.hosts.cycle import Cycle, Told, direct, known_app, take
from sessionworkers.hosts.heads import LONGEST, MOST, Fields, Head, scope_of
from sessionworkers.hosts.marks import Marks, put
from sessionworkers.hosts.raw_tunnel import OwnedTunnel
from sessionworkers.worker.router import DECIDED, Carried, Router

log = logging.getLogger("uvicorn.error")


class RawOwner:
    """Takes raw streams for one server. ``state``: the lifespan's state for one request."""

    def __init__(self, config: Any, server_state: ServerState, state: Callable[[], dict[str, Any]]) -> None:
        self.config = config
        self.server_state = server_state
        self.state = state
        self.loop = asyncio.get_running_loop()
        self.app = config.loaded_app
        self.router: Router = config.worker.router
        self._heads: dict[bytes, Head] = {}
        self._fields: dict[bytes, Fields] = {}
        self._marks = Marks(4 * MOST)
        self._peers: dict[bytes, Peer] = {}
        self.asgi_version: str = config.asgi_version
        self.root_path: str = config.root_path
        self.limit: int | None = config.limit_concurrency

    def open(self, stream: ServedRaw, head: OpenRaw) -> asyncio.Task[None] | None:
        """A stream was opened."""
        if head.flags & TUNNEL:
            OwnedTunnel(self, stream, head)
            return None
        path = head.path
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": head.http_version,
            "server": head.server,
            "client": head.client,
            "scheme": head.scheme,
            "root_path": self.root_path,
            "headers": head.headers,
            "state": self.state(),
            "method": head.method,
            "path": path,
            "raw_path": path.encode("ascii") if head.raw_path is None else head.raw_path,
            "query_string": head.query,
        }
        request = OwnedRequest(self, stream, scope, head.flags, head.body)
        request.meta = head.meta
        plain = head.meta is None and direct(scope)
        return self._serve(request, self.router.recalled(scope) if plain else None)

    def open_again(
        self, stream: ServedRaw, flags: int, head: bytes, line: int, peer: bytes, body: bytes
    ) -> asyncio.Task[None] | None:
        """A stream was opened with a head that may have come before. Raises `Unreadable`."""
        known = self._heads.get(head) or self._read_head(head, line)
        if flags & FIRST:  # what may never come again is not kept
            client = Peer(self, *codec.read_packed_peer(peer))
        else:
            client = self._peers.get(peer) or self._read_peer(peer)
        request = OwnedRequest(self, stream, scope_of(client, known, self.state()), flags, body)
        return self._serve(request, self.router.again(known) if known.direct else None)

    def _serve(self, request: OwnedRequest, found: Any) -> asyncio.Task[None]:
        """Run a request in which the router has ``found`` a session before; else it has to think."""
        if type(found) is Found and self.limit is None:
            record = self.router.here(found)
            if record is not None:
                return self._run(request, known_app(request, self.router, found, record))
        scope: Any = request.scope
        scope[DECIDED] = request
        return self._run(request, service_unavailable if self.limit is not None and self._full() else self.app)

    def _read_head(self, packed: bytes, line: int) -> Head:
        """Read a head; one that comes a second time will not have to be read again, nor will its fields."""
        rest = packed[line:]
        fields = self._fields.get(rest)
        if fields is None:
            headers = codec.read_packed_fields(rest)
            key = self.router.key({"method": "", "path": "", "query_string": b"", "headers": headers})
            fields = Fields(headers, 0, key)
            if len(rest) <= LONGEST:
                put(self._fields, rest, fields, MOST)
        head = Head(*codec.read_packed_line(packed[:line]), fields)
        if len(packed) <= LONGEST and self._marks.again(packed):
            put(self._heads, packed, head, MOST)
        return head

    def _read_peer(self, packed: bytes) -> Peer:
        """The same for a client's connection."""
        peer = Peer(self, *codec.read_packed_peer(packed))
        put(self._peers, packed, peer, MOST)
        return peer

    def _run(self, request: OwnedRequest, app: Any) -> asyncio.Task[None]:
        run = request.run_asgi(app)
        if not self.config.reset_contextvars:
            task = self.loop.create_task(run)
        elif sys.version_info >= (3, 11):
            task = self.loop.create_task(run, context=contextvars.Context())
        else:
            task = contextvars.Context().run(self.loop.create_task, run)
        self.server_state.tasks.add(task)
        task.add_done_callback(request.left)
        return task

    def _full(self) -> bool:
        """``limit_concurrency`` is reached with one request more."""
        limit, state = self.limit, self.server_state
        return limit is not None and (len(state.connections) >= limit or len(state.tasks) + 1 >= limit)


class Peer:
    """A client's connection to another worker, as far as a request's scope tells of it."""

    __slots__ = ("asgi_version", "client", "root_path", "scheme", "server")

    def __init__(self, owner: RawOwner, client: Address | None, server: Address | None, scheme: str) -> None:
        self.asgi_version = owner.asgi_version
        self.client = client
        self.root_path = owner.root_path
        self.scheme = scheme
        self.server = server


class OwnedRequest(Cycle, Carried):
    """One request of another worker's client."""

    def __init__(self, owner: RawOwner, stream: ServedRaw, scope: dict[str, Any], flags: int, body: bytes) -> None:
        self.owner = owner
        self.stream = stream
        stream.request = self
        super().__init__(
            scope,  # type: ignore[arg-type]
            stream,  # type: ignore[arg-type]
            stream,  # type: ignore[arg-type]
            log,
            log,
            False,
            owner.server_state.default_headers,
            Told(flags & COMPLETE != 0),  # type: ignore[arg-type]
            flags & ASK != 0,
            flags & KEEP != 0,
            self._complete,
        )
        if flags & COMPLETE:
            if body:
                take(self, body)
            self.more_body = False

    def left(self, task: asyncio.Task[None]) -> None:
        """The request's task is done."""
        stream = self.stream
        self.owner.server_state.tasks.discard(task)
        if not stream.ended and not self.response_complete and not stream.is_closing():
            stream.close()
        stream.left_by(task)

    def refuse(self, owner: str | None) -> None:
        self.disconnected = True  # nothing is answered here
        self.stream.refuse(owner)

    def _complete(self) -> None:
        self.owner.server_state.total_requests += 1
        self.stream.done()

    # what the stream tells
    def more(self, data: bytes, last: bool) -> None:
        take(self, data)
        if last:
            self.more_body = False
        self.message_event.set()

    def gone(self) -> None:
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()

    def shut(self) -> None:
        self.gone()

    def closed(self) -> None:
        """The cycle closed by itself."""

    def pause(self) -> None:
        """The cycle looks at ``write_paused`` itself."""

    def resume(self) -> None:
        """The same."""
