"""MCP 2026-07-28 has no session header: an app hands out *handles* in tool results, and clients send them back as tool
arguments, in ``Mcp-Param-*`` headers, or as ``requestState``.

A handle must look random, since ``{"item": "1", "session_id": ...}`` would route by ``"1"``, and counts only if it is
claimed. ``requestState`` is opaque, grows with the state, and names the worker that can decrypt it: it is never capped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sessionworkers.affinity.carriers import Hint, ReadID, Simple, may_have_json
from sessionworkers.affinity.documents import decode
from sessionworkers.affinity.ids import looks_random, valid_id
from sessionworkers.affinity.learners import Base, Place
from sessionworkers.affinity.scanners import EventScanner, Scanner, json_scanner, unpacked
from sessionworkers.affinity.views import ReplyView, RequestView

METHOD = b"mcp-method"
"""Every request of that protocol has this header."""
PARAM = b"mcp-param-"
MAX_STATE = 1024 * 1024
MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request that is parsed whole for its handles; some 20 ms of work."""
MOST_HANDLES = 8
_EVENTS = 64


def _random_values(value: object, depth: int = 3) -> Iterable[str]:
    if isinstance(value, str):
        if looks_random(value):
            yield value
    elif depth and isinstance(value, dict):
        for each in list(value.values())[:64]:
            yield from _random_values(each, depth - 1)
    elif depth and isinstance(value, list):
        for each in value[:16]:
            yield from _random_values(each, depth - 1)


class Arguments(Simple):
    """Random-looking values of ``params.arguments``, and ``params.requestState``."""

    word = "mcp:arguments"
    needs_body = True
    limit = MAX_STATE

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("header", METHOD),)

    def applies(self, request: RequestView) -> bool:
        return request.method == "POST" and may_have_json(request) and request.header(METHOD) is not None

    def read(self, request: RequestView) -> ReadID | None:
        return next(iter(self.read_all(request)), None)

    def read_all(self, request: RequestView) -> list[ReadID]:
        """Every handle of the request, at most eight; the state first."""
        if not request.body or len(request.body) > MAX_BODY or not self.applies(request):
            return []
        document = request.json
        params = document.get("params") if isinstance(document, dict) else None
        if not isinstance(params, dict):
            return []
        found: list[ReadID] = []
        state = params.get("requestState")
        if isinstance(state, str) and valid_id(state, MAX_STATE):
            found.append(ReadID(state))
        found += [ReadID(value) for value in _random_values(params.get("arguments"))]
        return found[:MOST_HANDLES]


class ParamHeaders(Simple):
    """Random-looking values of ``Mcp-Param-*`` headers, into which clients copy annotated arguments."""

    word = "mcp:param-headers"

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("prefix", PARAM),)

    def read(self, request: RequestView) -> ReadID | None:
        return next(iter(self.read_all(request)), None)

    def read_all(self, request: RequestView) -> list[ReadID]:
        """Every handle in such headers, at most eight."""
        values = [value.decode("latin-1") for name, value in request.headers if name.startswith(PARAM)]
        return [ReadID(value) for value in values if looks_random(value)][:MOST_HANDLES]


class FromResult(Base):
    """Handles in a JSON-RPC result: values of structured content, text that is one token, the request state."""

    place = Place.BODY
    kinds = frozenset({"json", "events"})
    word = "mcp:result"

    def applies(self, request: RequestView) -> bool:
        return request.method == "POST" and request.header(METHOD) is not None

    def scanner(self, reply: ReplyView) -> Scanner | None:
        if reply.kind == "events":
            return unpacked(EventScanner(self._extract, _EVENTS), reply)
        return json_scanner(reply, self._extract) if reply.kind == "json" else None

    def _extract(self, data: bytes) -> Iterable[str]:
        if b'"result"' not in data:
            return ()
        document = decode(data)
        result = document.get("result") if isinstance(document, dict) else None
        if not isinstance(result, dict):
            return ()
        found = list(_random_values(result.get("structuredContent")))
        content = result.get("content")
        for each in content[:16] if isinstance(content, list) else ():
            text = each.get("text") if isinstance(each, dict) else None
            if isinstance(text, str) and looks_random(text.strip()):
                found.append(text.strip())
        state = result.get("requestState")
        if isinstance(state, str) and valid_id(state, MAX_STATE):
            found.append(state)
        return found[:MOST_HANDLES]
