"""Learners: where a reply tells the ID that the client will send from now on. Each is written as one word.

================================  ======================================================================================
``header:NAME``                   a reply header
``cookie:NAME``                   a cookie that is set
``starlette-cookie:NAME/FIELD``   the ID inside Starlette's signed session cookie
``json:a.b``                      a field of the JSON reply, of an early server-sent event or WebSocket message
``location:CARRIER``              what the carrier (``path:`` or ``query:``) finds in the ``Location`` URL
``sse:CARRIER``                   the same in the URL that the first server-sent event with data is
``engineio:``                     Engine.IO's handshake and Socket.IO's connects, polled or by WebSocket
``html:REGEX``                    group 1 of a regular expression in the first 64 KiB of a page
``WORD@/path,/path``              the same, only in replies to requests to these paths
================================  ======================================================================================
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from typing import Protocol
from urllib.parse import unquote, urlsplit

from sessionworkers.affinity.carriers import Carrier, Header, Json, StarletteCookie, parse_carrier, plain
from sessionworkers.affinity.carriers import Cookie as CookieCarrier
from sessionworkers.affinity.carriers import Path as PathCarrier
from sessionworkers.affinity.carriers import Query as QueryCarrier
from sessionworkers.affinity.documents import FieldReader, as_id
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.scanners import EventScanner, PatternScanner, Scanner, json_scanner, unpacked
from sessionworkers.affinity.signed import SignedCookie, pick
from sessionworkers.affinity.views import ReplyView, RequestView

EARLY_EVENTS = 3
"""Server-sent events that may name the ID: LangGraph and agent back ends name it in the first."""
EARLY_MESSAGES = 5
"""WebSocket messages of the app that may name one: after an upgrade Socket.IO's connect is the third."""


class Place(enum.Enum):
    """Where in the reply it looks."""

    HEAD = "head"
    BODY = "body"
    MESSAGE = "message"


class Learner(Protocol):
    @property
    def word(self) -> str:
        """How it is written."""

    @property
    def place(self) -> Place:
        """Where it looks first; a BODY learner may look at WebSocket messages as well."""

    @property
    def hold(self) -> bool:
        """True if the reply's head should wait for the first piece of the body."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of body that it reads (see `sessionworkers.affinity.views.kind_of`)."""

    def applies(self, request: RequestView) -> bool:
        """False if no reply to this request can name an ID here."""

    def from_head(self, reply: ReplyView) -> Iterable[str]:
        """IDs in the head of a reply."""

    def scanner(self, reply: ReplyView) -> Scanner | None:
        """What reads the body of this reply, or None if the ID cannot be in it."""

    def from_message(self, index: int, data: str | bytes) -> Iterable[str]:
        """IDs in the app's WebSocket message number ``index`` (from 0)."""


class Base:
    """Learns nothing."""

    place = Place.HEAD
    hold = False
    kinds: frozenset[str] = frozenset()

    def applies(self, request: RequestView) -> bool:
        return True

    def from_head(self, reply: ReplyView) -> Iterable[str]:
        return ()

    def scanner(self, reply: ReplyView) -> Scanner | None:
        return None

    def from_message(self, index: int, data: str | bytes) -> Iterable[str]:
        return ()


class FromHeader(Base):
    def __init__(self, name: str) -> None:
        self.word = f"header:{name.lower()}"
        self.name = name.lower().encode()

    def from_head(self, reply: ReplyView) -> Iterable[str]:
        value = reply.header(self.name)
        return () if value is None else (value,)


class FromCookie(Base):
    def __init__(self, name: str) -> None:
        self.word = f"cookie:{name}"
        self.name = name

    def from_head(self, reply: ReplyView) -> Iterable[str]:
        return [value for name, value in reply.set_cookies if name == self.name]


class FromStarletteCookie(Base):
    """Nothing is verified: the cookie comes from the app itself."""

    def __init__(self, name: str, field: str = "*") -> None:
        self.word = f"starlette-cookie:{name}" + ("" if field == "*" else f"/{field}")
        self.name = name
        self.field = field
        self._signed = SignedCookie()

    def from_head(self, reply: ReplyView) -> Iterable[str]:
        found = []
        for name, value in reply.set_cookies:
            if name == self.name:
                document, _ = self._signed.open(value)
                if isinstance(document, dict) and (id := pick(document, self.field)) is not None:
                    found.append(id)
        return found


class FromLocation(Base):
    def __init__(self, carrier: Carrier) -> None:
        self.word = f"location:{carrier.word}"
        self.carrier = carrier

    def from_head(self, reply: ReplyView) -> Iterable[str]:
        value = reply.header(b"location")
        return () if value is None else _in_url(self.carrier, value)


class FromJson(Base):
    place = Place.BODY
    hold = True
    kinds = frozenset({"json", "events"})

    def __init__(self, field: str) -> None:
        self.word = f"json:{field}"
        self._reader = FieldReader(field)

    def _extract(self, data: bytes) -> Iterable[str]:
        id = as_id(self._reader.read(data))
        return () if id is None else (id,)

    def scanner(self, reply: ReplyView) -> Scanner | None:
        if reply.kind == "json":
            return json_scanner(reply, self._extract)
        if reply.kind == "events":
            return unpacked(EventScanner(self._extract, EARLY_EVENTS), reply)
        return None

    def from_message(self, index: int, data: str | bytes) -> Iterable[str]:
        return self._extract(data.encode() if isinstance(data, str) else data)


class FromEventUrl(Base):
    place = Place.BODY
    kinds = frozenset({"events"})

    def __init__(self, carrier: Carrier) -> None:
        self.word = f"sse:{carrier.word}"
        self.carrier = carrier

    def applies(self, request: RequestView) -> bool:
        return request.method == "GET"  # as every EventSource asks

    def scanner(self, reply: ReplyView) -> Scanner | None:
        if reply.kind != "events":
            return None
        return unpacked(EventScanner(lambda data: _in_url(self.carrier, data.decode("latin-1")), 1), reply)


class FromHtml(Base):
    place = Place.BODY
    hold = True
    kinds = frozenset({"html"})

    def __init__(self, pattern: str, header: tuple[bytes, str] | None = None) -> None:
        """``header``: name and value that the reply must have."""
        self.word = f"html:{pattern}"
        self._pattern = re.compile(pattern.encode())
        if self._pattern.groups < 1:
            raise ValueError(f"html:{pattern}: group 1 of the pattern must be the ID")
        self._header = header

    def scanner(self, reply: ReplyView) -> Scanner | None:
        if self._header is not None and reply.header(self._header[0]) != self._header[1]:
            return None
        if reply.kind != "html":
            return None
        return unpacked(PatternScanner(self._pattern), reply)


class FromEngineIO(Base):
    """``0{"sid":...}`` opens an Engine.IO session; ``40{"sid":...}`` and ``40/ns,{"sid":...}`` connect Socket.IO, with
    a sid of its own per namespace. A poll may hold several packets, separated by 0x1e (protocol 4) or each after
    its length and a colon (protocol 3)."""

    place = Place.BODY
    hold = True
    kinds = frozenset({"text"})
    word = "engineio:"
    _packet = re.compile(rb'(?:^|[\x1e:])(?:0|40(?:/[^,"]{0,256},)?)\{"sid":"([^"\\]{1,512})"')
    _LIMIT = 16 * 1024

    def scanner(self, reply: ReplyView) -> Scanner | None:
        if reply.kind != "text":
            return None
        return json_scanner(reply, self._extract, self._LIMIT, early=False)

    def _extract(self, data: bytes) -> Iterable[str]:
        if b'"sid"' not in data:
            return ()
        return [match.decode("latin-1") for match in self._packet.findall(data)]

    def from_message(self, index: int, data: str | bytes) -> Iterable[str]:
        return self._extract(data.encode()) if isinstance(data, str) and len(data) < self._LIMIT else ()


class OnlyTo:
    """``learner``, but only in replies to requests to one of ``paths``."""

    def __init__(self, learner: Learner, paths: Sequence[PathTemplate]) -> None:
        self.word = f"{learner.word}@{','.join(path.text for path in paths)}"
        self.learner = learner
        self.paths = tuple(paths)
        self.place = learner.place
        self.hold = learner.hold
        self.kinds = learner.kinds
        self.from_head = learner.from_head
        self.scanner = learner.scanner
        self.from_message = learner.from_message

    def applies(self, request: RequestView) -> bool:
        return any(path.match(request) is not None for path in self.paths) and self.learner.applies(request)


def _in_url(carrier: Carrier, url: str) -> Iterable[str]:
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return ()
    found = carrier.read(RequestView("GET", unquote(parts.path), parts.query.encode()))
    return () if found is None else (found.value,)


def derived(carriers: Sequence[Carrier]) -> tuple[Learner, ...]:
    """What the replies tell by default when requests carry the ID so: the same header, the same cookie, the same
    field of JSON. A path or a query value is told by ``Location`` only."""
    learners: list[Learner] = []
    for carrier in carriers:
        carrier = plain(carrier)
        if isinstance(carrier, Header) and carrier.name != "authorization":
            learners.append(FromHeader(carrier.name))
        elif isinstance(carrier, CookieCarrier):
            learners.append(FromCookie(carrier.name))
        elif isinstance(carrier, StarletteCookie):
            learners.append(FromStarletteCookie(carrier.name, carrier.field))
        elif isinstance(carrier, Json):
            learners.append(FromJson(carrier.field))
        elif isinstance(carrier, (PathCarrier, QueryCarrier)):
            learners.append(FromLocation(carrier))
    return tuple(learners)


def parse_learner(word: str) -> Learner:
    """The learner that ``word`` names. ValueError for anything else."""
    inner, found, paths = word.partition("@/")
    if found:
        return OnlyTo(parse_learner(inner), [PathTemplate(path) for path in ("/" + paths).split(",")])
    kind, _, rest = word.partition(":")
    if kind == "engineio" and not rest:
        return FromEngineIO()
    if rest:
        if kind == "location":
            return FromLocation(parse_carrier(rest))
        if kind == "sse":
            return FromEventUrl(parse_carrier(rest))
        if kind == "html":
            try:
                return FromHtml(rest)
            except re.error as error:
                raise ValueError(f"{word!r} is no regular expression: {error}") from None
        if kind in ("header", "cookie", "starlette-cookie", "json"):
            return derived([parse_carrier(word)])[0]
    raise ValueError(
        f"{word!r} is no place in a reply: write header:NAME, cookie:NAME, starlette-cookie:NAME/FIELD, json:a.b, "
        "location:CARRIER, sse:CARRIER, engineio: or html:REGEX"
    )
