"""One worker process composed: ledger, router, claims, private server, hop, sweeper, explicit sessions.

Start (after the app's own start-up, on its loop): private server bound and serving → published → public socket.
Stop: public side drained by the host → explicit sessions closed → private server closed, last of all → other sessions
closed → the app's shutdown → runtime files removed. The private server takes no signals and runs no lifespan of its
own.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sessionworkers.affinity.decide import Arrival
from sessionworkers.affinity.ids import set_mask_key
from sessionworkers.affinity.ruleset import RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.claims.directory import DirectoryStore
from sessionworkers.claims.memory import MemoryStore
from sessionworkers.claims.store import ClaimStore
from sessionworkers.hop.link import Links
from sessionworkers.hop.private import PrivateServer
from sessionworkers.ledger.answers import Refused, refuse
from sessionworkers.ledger.current import set_here
from sessionworkers.ledger.ledger import App, Ledger, Receive, Scope, Send
from sessionworkers.ledger.sweeper import Sweeper
from sessionworkers.members.identity import Member, Roster
from sessionworkers.members.load import LoadBoard
from sessionworkers.members.runtime import RuntimeDir
from sessionworkers.worker import accesslog
from sessionworkers.worker.passport import decode
from sessionworkers.worker.router import Router
from sessionworkers.worker.rules import affinity_cookie, build_rules, names_for

if TYPE_CHECKING:
    from sessionworkers.sessions.costs import Metered
    from sessionworkers.settings import Settings
    from sessionworkers.worker.explicit import ExplicitSessions

log = logging.getLogger("uvicorn.error")

STREAMS_GRACE = 10.0
"""Seconds that requests of other workers get to finish when this worker stops, where the host names no other limit."""

CALLBACKS_GRACE = 5.0
"""Seconds that close callbacks get in all when this worker stops."""


class Worker:
    """Sessions for one app in one process. ``runtime_dir`` None: a single worker, no claims and no private socket.

    Make it after fork: the identity is made here. `app` is the ASGI app to serve in place of the one given.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        runtime_dir: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.runtime = RuntimeDir.adopt(runtime_dir) if runtime_dir is not None else None
        self.member = Member.enlist(self.runtime) if self.runtime is not None else None
        set_mask_key(self.runtime.mask_key() if self.runtime is not None else secrets.token_bytes(16))
        self.rules: RuleSet = build_rules(settings, app, self.runtime)
        self.names = names_for(self.rules)
        cookie = affinity_cookie(self.rules, settings)
        store: ClaimStore
        self._links: Links | None = None
        roster = Roster(self.runtime) if self.runtime is not None else None
        if self.runtime is not None and self.member is not None and roster is not None:
            store = DirectoryStore(self.runtime, self.member)
            self._links = Links(
                self.member.uid, roster.socket_path, roster.alive, connect_timeout=settings.hop_connect_timeout
            )
        else:
            store = MemoryStore("single")
        metered: Metered | None = None
        if settings.session_api:
            from sessionworkers.worker.explicit import ExplicitSessions, metered_app

            metered = app = metered_app(app, settings, clock)
        self.ledger = Ledger(app, self.rules, store, max_claims=settings.max_claims, cookie=cookie, clock=clock)
        self.app: App = app
        if self.rules.rules or self.rules.auto is not None:
            self.app = Router(self.ledger, self._links, max_body=settings.max_body)
            accesslog.install()
        self.board: LoadBoard | None = None
        self.explicit: ExplicitSessions | None = None
        if metered is not None:
            accesslog.install()
            uids = roster.serving if roster is not None else None
            self.board = LoadBoard(self.runtime, store.me, uids)
            self.explicit = ExplicitSessions(settings, self.ledger, self.app, self._links, self.board, metered)
            self.app = self.explicit.app
            self.names.append("worker-sessions")
        self._sweeper = Sweeper(self.ledger)
        self._private: PrivateServer | None = None
        self._started = False

    async def start(self, state: Callable[[], dict[str, Any]], local: socket.socket | None = None) -> None:
        """Serve the private socket and be found by others. ``state`` gives the lifespan's state for one request.

        ``local``: a listening socket on 127.0.0.1 for the end server of explicit sessions.
        """
        if self.app is self.ledger.app:
            return  # no rules: nothing stands around the app, and nobody hops here
        set_here(self.ledger)
        self._sweeper.start()
        if self.member is not None:
            self._private = PrivateServer(self.member.uid, self.member.bind(), self._serve_private, state=state)
            await self._private.start()
        if self.explicit is not None:
            await self.explicit.start(state, local)
        if self.member is not None:
            self.member.publish()
        self._started = True

    async def stop(self, grace: float | None = None) -> None:
        """Close the private server, then every session. Seconds of ``grace`` for requests of other workers."""
        if self._started:
            self._started = False
            if self.explicit is not None:
                if self.member is not None:
                    self.member.drain()
                await self.explicit.stop(CALLBACKS_GRACE)
            await self._sweeper.stop()
            if self._private is not None:
                await self._private.close(STREAMS_GRACE if grace is None else grace)
            if self._links is not None:
                await self._links.close()
            await self._close_sessions()
            set_here(None)
        self.release()

    def release(self) -> None:
        """Give the identity up. The claims stay as tombstones until the server exits: *gone*, not *unknown*."""
        if self.board is not None:
            self.board.close()
            self.board = None
        if self.member is not None:
            self.ledger.book.store.close()
            self.member.retire()
            self.member = None

    async def _close_sessions(self) -> None:
        closing = [
            record.handle.close()
            for record in self.ledger.book.records()
            if record.handle is not None and record.handle.has_callbacks
        ]
        if closing:
            _, late = await asyncio.wait(closing, timeout=CALLBACKS_GRACE)
            for task in late:
                task.cancel()
            if late:
                log.warning("%d close callbacks did not finish within %g s", len(late), CALLBACKS_GRACE)

    async def _serve_private(self, scope: Scope, receive: Receive, send: Send, meta: dict[str, Any]) -> None:
        """A request that another worker carried here. Raises `NotMine`, which the hop sends back."""
        told = meta.get("session")
        if told is not None and self.explicit is not None:
            await self.explicit.app.serve_private(scope, receive, send, told)
            return
        request = RequestView.from_scope(scope)
        found = decode(meta, self.rules, request)
        try:
            await self.ledger.serve(scope, receive, send, request, found, Arrival.PRIVATE)
        except Refused as refused:
            await refuse(scope, send, refused)
