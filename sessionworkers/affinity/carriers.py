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

from sessionworkers.affinity.ids import MAX_TOKEN, valid_id
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.places import (
    Carrier,
    Cookie,
    EngineIO,
    Header,
    Hint,
    Json,
    Path,
    Query,
    ReadID,
    Simple,
    announced,
    may_have_json,
    one_line,
)
from sessionworkers.affinity.signed import COOKIE_MAX_AGE, SignedCookie, SignedToken, pick
from sessionworkers.affinity.views import RequestView

__all__ = [
    "Carrier",
    "Cookie",
    "EngineIO",
    "Header",
    "Hint",
    "Json",
    "Only",
    "Path",
    "Query",
    "ReadID",
    "Shaped",
    "Simple",
    "StarletteCookie",
    "Token",
    "announced",
    "may_have_json",
    "parse_carrier",
    "plain",
]

FORMS = (
    "header:NAME, cookie:NAME, starlette-cookie:NAME/FIELD, query:NAME, path:/a/{id}, json:a.b or token:HEADER/FIELD"
)
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


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
        value = one_line(request, self.header.encode())
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
