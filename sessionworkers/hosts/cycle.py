"""uvicorn's request cycle with a quicker `send` for the replies that most apps make; the bytes are the same.

uvicorn looks at every header of every reply with two regular expressions. Most of them were on the reply before, so
here what came of each is remembered. Whatever is out of the ordinary, every error included, is uvicorn's own `send`'s
to do: nothing has changed when it gets the message. Used only where uvicorn's code is what was read for this.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from httptools import parse_url
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

KNOWN: Final[dict[Callable[..., Any], str]] = {
    RequestResponseCycle.send: "abdd8601",
    HttpToolsProtocol.on_headers_complete: "1ea8589a",
    HttpToolsProtocol.on_message_begin: "96d377fd",
    HttpToolsProtocol.on_message_complete: "1fbad42d",
    HttpToolsProtocol.on_body: "dba9c32a",
    HttpToolsProtocol.data_received: "010a7ae5",
}
"""What stands here in other words, with the beginnings of the SHA-256 of its source (uvicorn 0.53, 0.54)."""

_MOST_LINES: Final = 4_096
_LONGEST: Final = 256  # bytes; a longer value is not remembered

_lines: dict[tuple[bytes, bytes], bytes] = {}
"""Header as an app gives it → its line. None that has a meaning for the connection or the body is among them."""
_LENGTH: Final = b"content-length"
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
        if len(_lines) >= _MOST_LINES:
            _lines.clear()
        _lines[name, value] = line
    return line


class QuickCycle(RequestResponseCycle):
    """`RequestResponseCycle`, quicker."""

    async def send(self, message: Any) -> None:
        if self.flow.write_paused or self.disconnected:
            return await super().send(message)
        if not self.response_started:
            head = self._head(message)
            if head is None:
                return await super().send(message)
            self.response_started = True
            self.waiting_for_100_continue = False
            if self.access_log:
                scope = self.scope
                self.access_logger.info(
                    '%s - "%s %s HTTP/%s" %d',
                    get_client_addr(scope),
                    scope["method"],
                    get_path_with_query_string(scope),
                    scope["http_version"],
                    message["status"],
                )
            self.transport.write(head)
            return None
        chunked = self.chunked_encoding
        if self.response_complete or chunked is None or message["type"] != "http.response.body":
            return await super().send(message)
        body = message.get("body", b"")
        if body is None or self.scope["method"] == "HEAD":
            return await super().send(message)
        size = len(body)
        more = message.get("more_body", False)
        expected = self.expected_content_length
        if chunked:
            if expected:
                return await super().send(message)
            data = b"%x\r\n%b\r\n" % (size, body) if size else b""
            self.transport.write(data if more else data + b"0\r\n\r\n")
        else:
            if size > expected if more else size != expected:
                return await super().send(message)
            self.transport.write(body)
            self.expected_content_length = expected - size
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
        return None

    def _head(self, message: Any) -> bytes | None:
        """The reply's head, whose body has a length; None, and nothing has changed: uvicorn is to do it."""
        headers = message.get("headers", ())
        if message["type"] != "http.response.start" or not isinstance(headers, (list, tuple)):
            return None  # what can be gone through once only, too
        length = -1
        lines = _lines
        try:
            content = [STATUS_LINE[message["status"]]]
            for pair in self.default_headers:
                line = lines.get(pair) or _line(*pair)
                if line is None:
                    return None
                content.append(line)
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
        if length < 0:
            return None
        content.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self.expected_content_length = length
        self.chunked_encoding = False
        return b"".join(content)


class QuickHttpToolsProtocol(HttpToolsProtocol):
    """`HttpToolsProtocol` whose requests run in a `QuickCycle`."""

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
        self.cycle = cycle = QuickCycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
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
    Cycle = QuickCycle if KNOWN_HERE else RequestResponseCycle
    Base = QuickHttpToolsProtocol if KNOWN_HERE else HttpToolsProtocol


class QuickProxyHeaders(ProxyHeadersMiddleware):
    """`ProxyHeadersMiddleware` that stands aside where there are none."""

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        for name, _ in scope.get("headers", ()):
            if name == b"x-forwarded-for" or name == b"x-forwarded-proto":
                return super().__call__(scope, receive, send)
        return self.app(scope, receive, send)
