"""The plain carriers: places in a request that hold an ID as it is (see :mod:`sessionworkers.affinity.carriers`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sessionworkers.affinity.documents import FieldReader, as_id
from sessionworkers.affinity.ids import MAX_ID, valid_id
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.views import RequestView

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


def one_line(request: RequestView, name: bytes) -> str | None:
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
        value = one_line(request, self.name.encode())
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
