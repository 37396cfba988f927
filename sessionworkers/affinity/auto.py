"""Finding sessions without a rule: a long random-looking value that a reply hands out under a session-like name is
learned, and recognised when it comes back.

Workers share no values, only a few names: the *shapes* of what was learned (``+32:hex32``), names of places that turned
out to hand out no sessions (``!json:user_id``) and such values (``x`` and a claim key). A request part of a learned
shape is a *candidate*: it is an ID if it is claimed, which the caller looks up. With nothing learned, no part of a
request is looked at but its session-like names.

A session-like name in a request (query, header, JSON) may bring an ID that the client minted: `sight` claims it on
sight, and the claim is dropped when the reply is no success. Never in JSON-RPC, whose errors come as 200.

Everything here is *inferred*: it routes while the owner lives and never refuses.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

from sessionworkers.affinity import inference
from sessionworkers.affinity.carriers import Carrier, Hint, ReadID, announced, may_have_json
from sessionworkers.affinity.found import NEED_BODY, Found, Learned, Named, NeedBody
from sessionworkers.affinity.ids import claim_key, looks_random, shape, valid_id
from sessionworkers.affinity.rules import FailedStart, Mint, Rule
from sessionworkers.affinity.scanners import EventScanner, Scanner, json_scanner, unpacked
from sessionworkers.affinity.views import ReplyView, RequestView

MAX_REPLY = 16 * 1024
"""Bytes of a JSON reply that are looked at."""
MAX_REQUEST = 64 * 1024
"""Bytes of a JSON request that are read for it."""
MAX_CANDIDATES = 8
MAX_SHAPES = 64
_REMEMBERED = 1024


class SharedNames(Protocol):
    """A small set of names that all workers of a server share."""

    @property
    def revision(self) -> int:
        """Changes when a name was added; costs next to nothing to read."""

    def names(self) -> frozenset[str]:
        """All names."""

    def add(self, name: str) -> None:
        """Add one; idempotent; does nothing when the set is full."""


class LocalNames:
    """`SharedNames` of a server with a single worker."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()

    @property
    def revision(self) -> int:
        return len(self._names)

    def names(self) -> frozenset[str]:
        return self._names

    def add(self, name: str) -> None:
        if len(self._names) < 256:
            self._names |= {name}


class _Anywhere:
    """Stands for the places that `auto` looks at in the carriers of its rules; it reads nothing by itself."""

    limit = 512
    hints: tuple[Hint, ...] = ()

    def __init__(self, word: str, needs_body: bool = False) -> None:
        self.word = word
        self.needs_body = needs_body

    def applies(self, request: RequestView) -> bool:
        return False

    def read(self, request: RequestView) -> ReadID | None:
        return None


PLACES: tuple[Carrier, ...] = (
    _Anywhere("header:*"),
    _Anywhere("path:*"),
    _Anywhere("query:*"),
    _Anywhere("json:*", needs_body=True),
    _Anywhere("cookie:*"),
)
_PRINTABLE = re.compile(r"[A-Za-z0-9_\-.:/{}*]{1,200}")
"""Names come from clients and go to the log: nothing but these characters does."""
_HEADER, _PATH, _QUERY, _JSON, _COOKIE = range(5)


class Auto:
    """One per worker. ``idle`` and ``return_window`` in seconds."""

    def __init__(
        self,
        names: SharedNames | None = None,
        *,
        idle: float = 86_400.0,
        return_window: float = 300.0,
        read_bodies: bool = True,
    ) -> None:
        self.board: SharedNames = LocalNames() if names is None else names
        self.rule = Rule(
            "auto", PLACES, space="auto", idle=idle, return_window=return_window, inferred=True, tentative=True
        )
        self.sight = Rule(
            "auto-sight", PLACES, space="auto", idle=idle, return_window=return_window, inferred=True,
            mint=Mint.CLIENT, failed_start=FailedStart.RELEASE,
        )  # fmt: skip
        self._read_bodies = read_bodies
        self._revision = -1
        self._shapes: frozenset[str] = frozenset()
        self._sizes: frozenset[int] = frozenset()
        self._blocked: frozenset[str] = frozenset()
        self._sources: OrderedDict[str, str] = OrderedDict()
        self._told: set[tuple[str, str]] = set()
        self._callback: Callable[[str], object] | None = None

    def on_inferred(self, callback: Callable[[str], object]) -> None:
        """``callback`` gets a sentence, once per inferred rule, that says how to write it down as a real one."""
        self._callback = callback

    def _refresh(self) -> None:
        self._revision = self.board.revision
        names = self.board.names()
        self._shapes = frozenset(name[1:] for name in names if name.startswith("+"))
        self._sizes = frozenset(int(name.partition(":")[0]) for name in self._shapes)
        self._blocked = frozenset(name for name in names if name[:1] in ("!", "x"))

    # requests

    def find(self, request: RequestView, session_header: bool) -> Found | NeedBody | None:
        """Candidates and what is claimed on sight. ``session_header``: some header has a session-like name."""
        if self.board.revision != self._revision:
            self._refresh()
        heads = inference.session_headers(request) if session_header else ()
        sight = inference.sight_in_head(request, heads) if session_header or request.query else None
        body = False
        if self._read_bodies and (self._shapes or sight is None) and self._has_small_json(request):
            if request.body is None:
                return NEED_BODY
            body = bool(request.body) and len(request.body) <= MAX_REQUEST
        found: Found | None = None
        place = _QUERY
        if sight is not None and sight[1].startswith("header:"):
            place = _HEADER
        if sight is None and body:
            sight, place = inference.sight_in_json(request), _JSON
        if sight is not None:
            key = claim_key("auto", sight[0])
            if "x" + key not in self._blocked and "!" + sight[1] not in self._blocked:
                found = Found(self.sight, Named(sight[0], key, place))
        if not self._shapes:
            return found
        candidates = self._candidates(request, heads, body)
        if not candidates:
            return found
        if found is None:
            return Found(self.rule, candidates[0], candidates=tuple(candidates))
        # What came on sight may be claimed as well, and is narrower than a cookie; if not, it joins whatever is.
        named = found.primary
        if all(each.key != named.key for each in candidates):
            candidates = sorted([*candidates, named], key=lambda each: each.carrier)
        return Found(
            self.rule, candidates[0], joins=((self.sight, named),), candidates=tuple(candidates), otherwise=found
        )

    def _has_small_json(self, request: RequestView) -> bool:
        if request.kind != "http" or request.method in ("GET", "HEAD", "OPTIONS"):
            return False
        if request.content_type == "" or not may_have_json(request):
            return False
        return 0 < announced(request) <= MAX_REQUEST

    def _candidates(self, request: RequestView, heads: Iterable[tuple[str, str]], body: bool) -> list[Named]:
        named: dict[str, Named] = {}
        for place, word, value in inference.parts(request, heads, body, self._sizes):
            if f"{len(value)}:{shape(value)}" in self._shapes and valid_id(value):
                key = claim_key("auto", value)
                if key not in named and "x" + key not in self._blocked:
                    named[key] = Named(value, key, place)
                    self._tell(key, word)
                    if len(named) == MAX_CANDIDATES:
                        break
        return list(named.values())

    def _tell(self, key: str, word: str) -> None:
        source = self._sources.get(key)
        if source is None or self._callback is None or len(self._told) >= 64 or (source, word) in self._told:
            return
        self._told.add((source, word))
        if _PRINTABLE.fullmatch(word) is None or _PRINTABLE.fullmatch(source) is None:
            return
        words = word if source == word or source.startswith(("location", "url")) else f"{word} {source}"
        self._callback(
            f"session IDs inferred: handed out as {source}, sent back as {word}; requests follow them while their "
            f'worker lives. As a rule of its own (gone sessions then get 410): --session-id "{words}"'
        )

    def names(self, request: RequestView, value: str) -> bool:
        """True if the request itself holds ``value`` anywhere that a reply might echo."""
        if value in request.path or any(value == v for v in request.params.values()):
            return True
        if request.body and len(request.body) <= MAX_REQUEST and value.encode() in request.body:
            return True
        raw = value.encode()
        return any(raw in line for _, line in request.headers)

    # replies

    def from_head(self, request: RequestView, reply: ReplyView) -> Iterable[tuple[str, str]]:
        """Values and where they stood."""
        return inference.from_head(request, reply)

    def scanner(self, request: RequestView, reply: ReplyView) -> Scanner | None:
        """Reads a short JSON reply or the first server-sent event; gives ``value NUL source``."""

        def extract(data: bytes) -> Iterable[str]:
            return [f"{value}\0{source}" for value, source in inference.from_json(request, data)]

        def event(data: bytes) -> Iterable[str]:
            return [f"{value}\0{source}" for value, source in inference.from_event(request, data)]

        if reply.kind == "json":
            return json_scanner(reply, extract, MAX_REPLY)
        if reply.kind == "events":
            return unpacked(EventScanner(event, 1, MAX_REPLY), reply)
        return None

    def from_message(self, request: RequestView, data: str | bytes) -> Iterable[tuple[str, str]]:
        """The same in a WebSocket message of the app."""
        if len(data) > MAX_REPLY:
            return ()
        return inference.from_json(request, data.encode() if isinstance(data, str) else data)

    def refuses(self, value: str, key: str, source: str) -> bool:
        """True for a value that is no session, or from a place that hands out none."""
        if self.board.revision != self._revision:
            self._refresh()
        return "!" + source in self._blocked or "x" + key in self._blocked

    def learned(self, value: str, key: str, source: str) -> None:
        """Share the shape of ``value`` and remember where it came from."""
        self._share(value)
        self._sources[key] = source
        if len(self._sources) > _REMEMBERED:
            self._sources.popitem(last=False)

    def used(self, request: RequestView, found: Found) -> None:
        """The app took an ID that came on sight: it may come back elsewhere."""
        if found.rule is not self.sight:
            return
        if looks_random(found.primary.value):
            self._share(found.primary.value)
        place = found.primary.carrier
        if self._callback is None or ("sight", str(place)) in self._told:
            return
        self._told.add(("sight", str(place)))
        sight = (
            inference.sight_in_json(request)
            if place == _JSON
            else inference.sight_in_head(request, inference.session_headers(request))
        )
        if sight is not None and _PRINTABLE.fullmatch(sight[1]) is not None:
            self._callback(
                f"session IDs inferred: clients bring them as {sight[1]}; requests follow them while their worker "
                f'lives. As a rule of its own (gone sessions then get 410): --session-id "{sight[1]} mint=client"'
            )

    def announce(self, id: str) -> Rule:
        """The app itself says that ``id`` names a session: learn its shape, random or not. The rule to claim by."""
        self._share(id)
        return self.rule

    def _share(self, value: str) -> None:
        name = f"{len(value)}:{shape(value)}"
        if name not in self._shapes and len(self._shapes) < MAX_SHAPES:
            self._add("+" + name)

    def report_conflict(self, learned: Learned) -> None:
        """Two workers handed out one value in replies to requests that did not name it: it is no session. Forget it and
        learn no more from that place."""
        if learned.rule is not self.rule:
            return
        self._add("x" + learned.key)
        if learned.source:
            self._add("!" + learned.source)

    def _add(self, name: str) -> None:
        try:
            self.board.add(name)
        except OSError:
            return  # nothing is shared: the other workers serve such requests as without an ID
        self._refresh()
