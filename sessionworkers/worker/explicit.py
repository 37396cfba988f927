"""Explicit sessions composed for one worker: owner, front, placing, hooks, load, the loopback end server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from sessionworkers import __version__
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.hop.link import Links
from sessionworkers.ledger.ledger import App, Ledger
from sessionworkers.members.fork import close_in_child
from sessionworkers.members.load import LoadBoard
from sessionworkers.sessions.costs import Costs, Metered
from sessionworkers.sessions.endserver import EndServer
from sessionworkers.sessions.front import Front
from sessionworkers.sessions.grants import read_key
from sessionworkers.sessions.hooks import Hooks
from sessionworkers.sessions.meter import Meter
from sessionworkers.sessions.openapi import document
from sessionworkers.sessions.owner import Owner, session_rule
from sessionworkers.sessions.placing import Placer
from sessionworkers.sessions.targets import HookAllow
from sessionworkers.settings import Settings
from sessionworkers.worker.accesslog import note_route


class ExplicitSessions:
    """What a worker holds of the session API. `app` is served in place of the router."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        router: App,
        links: Links | None,
        board: LoadBoard,
        metered: Metered,
    ) -> None:
        prefix = settings.session_prefix
        self._end_path = f"{prefix}/end"
        self._state: Callable[[], dict[str, Any]] = dict
        hooks = Hooks(
            metered.app,
            base=settings.hook_base_url,
            allow=HookAllow(settings.hook_allow),
            timeout=settings.hook_timeout,
            concurrency=settings.hook_concurrency,
            state=lambda: self._state(),
        )
        key = read_key(settings.grant_public_key) if settings.grant_public_key is not None else None
        self.owner = Owner(
            ledger,
            session_rule(prefix, settings.retry_window),
            hooks,
            metered.meter,
            board.mine,
            most=settings.max_sessions,
            extend=settings.session_extend,
            max_age=settings.session_max_age,
        )
        metered.changed = self.owner.publish
        placer = Placer(
            self.owner,
            board,
            links,
            lifetime=settings.session_lifetime,
            max_lifetime=settings.session_max_lifetime,
            grant_key=key,
        )
        self.app = Front(
            router,
            self.owner,
            placer,
            links,
            ledger.rules,
            prefix=prefix,
            envelope=[PathTemplate(path) for path in settings.session_envelope],
            grant_key=key,
            openapi=document(prefix, __version__),
            note=note_route,
        )
        placer.note = self.app.log
        self._end_server: EndServer | None = None

    async def start(self, state: Callable[[], dict[str, Any]], local: socket.socket | None) -> None:
        """Publish this worker's figures and serve the loopback port, if there is one."""
        self._state = state
        self.owner.publish()
        if local is not None:
            close_in_child(local.fileno())
            self._end_server = EndServer(local, self._end_path, self.app.end)
            await self._end_server.start()

    async def stop(self, grace: float) -> None:
        """End every session; hooks get ``grace`` seconds. The loopback port goes last."""
        await self.owner.stop(grace)
        if self._end_server is not None:
            await self._end_server.close()


def metered_app(app: App, settings: Settings, clock: Callable[[], float]) -> Metered:
    """The app with its requests counted, as the settings say."""
    return Metered(
        app,
        Meter(settings.max_queue_time),
        costs=Costs(settings.request_cost),
        unwrap=[PathTemplate(path) for path in settings.unwrap],
        max_body=settings.max_body,
        clock=clock,
    )
