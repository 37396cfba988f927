"""Carriers: where a request holds its session ID. Each is written as one word.

============================  ==========================================================================================
``header:NAME``               a request header
``cookie:NAME``               a cookie whose value is the ID
``starlette-cookie:NAME/F``   field F of Starlette's signed session cookie; ``F|G``: the first there; no field: find it
``query:NAME``                a query value
``path:/a/{id}``              a path segment (see :mod:`sessionworkers.affinity.paths`)
``json:a.b``                  a field of the JSON body
``token:HEADER/F``            field F of a signed token in a header
``engineio:sid``              the query value that names an Engine.IO session
``WORD@/path,/path``          the same, only in requests to these paths
``WORD~REGEX``                the same, only if the whole ID is of that form
============================  ==========================================================================================

A carrier reads a :class:`ReadID` or None, for absent and malformed alike: what is too long or not visible ASCII is no
ID, and neither is a header, query value or JSON key given twice with different values. It never raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sessionworkers.affinity.documents import FieldReader, as_id
from sessionworkers.affinity.ids import MAX_ID, MAX_TOKEN, valid_id
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.signed import COOKIE_MAX_AGE, SignedCookie, SignedToken, pick
from sessionworkers.affinity.views import RequestView

FORMS = (
    "header:NAME, cookie:NAME, starlette-cookie:NAME/FIELD, query:NAME, path:/a/{id}, json:a.b or token:HEADER/FIELD"
)
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_JSON_TYPES = ("", "application/json", "text/plain")


@dataclass(frozen=True, slots=True)
class ReadID:
    """An ID as a request spells it. ``verified`` is False if nobody could check the signature around it."""

    value: str
    verified: bool = True


@dataclass(frozen=True, slots=True)
class Hint:
    """What a request must at least have for a carrier to find something: the rule set looks for these first.

    ``kind`` is ``header`` (a name), ``query`` (text in the raw query), ``path`` (text in the path) or ``body``.
    """

    kind: str
    header: bytes = b""
    text: str = ""


@runtime_checkable
class Carrier(Protocol):
    @property
    def word(self) -> str:
        """How it is written."""

    @property
    def needs_body(self) -> bool:
        """True if it reads nothing until the request's body was read."""

    @property
    def limit(self) -> int:
        """Bytes that what holds its ID may have."""

    @property
    def hints(self) -> Sequence[Hint]:
        """Any of them must be there."""

    def applies(self, request: RequestView) -> bool:
        """False if it cannot find anything in this request, with or without the body."""

    def read(self, request: RequestView) -> ReadID | None:
        """The ID, or None: absent or malformed."""


@dataclass(frozen=True)
class Simple:
    """What most carriers have in common."""

    needs_body = False
    limit = MAX_ID

    def applies(self, request: RequestView) -> bool:
        return True


def _checked(value: str | None, limit: int = MAX_ID) -> ReadID | None:
    return ReadID(value) if value is not None and valid_id(value, limit) else None


def _one_line(request: RequestView, name: bytes) -> str | None:
    """The header's value, or None if it is absent or its lines differ: the app may read the first or join them."""
    first: bytes | None = None
    for key, value in request.headers:
        if key == name:
            if first is not None and first != value:
                return None
            first = value
    return None if first is None else first.decode("latin-1")


@dataclass(frozen=True)
class Header(Simple):
    """``Authorization`` counts without its scheme, as in ``Bearer``."""

    name: str

    @property
    def word(self) -> str:
        return f"header:{self.name}"

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("header", self.name.encode()),)

    def read(self, request: RequestView) -> ReadID | None:
        value = _one_line(request, self.name.encode())
        if value is not None and self.name == "authorization":
            value = value.partition(" ")[2].strip()
        return _checked(value)


@dataclass(frozen=True)
class Cookie(Simple):
    name: str

    @property
    def word(self) -> str:
        return f"cookie:{self.name}"

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("header", b"cookie", self.name),)

    def read(self, request: RequestView) -> ReadID | None:
        return _checked(request.cookies.get(self.name))


class StarletteCookie(Simple):
    """With ``secrets`` only a cookie that one of them signed counts, as in the app; without, it is unverified."""

    limit = MAX_TOKEN

    def __init__(
        self, name: str, field: str = "*", secrets: Sequence[str] = (), max_age: int | None = COOKIE_MAX_AGE
    ) -> None:
        self.name = name
        self.field = field
        self.secrets = tuple(secrets)
        self.signed = SignedCookie(secrets, max_age)

    @property
    def word(self) -> str:
        return f"starlette-cookie:{self.name}" + ("" if self.field == "*" else f"/{self.field}")

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("header", b"cookie", self.name),)

    def with_secrets(self, secrets: Sequence[str], max_age: int | None = COOKIE_MAX_AGE) -> StarletteCookie:
        """The same carrier, verifying."""
        return StarletteCookie(self.name, self.field, secrets, max_age)

    def read(self, request: RequestView) -> ReadID | None:
        value = request.cookies.get(self.name)
        if value is None or not valid_id(value, self.limit):
            return None
        document, verified = self.signed.open(value)
        found = pick(document, self.field) if isinstance(document, dict) else None
        return ReadID(found, verified) if found is not None and valid_id(found) else None


@dataclass(frozen=True)
class Query(Simple):
    name: str

    @property
    def word(self) -> str:
        return f"query:{self.name}"

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("query", text=self.name),)

    def read(self, request: RequestView) -> ReadID | None:
        value = request.params.get(self.name)
        if value is None or not valid_id(value):
            return None
        if request.query.count(b"=") > 1 and len({v for n, v in request.param_list() if n == self.name}) > 1:
            return None
        return ReadID(value)


class EngineIO(Simple):
    """``sid`` in the query of an Engine.IO request, known by its ``EIO`` or by its path."""

    word = "engineio:sid"

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("query", text="sid"),)

    def read(self, request: RequestView) -> ReadID | None:
        if b"EIO=" not in request.query and "/socket.io" not in request.path:
            return None
        return _checked(request.params.get("sid"))


class Path(Simple):
    def __init__(self, template: str | PathTemplate) -> None:
        self.template = PathTemplate(template) if isinstance(template, str) else template
        if not self.template.has_id:
            raise ValueError(f"path:{self.template.text} names no ID: write {{id}} where it stands")

    @property
    def word(self) -> str:
        return f"path:{self.template.text}"

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("path", text=self.template.needle),)

    def read(self, request: RequestView) -> ReadID | None:
        return _checked(self.template.match(request))


class Json(Simple):
    """A field of a JSON body; bodies with another content type than JSON, plain text or none are not looked at."""

    needs_body = True

    def __init__(self, field: str, limit: int = MAX_ID, most: int | None = None) -> None:
        """``most``: bytes of a body that is looked at, by its announced length; None: whatever the server reads."""
        self.field = field
        self.limit = limit
        self.most = most
        self._reader = FieldReader(field)

    @property
    def word(self) -> str:
        return f"json:{self.field}"

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("body"),)

    def applies(self, request: RequestView) -> bool:
        return may_have_json(request) and (self.most is None or 0 < announced(request) <= self.most)

    def read(self, request: RequestView) -> ReadID | None:
        if not request.body or not self.applies(request):
            return None
        return _checked(as_id(self._reader.read(request.body)), self.limit)


class Token(Simple):
    """An itsdangerous ``URLSafeSerializer`` token in a header (``Bearer`` and the like in front are left out)."""

    limit = MAX_TOKEN

    def __init__(self, header: str, field: str, secrets: Sequence[str] = (), salt: str = "itsdangerous") -> None:
        self.header = header.lower()
        self.field = field
        self.salt = salt
        self.secrets = tuple(secrets)
        self.signed = SignedToken(secrets, salt)

    @property
    def word(self) -> str:
        return f"token:{self.header}/{self.field}"

    @property
    def hints(self) -> Sequence[Hint]:
        return (Hint("header", self.header.encode()),)

    def with_secrets(self, secrets: Sequence[str], salt: str | None = None) -> Token:
        """The same carrier, verifying."""
        return Token(self.header, self.field, secrets, self.salt if salt is None else salt)

    def read(self, request: RequestView) -> ReadID | None:
        value = _one_line(request, self.header.encode())
        if value is None:
            return None
        value = value.rpartition(" ")[2]
        if not valid_id(value, self.limit):
            return None
        document, verified = self.signed.open(value)
        found = pick(document, self.field)
        return ReadID(found, verified) if found is not None and valid_id(found) else None


class Only:
    """``carrier``, but only in requests to one of ``paths``."""

    def __init__(self, carrier: Carrier, paths: Sequence[PathTemplate]) -> None:
        self.carrier = carrier
        self.paths = tuple(paths)
        self.needs_body = carrier.needs_body
        self.limit = carrier.limit
        self.secrets: tuple[str, ...] = getattr(carrier, "secrets", ())

    @property
    def word(self) -> str:
        return f"{self.carrier.word}@{','.join(path.text for path in self.paths)}"

    @property
    def hints(self) -> Sequence[Hint]:
        if self.carrier.needs_body and all(path.needle for path in self.paths):
            return [Hint("path", text=path.needle) for path in self.paths]
        return self.carrier.hints

    def applies(self, request: RequestView) -> bool:
        return any(path.match(request) is not None for path in self.paths) and self.carrier.applies(request)

    def read(self, request: RequestView) -> ReadID | None:
        return self.carrier.read(request) if self.applies(request) else None


class Shaped:
    """``carrier``, but only IDs that ``pattern`` matches whole."""

    def __init__(self, carrier: Carrier, pattern: str) -> None:
        self.carrier = carrier
        self.pattern = re.compile(pattern)
        self.needs_body = carrier.needs_body
        self.limit = carrier.limit
        self.hints = carrier.hints
        self.applies = carrier.applies

    @property
    def word(self) -> str:
        return f"{self.carrier.word}~{self.pattern.pattern}"

    def read(self, request: RequestView) -> ReadID | None:
        found = self.carrier.read(request)
        return found if found is not None and self.pattern.fullmatch(found.value) is not None else None


def plain(carrier: Carrier) -> Carrier:
    """The carrier inside whatever restricts it."""
    while isinstance(carrier, (Only, Shaped)):
        carrier = carrier.carrier
    return carrier


def announced(request: RequestView) -> int:
    """``Content-Length``, or 0."""
    text = request.header(b"content-length")
    return int(text) if text is not None and len(text) < 16 and text.isascii() and text.isdigit() else 0


def may_have_json(request: RequestView) -> bool:
    """True if the request has a body, by its head, that a JSON parser may be given."""
    if request.kind != "http" or request.method in ("GET", "HEAD", "OPTIONS"):
        return False
    kind = request.content_type
    return kind in _JSON_TYPES or kind.endswith(("+json", "/json"))


def parse_carrier(word: str) -> Carrier:
    """The carrier that ``word`` names. ValueError, with the forms there are, for anything else."""
    inner, found, paths = word.partition("@/")
    if found:
        return Only(parse_carrier(inner), [PathTemplate(path) for path in ("/" + paths).split(",")])
    kind, found, rest = word.partition(":")
    if not found or not rest:
        raise ValueError(f"{word!r} is no carrier: write {FORMS}")
    if "~" in rest and kind != "header":
        inner, _, pattern = word.partition("~")
        try:
            return Shaped(parse_carrier(inner), pattern)
        except re.error as error:
            raise ValueError(f"{word!r}: {pattern!r} is no regular expression: {error}") from None
    if kind == "header":
        return Header(_name(word, rest).lower())
    if kind == "cookie":
        return Cookie(_name(word, rest))
    if kind == "query":
        return Query(rest)
    if kind == "path":
        return Path(rest)
    if kind == "json":
        return Json(rest)
    if word == EngineIO.word:
        return EngineIO()
    name, _, field = rest.partition("/")
    if kind == "starlette-cookie":
        return StarletteCookie(_name(word, name), field or "*")
    if kind == "token":
        if not field:
            raise ValueError(f"{word!r} must name a header and a field: token:HEADER/FIELD")
        return Token(_name(word, name), field)
    raise ValueError(f"{word!r} is no carrier: {kind!r} is none of {FORMS}")


def _name(word: str, name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{word!r}: {name!r} is no name of a header or cookie")
    return name
