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
from sessionworkers.affinity.found import Found
from sessionworkers.affinity.ids import set_mask_key
from sessionworkers.affinity.placement import Policy
from sessionworkers.affinity.ruleset import RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.claims.directory import DirectoryStore
from sessionworkers.claims.memory import MemoryStore
from sessionworkers.claims.store import ClaimStore
from sessionworkers.errors import NotMine
from sessionworkers.hop.link import Links
from sessionworkers.hop.private import PrivateServer
from sessionworkers.hop.raw import OpensRaw
from sessionworkers.ledger.answers import Refused, refuse
from sessionworkers.ledger.current import set_here
from sessionworkers.ledger.ledger import App, Ledger, Receive, Scope, Send
from sessionworkers.ledger.sweeper import Sweeper
from sessionworkers.members.identity import Member, Roster
from sessionworkers.members.load import LoadBoard
from sessionworkers.members.runtime import RuntimeDir
from sessionworkers.observe.ready import Probes
from sessionworkers.worker import accesslog
from sessionworkers.worker.accesslog import note_route
from sessionworkers.worker.control import Control
from sessionworkers.worker.drain import Drain, Held, Phase
from sessionworkers.worker.holding import Holding
from sessionworkers.worker.newcomers import Newcomers
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

CUT_LIMIT = 0.2
"""Seconds for requests of other workers to end when they are cancelled at once."""


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
        self.drain = Drain()
        self.made = clock()
        self._clock = clock
        self.roster = roster = Roster(self.runtime) if self.runtime is not None else None
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
        if settings.probes:
            app = Probes(app, self.ready)
        self.ledger = Ledger(app, self.rules, store, max_claims=settings.max_claims, cookie=cookie, clock=clock)
        self.app: App = app
        self.board: LoadBoard | None = None
        if self._links is not None or metered is not None:
            uids = roster.serving if roster is not None else None
            self.board = LoadBoard(self.runtime, store.me, uids)
        self._newcomers = Newcomers(self.ledger, self._links, self.board, Policy(settings.placement), note_route)
        self.router: Router | None = None
        if self.rules.rules or self.rules.auto is not None:
            self.app = self.router = Router(self.ledger, self._links, max_body=settings.max_body)
            if self._links is not None and any(rule.starts for rule in self.rules.rules):
                self.router.newcomers = self._newcomers
            accesslog.install()
        self._holding = Holding(self.ledger.book, settings.drain_idle, clock)
        self.ledger.book.on_live = self.publish
        self.explicit: ExplicitSessions | None = None
        if metered is not None:
            accesslog.install()
            assert self.board is not None
            self.explicit = ExplicitSessions(settings, self.ledger, self.app, self._links, self.board, metered)
            self.app = self.explicit.app
            self.names.append("worker-sessions")
        self.requests = 0
        """Requests in flight, as the host last counted them."""
        self._sweeper = Sweeper(self.ledger)
        self._private: PrivateServer | None = None
        self._control: Control | None = None
        self.opens_raw: OpensRaw | None = None
        """Takes raw streams of other workers; the host sets it before `start`."""
        self.take_sockets: Callable[[socket.socket], None] | None = None
        """Takes connections by which other workers hand sockets over; the same."""
        self._started = False

    def hands_over(self, open_channel: Callable[[str], object]) -> None:
        """The host can hand connections over: they move with the starts that are placed. See `Newcomers`."""
        self._newcomers.open_channel = open_channel

    @property
    def connections_move(self) -> bool:
        """Whether a kept-alive connection can go after a start that is placed."""
        return self._newcomers.open_channel is not None

    async def start(self, state: Callable[[], dict[str, Any]], local: socket.socket | None = None) -> None:
        """Serve the private socket and be found by others. ``state`` gives the lifespan's state for one request.

        ``local``: a listening socket on 127.0.0.1 for the end server of explicit sessions.
        """
        if self.app is self.ledger.app:  # no rules: nothing stands around the app, and nobody hops here
            self._appear()  # so that one that drains knows that another serves
            return
        set_here(self.ledger)
        self._sweeper.start()
        if self.member is not None:
            self._private = PrivateServer(self.member.uid, self.member.bind(), self._serve_private, state=state)
            self._private.opens_raw, self._private.take_sockets = self.opens_raw, self.take_sockets
            await self._private.start()
        if self.explicit is not None:
            await self.explicit.start(state, local)
        self.publish()
        self._appear()
        self._started = True

    def _appear(self) -> None:
        if self.member is None or self.roster is None:
            return
        self._control = Control(self, self.member.bind_control())
        self.member.publish()
        self.roster.bury()  # what killed workers left: under some hosts nobody else does it

    async def stop(self, grace: float | None = None) -> None:
        """Close the private server, then every session. Seconds of ``grace`` for requests of other workers."""
        if self._started:
            self._started = False
            if self.member is not None:
                self.member.drain()
            if self.explicit is not None:
                await self.explicit.stop(CALLBACKS_GRACE)
            await self._sweeper.stop()
            if self._private is not None:
                await self._private.close(STREAMS_GRACE if grace is None else grace)
            if self._links is not None:
                await self._links.close()
            await self._close_sessions()
            set_here(None)
        self.release()

    async def cut(self) -> None:
        """In place of `stop`, or while it waits: end the requests of other workers, then give the identity up."""
        tasks = list(self._private.tasks) if self._private is not None else []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_LIMIT)
        self.release()

    def release(self) -> None:
        """Give the identity up. The claims stay as tombstones until the server exits: *gone*, not *unknown*."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self.board is not None:
            self.board.close()
            self.board = None
        if self.member is not None:
            self.ledger.book.store.close()
            self.member.retire()
            self.member = None

    # draining

    def give_way(self, on: bool) -> None:
        """Leave new sessions to other workers while there are any; or take them again."""
        if self.drain.give_way(on):
            self._away(on)
            if self.member is not None and not on and self._started:
                self.member.publish()

    def begin_drain(self, timeout: float, *, all: bool = False, sessions: bool = True) -> bool:
        """Take no new sessions; see `drain.Drain.begin`. True for the first such order."""
        first = self.drain.begin(self._clock(), timeout, all=all, sessions=sessions)
        self._newcomers.closing = self.drain.all
        if first:
            self._away(True)
        return first

    def _away(self, on: bool) -> None:
        self._newcomers.away = on
        if self.router is not None:
            if on:
                self.router.think()
                self.router.newcomers = self._newcomers
            else:
                self.router.remember()
        if self.member is not None and on:
            self.member.drain()
        if self.explicit is not None:
            self.explicit.owner.draining = on
            self.explicit.owner.publish()

    @property
    def hopped(self) -> int:
        """Requests of other workers that run here."""
        return self._private.streams if self._private is not None else 0

    def held(self, requests: int, connections: int) -> Held:
        """What holds this worker back; the host counts its ``requests`` and idle ``connections``."""
        return Held(requests, self.hopped, self._holding.until(), connections)

    def others(self) -> list[str]:
        """The other workers that take new sessions."""
        me = self.ledger.book.store.me
        return [uid for uid in self.roster.serving() if uid != me] if self.roster is not None else []

    def ready(self) -> bool:
        """Whether the server takes new sessions, here or on another worker."""
        if self.drain.all:
            return False
        return self.drain.phase in (Phase.SERVING, Phase.YIELDING) or bool(self.others())

    @property
    def full(self) -> bool:
        """No more IDs can be claimed here."""
        cap = self.settings.max_claims
        return cap > 0 and len(self.ledger.book) >= cap

    def report(self, busy: float) -> dict[str, Any]:
        """What the manager is told (see ``manager.scaling.Report``)."""
        book = self.ledger.book
        table = self.explicit.owner.table if self.explicit is not None else None
        full = self.full or (table is not None and table.full)
        idle = book.live == 0 and self.requests == 0 and self._holding.until() <= self._clock()
        return {"sessions": book.live, "requests": self.requests, "busy": busy, "full": full, "idle": idle}

    def publish(self) -> None:
        """Put what is not of explicit sessions on the load board."""
        if self.board is not None:
            explicit = len(self.explicit.owner.table) if self.explicit is not None else 0
            self.board.mine.count(max(0, self.ledger.book.live - explicit), self.requests, self.full)

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
        if meta.get("placed") and self.drain.phase in (Phase.DRAINING, Phase.ENDING) and not self._mine(found):
            raise NotMine(None)  # it was on its way when this worker began to drain
        try:
            await self.ledger.serve(scope, receive, send, request, found, Arrival.PRIVATE)
        except Refused as refused:
            await refuse(scope, send, refused)

    def _mine(self, found: Found | None) -> bool:
        """True if the session that is to begin here is claimed for this worker already."""
        return found is not None and self.ledger.book.store.owner(found.primary.key) == self.ledger.book.store.me
