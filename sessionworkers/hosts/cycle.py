"""uvicorn's request cycle with a quicker `send` for the replies that most apps make; the bytes are the same.

uvicorn looks at every header of every reply with two regular expressions. Most of them were on the reply before, so
here what came of each is remembered. Whatever is out of the ordinary, every error included, is uvicorn's own `send`'s
to do: nothing has changed when it gets the message. Used only where uvicorn's code is what was read for this.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from httptools import parse_url
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from sessionworkers.affinity.ruleset import Found, RuleSet
from sessionworkers.hosts.marks import Marks, put
from sessionworkers.ledger.book import Record
from sessionworkers.ledger.known import Known
from sessionworkers.worker.router import Router

KNOWN: Final[dict[Callable[..., Any], str]] = {
    RequestResponseCycle.send: "abdd8601",
    HttpToolsProtocol.on_headers_complete: "1ea8589a",
    HttpToolsProtocol.on_message_begin: "96d377fd",
    HttpToolsProtocol.on_message_complete: "1fbad42d",
    HttpToolsProtocol.on_body: "dba9c32a",
    HttpToolsProtocol.data_received: "010a7ae5",
    HttpToolsProtocol.__init__: "4f089994",
    HttpToolsProtocol.connection_made: "6efb565f",
}
"""What stands here in other words, with the beginnings of the SHA-256 of its source (uvicorn 0.53, 0.54)."""

_MOST_LINES: Final = 4_096
_LONGEST: Final = 256  # bytes; a longer value is not remembered

_lines: dict[tuple[bytes, bytes], bytes] = {}
"""Header as an app gives it → its line. None that has a meaning for the connection or the body is among them."""
_heads: dict[Any, tuple[Any, bytes, int, str]] = {}
"""Status and headers → the rules by which they teach nothing, lines, length and kind of the body."""
_once = Marks(_MOST_LINES)
"""Heads that came once."""
_last_defaults: tuple[Any, bytes | None] = (None, None)
_LENGTH: Final = b"content-length"
_PROXIES: Final = (b"x-forwarded-for", b"x-forwarded-proto")
_MEANING: Final = (_LENGTH, b"transfer-encoding", b"connection")


def known() -> bool:
    """True if this uvicorn's code is that of `KNOWN`; False, too, where its source cannot be read."""
    try:
        return all(
            hashlib.sha256(inspect.getsource(function).encode()).hexdigest().startswith(digest)
            for function, digest in KNOWN.items()
        )
    except (OSError, TypeError):
        return False


def _line(name: bytes, value: bytes) -> bytes | None:
    """The line of a header that has no meaning of its own; None: uvicorn has to look at it."""
    lower = name.lower()
    if lower in _MEANING or HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
        return None
    line = b"".join((lower, b": ", value, b"\r\n"))
    if len(value) <= _LONGEST and lower != b"set-cookie":
        put(_lines, (name, value), line, _MOST_LINES)
    return line


def _defaults(pairs: Any) -> bytes | None:
    """The server's own headers of every reply as lines; uvicorn makes a new list each second."""
    global _last_defaults
    if _last_defaults[0] is not pairs:
        lines = [_lines.get(pair) or _line(*pair) for pair in pairs]
        _last_defaults = (pairs, None if None in lines else b"".join(line for line in lines if line is not None))
    return _last_defaults[1]


def _head(message: Any) -> tuple[bytes, int] | None:
    """The app's own lines of a reply's head, and the length of the body; None: uvicorn is to do it."""
    headers = message.get("headers", ())
    if message["type"] != "http.response.start" or not isinstance(headers, (list, tuple)):
        return None  # what can be gone through once only, too
    length = -1
    lines = _lines
    content = []
    try:
        if message["status"] not in STATUS_LINE:
            return None
        for name, value in headers:
            line = lines.get((name, value))
            if line is None:
                if name == _LENGTH and length < 0 and value.isdigit():
                    length = int(value)
                    line = b"content-length: %b\r\n" % value
                else:
                    line = _line(name, value)
                    if line is None:
                        return None
            content.append(line)
    except (TypeError, ValueError, AttributeError, LookupError):
        return None  # uvicorn finds the words for it
    return None if length < 0 else (b"".join(content), length)


def log_access(logger: logging.Logger, scope: Any, status: int) -> None:
    """A request's line in the access log, as uvicorn's cycle writes it."""
    logger.info(
        '%s - "%s %s HTTP/%s" %d',
        get_client_addr(scope),
        scope["method"],
        get_path_with_query_string(scope),
        scope["http_version"],
        status,
    )


class Told:
    """What uvicorn's cycle uses of an `asyncio.Event`. One is made only for who waits: an app that asks for a body that
    is here, or for none, never does."""

    __slots__ = ("_event", "_told")

    def __init__(self, told: bool = False) -> None:
        self._told = told
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        return self._told

    def set(self) -> None:
        self._told = True
        if self._event is not None:
            self._event.set()

    def clear(self) -> None:
        self._told = False
        if self._event is not None:
            self._event.clear()

    async def wait(self) -> bool:
        if self._told:
            return True
        if self._event is None:
            self._event = asyncio.Event()
        return await self._event.wait()


def take(cycle: RequestResponseCycle, data: bytes) -> None:
    """Add to the body that the app has not asked for yet. One piece alone stays what it is: ``receive`` gives the app
    ``bytes(cycle.body)``, which then copies nothing."""
    body: bytes | bytearray = cycle.body
    if not body:
        cycle.body = data  # type: ignore[assignment]
    elif isinstance(body, bytearray):
        body += data
    else:
        cycle.body = bytearray(b"".join((body, data)))


class QuickCycle(RequestResponseCycle):
    """`RequestResponseCycle`, quicker."""

    async def send(self, message: Any) -> None:
        if not self._sent(message):
            await super().send(message)

    def _sent(self, message: Any) -> bool:
        """Do what uvicorn's `send` would; False: it is to do it, and nothing has changed."""
        if self.flow.write_paused or self.disconnected:
            return False
        if not self.response_started:
            head = _head(message)
            return head is not None and self._begun(message["status"], *head)
        chunked = self.chunked_encoding
        if self.response_complete or chunked is None or message["type"] != "http.response.body":
            return False
        body = message.get("body", b"")
        if body is None or self.scope["method"] == "HEAD":
            return False
        size = len(body)
        more = message.get("more_body", False)
        expected = self.expected_content_length
        if chunked:
            if expected:
                return False
            data = b"%x\r\n%b\r\n" % (size, body) if size else b""
            self.transport.write(data if more else data + b"0\r\n\r\n")
        else:
            if size > expected if more else size != expected:
                return False
            self.transport.write(body)
            self.expected_content_length = expected - size
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
        return True

    def _begun(self, status: int, lines: bytes, length: int) -> bool:
        """Write the head of a reply whose body has a length."""
        defaults = _defaults(self.default_headers)
        if defaults is None:
            return False
        self.response_started = True
        self.waiting_for_100_continue = False
        if self.access_log:
            log_access(self.access_logger, self.scope, status)
        self.expected_content_length = length
        self.chunked_encoding = False
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], defaults, lines, end)))
        return True


class Watched(Known):
    """A plain request whose reply its cycle looks at; see `KnownCycle`."""

    watches = False


class KnownCycle(QuickCycle):
    """`QuickCycle` that looks itself at what the reply to a known request may teach.

    Heads that taught nothing and came before, to the byte, are looked up.
    """

    visit: Watched | None = None
    """None, too, when nothing that is still to come can teach anything."""

    async def send(self, message: Any) -> None:
        visit = self.visit
        if visit is not None:
            if not self.response_started and self._again(message, visit):
                if not visit.kind:
                    self.visit = None
                return None
            full = visit.look(message, self._pass)
            if full is not None:
                await full.send(message)
                if full.through:
                    self.visit = None
                return None
        if not self._sent(message):
            await RequestResponseCycle.send(self, message)
        if visit is not None and self.response_started and not visit.kind:
            self.visit = None
        return None

    async def _pass(self, message: Any) -> None:
        """`send` for what was looked at."""
        await QuickCycle.send(self, message)

    def _again(self, message: Any, visit: Watched) -> bool:
        """Send a head that came before, or see to it that this one will be known."""
        headers = message.get("headers")
        if not isinstance(headers, (list, tuple)) or message["type"] != "http.response.start":
            return False
        try:
            key = (message["status"], *headers)
            head = _heads.get(key)
        except (TypeError, KeyError):
            return False
        rules = visit.ledger.rules
        if head is None or head[0] is not rules:
            if _once.again(key):
                _remember(key, message, rules)
            return False
        if self.flow.write_paused or self.disconnected or not self._begun(key[0], head[1], head[2]):
            return False
        visit.heard(message, head[3])
        return True


def _remember(key: Any, message: Any, rules: RuleSet) -> None:
    """Keep a reply's head, if it is an ordinary one that teaches nothing and holds no secret."""
    headers = message["headers"]
    try:
        kind = rules.untelling(headers)
    except (TypeError, ValueError, AttributeError, LookupError):
        return  # no headers
    if kind is None:
        return
    head = _head(message)
    if head is None or len(head[0]) > _LONGEST or any(name.lower() == b"set-cookie" for name, _ in headers):
        return
    put(_heads, key, (rules, *head, kind), _MOST_LINES)


class QuickHttpToolsProtocol(HttpToolsProtocol):
    """`HttpToolsProtocol` whose requests run in a `KnownCycle`."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return  # what comes of a body after the reply is passed over, and nobody would resume
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if (self.parser.should_upgrade() and self._should_upgrade()) or cycle.response_complete:
            return
        take(cycle, body)  # reading pauses for what is to come, not for what is here: see `data_received`
        cycle.message_event.set()

    def on_headers_complete(self) -> None:
        parser = self.parser
        if parser.should_upgrade() or self.limit_concurrency is not None:
            super().on_headers_complete()
            return
        scope: Any = self.scope
        version = parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        scope["method"] = parser.get_method().decode("ascii")
        url = parse_url(self.url)
        raw_path = url.path
        path = raw_path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        root = self.root_path
        if root:
            path = root + path
            raw_path = root.encode("ascii") + raw_path
        scope["path"] = path
        scope["raw_path"] = raw_path
        scope["query_string"] = url.query or b""
        before = self.cycle
        self.cycle = cycle = KnownCycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            Told(),  # type: ignore[arg-type]
            self.expect_100_continue,
            version != "1.0" and parser.should_keep_alive(),
            self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:  # pipelined
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))


KNOWN_HERE: Final = known()
"""Reading sources takes its time: asked once."""
if TYPE_CHECKING:
    Cycle = RequestResponseCycle
    Base = HttpToolsProtocol
else:
    Cycle = KnownCycle if KNOWN_HERE else RequestResponseCycle
    Base = QuickHttpToolsProtocol if KNOWN_HERE else HttpToolsProtocol


def known_app(cycle: RequestResponseCycle, router: Router, found: Found | None, record: Record | None) -> Known:
    """The app for ``cycle``, a plain request of the session ``record`` of this worker, or (both None) of none."""
    if not isinstance(cycle, KnownCycle):
        return router.known(found, record)
    cycle.visit = visit = Watched(router.ledger, found, record, router)
    return visit


def direct(scope: Mapping[str, Any]) -> bool:
    """True if no proxy has written into the request's head."""
    for name, _ in scope["headers"]:  # noqa: SIM110 - twice as quick as any()
        if name in _PROXIES:
            return False
    return True


class QuickProxyHeaders(ProxyHeadersMiddleware):
    """`ProxyHeadersMiddleware` that stands aside where there are none."""

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if "headers" in scope and not direct(scope):
            return super().__call__(scope, receive, send)
        return self.app(scope, receive, send)
