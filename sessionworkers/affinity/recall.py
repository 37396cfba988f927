"""What was found in a request is found again in the next one like it, without looking.

The clients of a session send the same cookie or header on every request, to few paths. What `RuleSet.find` makes of a
request depends on its method, path, query, the header lines that rules or `auto` read, and on what announces its body;
those together are a key, and what was found under it stands until it is displaced. Only answers that depend on nothing
else are kept: no body was needed, no clock (a signed cookie runs out), no other session named.

Where a session's ID stands in a header the rest of its GETs differ in nothing that matters, though each may have a path
and query of its own: then the header lines alone are the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from sessionworkers.affinity.found import Found
from sessionworkers.affinity.ruleset import RuleSet
from sessionworkers.affinity.views import RequestView

MOST: Final = 8_192
"""Answers kept. When they are as many all are forgotten: some 5 MB at the most."""
MOST_BYTES: Final = 2_048
"""Longer keys are not kept."""
UNKNOWN: Final[Any] = object()
"""Nothing is known about such a request."""

Key = tuple[Any, ...]


class Kept(Protocol):
    """A request that may come again, kept by whoever knows it by its bytes. ``key``: as `Recall.key` gives it, None
    where nothing is recalled; the other two are `Recall.again`'s own, at first `UNKNOWN` and 0."""

    key: Key | None
    found: Any
    revision: int


_ALWAYS: Final = (b"cookie", b"content-type", b"content-length", b"transfer-encoding")


class Recall:
    """The memory of one `RuleSet`."""

    __slots__ = ("_auto", "_by_headers", "_known", "_names", "_only_headers", "_revision", "_rules")

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._auto = rules.auto
        self._revision = -1
        self._known: dict[Key, Found | None] = {}
        self._by_headers: dict[Key, Found] = {}
        self._only_headers = rules.interest.only_headers
        self._names = rules.interest.names()
        for name in _ALWAYS:
            self._names[name] |= 1

    def key(self, scope: Mapping[str, Any]) -> Key:
        """What finding a session in an HTTP request depends on."""
        names = self._names
        return (
            scope["method"],
            scope["path"],
            scope["query_string"],
            *[pair for pair in scope["headers"] if names[pair[0]]],
        )

    def find(self, scope: Mapping[str, Any]) -> tuple[Key, Any]:
        """The key of an HTTP request, and what is found in it: a `Found`, None or `UNKNOWN`."""
        key = self.key(scope)
        return key, self._find(key)

    def _find(self, key: Key) -> Any:
        found = self._known.get(key, UNKNOWN)
        if found is UNKNOWN:
            if key[0] == "GET" and self._by_headers:
                by_headers = self._by_headers.get(key[3:])
                if by_headers is not None and self._only_headers(key[1], key[2]):
                    return by_headers
            return UNKNOWN
        auto = self._auto
        if found is None and auto is not None and auto.board.revision != self._revision:
            return UNKNOWN
        return found

    def again(self, kept: Kept) -> Any:
        """What is found in ``kept``, as `find` says; without a search if it was found before."""
        found = kept.found
        if found is UNKNOWN or found is None or kept.revision != self._revision:
            if kept.key is None:
                return UNKNOWN
            found = kept.found = self._find(kept.key)
            kept.revision = self._revision
        return found

    def note(self, key: Key, request: RequestView, found: Found | None) -> bool:
        """Keep that ``found`` is in ``request``, whose body was not read; False if it may be another the next time."""
        if found is not None:
            if not plain(found) or getattr(found.rule.carriers[found.primary.carrier], "secrets", None):
                return False
        elif self._rules.start_without_id(request) is not None:
            return False
        if sum(len(part) if isinstance(part, (str, bytes)) else len(part[1]) for part in key) > MOST_BYTES:
            return False
        auto = self._auto
        if auto is not None and auto.board.revision != self._revision:
            self._known.clear()
            self._revision = auto.board.revision
        if len(self._known) >= MOST:
            self._known.clear()
        if found is not None:
            found.recalled = True
            if found.rule.name in self._rules.by_headers and key[0] == "GET" and self._only_headers(key[1], key[2]):
                if len(self._by_headers) >= MOST:
                    self._by_headers.clear()
                self._by_headers[key[3:]] = found
                return True
        self._known[key] = found
        return True


def plain(found: Found) -> bool:
    """True if ``found`` says no more than: this session, for sure, in the middle of its life."""
    rule = found.rule
    return found.primary.verified and not (
        found.also
        or found.start
        or found.end
        or found.joins
        or found.candidates
        or found.otherwise is not None
        or rule.inferred
        or rule.tentative
    )
