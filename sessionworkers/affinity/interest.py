"""What costs next to nothing to see: which rules a request may concern, what a reply's headers may tell.

A rule set leaves one bit per rule, in the rules' order; only the rules whose bit is set are asked at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sessionworkers.affinity.carriers import may_have_json
from sessionworkers.affinity.learners import FromCookie, FromHeader, FromLocation, FromStarletteCookie, Learner
from sessionworkers.affinity.names import is_session_header
from sessionworkers.affinity.rules import Rule
from sessionworkers.affinity.views import ReplyView, RequestView, kind_of

HEAD = 1
BODY = 2
PACKED = 4
_MOST_NAMES = 4096


class HeaderBits(dict[bytes, int]):
    """Header name → bits of what it concerns. Names that were not named are judged once and remembered."""

    def __init__(self, prefixes: Sequence[tuple[bytes, int]], session_bit: int) -> None:
        self.prefixes = prefixes
        self.session_bit = session_bit

    def __missing__(self, name: bytes) -> int:
        lower = name.lower()
        if lower != name:  # apps may write the names of reply headers in any case
            bits = self[lower]
            if len(self) < _MOST_NAMES:
                self[name] = bits
            return bits
        bits = self.session_bit if is_session_header(name) else 0
        for prefix, bit in self.prefixes:
            if name.startswith(prefix):
                bits |= bit
        if len(self) < _MOST_NAMES:
            self[name] = bits
        return bits


class RequestInterest:
    """Bit ``1 << n`` stands for rule ``n``; ``session`` for a session-like header, if ``auto`` wants to know."""

    __slots__ = (
        "_bodies",
        "_body_paths",
        "_headers",
        "_lookout",
        "_paths",
        "_queries",
        "_query_bits",
        "rules",
        "session",
    )

    def __init__(self, rules: Sequence[Rule], auto: bool) -> None:
        self.rules = (1 << len(rules)) - 1
        self.session = 1 << len(rules) if auto else 0
        headers: dict[bytes, int] = {}
        prefixes: dict[bytes, int] = {}
        queries: dict[bytes, int] = {}
        paths: dict[str, int] = {}
        body_paths: dict[str, int] = {}
        self._bodies = 0
        for number, rule in enumerate(rules):
            bit = 1 << number
            if rule.ends_unless_header is not None:
                headers[rule.ends_unless_header] = headers.get(rule.ends_unless_header, 0) | bit
            for carrier in rule.carriers:
                for hint in carrier.hints:
                    if hint.kind == "header":
                        headers[hint.header] = headers.get(hint.header, 0) | bit
                    elif hint.kind == "prefix":
                        prefixes[hint.header] = prefixes.get(hint.header, 0) | bit
                    elif hint.kind == "query":
                        queries[hint.text.encode()] = queries.get(hint.text.encode(), 0) | bit
                    elif hint.kind == "path" and carrier.needs_body:
                        body_paths[hint.text] = body_paths.get(hint.text, 0) | bit
                    elif hint.kind == "path":
                        paths[hint.text] = paths.get(hint.text, 0) | bit
                    else:
                        self._bodies |= bit
        self._headers = HeaderBits(tuple(prefixes.items()), self.session)
        for name, bits in headers.items():
            self._headers[name] |= bits
        self._queries = tuple(queries.items())
        self._query_bits = 0
        for bits in queries.values():
            self._query_bits |= bits
        self._paths = tuple(paths.items())
        self._body_paths = tuple(body_paths.items())
        self._lookout = re.compile(b"|".join(map(re.escape, (*queries, b"%")))).search

    def names(self) -> HeaderBits:
        """A copy of the header names that matter."""
        copy = HeaderBits(self._headers.prefixes, self._headers.session_bit)
        copy.update(self._headers)
        return copy

    def only_headers(self, path: str, query: bytes) -> bool:
        """True if nothing in the path or query of a request without body concerns any rule."""
        if query and self._lookout(query) is not None:
            return False
        for needle, _ in self._paths:  # noqa: SIM110 - twice as quick as all()
            if needle in path:
                return False
        return True

    def look(self, request: RequestView) -> int:
        """The bits of ``request``. Never misses a rule that applies."""
        mask = 0
        bits = self._headers
        for name, _ in request.headers:
            mask |= bits[name]
        query = request.query
        if query:
            for text, bit in self._queries:
                if text in query:
                    mask |= bit
            if b"%" in query:
                mask |= self._query_bits  # a name may be spelled with escapes
        path = request.path
        for needle, bit in self._paths:
            if needle in path:
                mask |= bit
        if request.method != "GET" and (self._bodies or self._body_paths) and may_have_json(request):
            mask |= self._bodies
            for needle, bit in self._body_paths:
                if needle in path:
                    mask |= bit
        return mask


class ReplyInterest:
    """Which reply headers may tell an ID."""

    __slots__ = ("_names",)

    def __init__(self, learners: Sequence[Learner], auto: bool) -> None:
        self._names = HeaderBits((), HEAD if auto else 0)
        self._names[b"content-type"] = BODY
        self._names[b"content-encoding"] = PACKED
        for learner in learners:
            inner = getattr(learner, "learner", learner)
            if isinstance(inner, FromHeader):
                self._names[inner.name] |= HEAD
            elif isinstance(inner, (FromCookie, FromStarletteCookie)):
                self._names[b"set-cookie"] |= HEAD
            elif isinstance(inner, FromLocation):
                self._names[b"location"] |= HEAD
        if auto:
            self._names[b"set-cookie"] |= HEAD
            self._names[b"location"] |= HEAD

    def look(self, reply: ReplyView) -> tuple[bool, str]:
        """Whether a header may tell an ID, and the kind of the body; "" for one without a type."""
        return self.glance(reply.headers)

    def glance(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[bool, str]:
        """The same for headers as an app sends them. A packed body counts as a header: it must be unpacked to see."""
        bits = 0
        kind = ""
        names = self._names
        for name, value in headers:
            bit = names[name]
            if bit:
                bits |= bit
                if bit & BODY:
                    kind = kind_of(value)
        if bits & PACKED and kind in ("json", "events"):
            return True, kind
        return bits & HEAD != 0, kind
