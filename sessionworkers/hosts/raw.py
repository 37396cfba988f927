"""The accepting side of raw frames: whether uvicorn allows them, and what the connections of a worker share for them.

One request is `sessionworkers.hosts.raw_remote`, one WebSocket that cannot move `sessionworkers.hosts.raw_tunnel`.
"""

from __future__ import annotations

import contextvars
import inspect
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sessionworkers.errors import FrameError
from sessionworkers.hosts.cycle import log_access
from sessionworkers.hosts.heads import Passes
from sessionworkers.hosts.raw_remote import Remote
from sessionworkers.hosts.raw_tunnel import Tunnel, handshake
from sessionworkers.worker.accesslog import note_route
from sessionworkers.worker.router import Router

if TYPE_CHECKING:
    from sessionworkers.affinity.found import Found
    from sessionworkers.hosts.handover import Handover
    from sessionworkers.hosts.protocol import SessionHttpToolsProtocol

ENABLED = True
"""Off: ASGI frames carry everything."""
HANDOVER = True
"""Off: no connection is handed over, whatever the setting."""


def fits(protocol: Any) -> str:
    """What of uvicorn's ``protocol`` class is not as raw frames need it; "" if all is."""
    if not ENABLED:
        return "they are switched off"
    if protocol is not HttpToolsProtocol:
        return f"the HTTP protocol is {getattr(protocol, '__name__', protocol)}"
    wanted = {"scope", "transport", "flow", "message_event", "expect_100_continue", "keep_alive", "on_response"}
    wanted |= {"logger", "access_logger", "access_log", "default_headers"}
    signature = set(inspect.signature(RequestResponseCycle.__init__).parameters) - {"self"}
    if signature != wanted:
        return f"this uvicorn's request cycle takes {', '.join(sorted(signature ^ wanted))} otherwise"
    for name in ("_start_asgi_task", "on_response_complete", "on_headers_complete", "handle_websocket_upgrade"):
        if not hasattr(HttpToolsProtocol, name):
            return f"this uvicorn's protocol has no {name}"
    return ""


class Accepting:
    """What all connections of a worker share for raw frames."""

    def __init__(self, router: Router, config: Any, passes: Passes | None = None) -> None:
        self.router = router
        self.passes = passes
        """Where something stands in front of the router: whether a request goes through it as it is."""
        self.links: Any = router.links
        self.handover: Handover | None = None
        """Set where connections may be handed over."""
        self.app = config.loaded_app
        """What connections serve unless they drain. The proxy headers and the router stand in front of it, no more."""
        self._client = ProxyHeadersMiddleware(_nothing, config.forwarded_allow_ips) if config.proxy_headers else None

    def begin(
        self, protocol: SessionHttpToolsProtocol, cycle: RequestResponseCycle, found: Found, owner: str
    ) -> Remote | None:
        """The request of ``cycle``, to be opened at its owner; None: that is the router's to do."""
        link = self.links.raw_link(owner)
        if link is None:
            return None
        remote = Remote(self, link, protocol, found, owner)
        remote.cycle = cycle
        return remote

    def websocket(self, protocol: SessionHttpToolsProtocol) -> tuple[Found, str] | None:
        """Session and owner of a WebSocket handshake, if that is another worker."""
        url = httptools.parse_url(protocol.url)
        path = protocol.root_path + unquote(url.path.decode("ascii"))
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": url.query or b"",
            "headers": protocol.scope["headers"],
        }
        return self.elsewhere({**scope, "root_path": protocol.root_path})

    def elsewhere(self, scope: Any) -> tuple[Found, str] | None:
        """As the router's."""
        return self.router.elsewhere(scope) if self.passes is None or self.passes(scope) else None

    def tunnel(self, protocol: SessionHttpToolsProtocol, found: Found, owner: str) -> bool:
        """Carry a WebSocket's bytes to its owner; False: that is the router's to do, by ASGI frames."""
        link = self.links.raw_link(owner)
        if link is None:
            return False
        try:
            Tunnel(link, protocol).open(handshake(protocol, self.router.meta(found)))
        except (FrameError, TypeError, ValueError, OverflowError):
            return False
        return True

    def log(self, protocol: SessionHttpToolsProtocol, scope: Any, found: Found, owner: str, status: int) -> None:
        """The request's line in the access log, as uvicorn's cycle writes it."""

        def write() -> None:
            note_route(found, f"hop {owner[:8]}")
            log_access(protocol.access_logger, scope, status)

        if self._client is not None:
            try:
                self._client(scope, None, None).send(None)  # type: ignore[arg-type]
            except StopIteration:
                pass
        contextvars.copy_context().run(write)


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """An app that only lets the proxy headers be read."""
