"""What `auto` takes for session IDs, in requests and in replies. Pure functions without memory.

The closed list of names is in :mod:`.names`; what looks random in :mod:`.ids`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from urllib.parse import parse_qsl, unquote, urlsplit

from sessionworkers.affinity.documents import MISSING, decode
from sessionworkers.affinity.ids import looks_random, valid_id
from sessionworkers.affinity.names import (
    is_collection,
    is_no_session,
    is_session_header,
    is_session_key,
    is_sight_key,
    normal_key,
)
from sessionworkers.affinity.views import ReplyView, RequestView

DEPTH = 3
"""Levels of JSON objects that are looked at; lists are not: what stands in a list is a mention."""
MOST_KEYS = 64

_HEADER, _PATH, _QUERY, _JSON, _COOKIE = range(5)
_KEYS = (b'id"', b"sess", b'url"', b'uri"', b'href"', b'location"')
"""Every document with a session-like key has one of them, in lower case; plain searches beat one pattern by far."""
_SIGHTS = (b"sess", b"sid", b"chat", b"conversation", b"thread", b"interaction")
_DIGIT = re.compile(r"\d")
_ROUTE = re.compile(r"[A-Za-z][A-Za-z_\-.]{0,39}|v\d{1,3}")


# requests


def session_headers(request: RequestView) -> list[tuple[str, str]]:
    """Session-like headers: name and value."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers if
            is_session_header(name)]  # fmt: skip


def _may_sight(data: bytes) -> bool:
    lower = data.lower()
    return any(key in lower for key in _SIGHTS)


def _sightable(value: object) -> bool:
    return isinstance(value, str) and 8 <= len(value) <= 128 and valid_id(value) and _DIGIT.search(value) is not None


def sight_in_head(request: RequestView, heads: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The ID that a client seems to have minted, in a header or the query, and its place; None."""
    for name, value in heads:
        if is_sight_key(name.removeprefix("x-")) and _sightable(value):
            return value, f"header:{name}"
    if request.query and _may_sight(request.query):
        for name, value in request.params.items():
            if is_sight_key(name) and _sightable(value):
                return value, f"query:{name}"
    return None


def sight_in_json(request: RequestView) -> tuple[str, str] | None:
    """The same in a JSON body of up to three levels; never in JSON-RPC."""
    if request.body is None or not _may_sight(request.body):
        return None
    document = request.json
    if not isinstance(document, dict) or "jsonrpc" in document:
        return None
    for path, key, value, _ in walk(document):
        if is_sight_key(key) and isinstance(value, str) and _sightable(value):
            return value, f"json:{path}"
    return None


def parts(
    request: RequestView, heads: Iterable[tuple[str, str]], body: bool, sizes: Collection[int]
) -> Iterator[tuple[int, str, str]]:
    """All parts of the request that may be an ID of one of these lengths: place, word, value. Most telling first."""
    for name, value in heads:
        if len(value) in sizes:
            yield _HEADER, f"header:{name}", value
    path = request.path
    if len(path) > min(sizes):
        segments = path.split("/")
        for index, segment in enumerate(segments):
            if len(segment) in sizes:
                yield _PATH, template(segments[:index]), segment
    if len(request.query) > min(sizes):
        for name, value in request.params.items():
            if len(value) in sizes:
                yield _QUERY, f"query:{name}", value
    if body:
        for path_, _, value_, _ in walk(request.json):
            if isinstance(value_, str) and len(value_) in sizes:
                yield _JSON, f"json:{path_}", value_
    for name, value in request.cookies.items():
        if len(value) in sizes:
            yield _COOKIE, f"cookie:{name}", value


def template(before: list[str]) -> str:
    """The carrier for an ID behind these path segments. What may itself be an ID, or anything that a client made up,
    shows as ``*``: it goes to the log."""
    return "path:" + "/".join([*(each if not each or _ROUTE.fullmatch(each) else "*" for each in before), "{id}"])


def walk(document: object) -> Iterator[tuple[str, str, object, str]]:
    """Dotted path, key, value and the key of the object around it, for three levels of objects, upper ones first."""
    level: list[tuple[str, str, object]] = [("", "", document)]
    for _ in range(DEPTH):
        below: list[tuple[str, str, object]] = []
        for prefix, parent, each in level:
            if not isinstance(each, dict):
                continue
            for index, (key, value) in enumerate(each.items()):
                if index == MOST_KEYS:
                    break
                path = f"{prefix}{key}"
                if isinstance(value, dict):
                    below.append((path + ".", key, value))
                else:
                    yield path, key, value, parent
        level = below
        if not level:
            return


# replies


def from_head(request: RequestView, reply: ReplyView) -> list[tuple[str, str]]:
    """Values that the head of a reply hands out, and where: session-like headers, ``Location``, cookies."""
    found: list[tuple[str, str]] = []
    for key, raw in reply.headers:
        name = key.lower()
        if name == b"location":
            found += [(value, "location") for value in in_url(raw.decode("latin-1"))]
        elif is_session_header(name):
            value = raw.decode("latin-1")
            if looks_random(value):
                found.append((value, f"header:{name.decode('latin-1')}"))
    for cookie, value, attributes in reply.cookie_lines():
        if not looks_random(value) or is_no_session(cookie) or value.startswith("eyJ"):
            continue  # eyJ is base64 for '{"': the cookie holds the session, not its ID
        if "httponly" in attributes or is_session_key(cookie):
            found.append((value, f"cookie:{cookie}"))
    return found


def from_json(request: RequestView, data: bytes) -> list[tuple[str, str]]:
    """Values under session-like keys of a JSON document."""
    lower = data.lower()
    if not any(key in lower for key in _KEYS):
        return []
    document = decode(data)
    if document is MISSING or not isinstance(document, dict):
        return []
    found: list[tuple[str, str]] = []
    for path, key, value, parent in walk(document):
        if not isinstance(value, str) or len(value) < 16:
            continue
        normal = normal_key(key)
        if is_session_key(key) or (normal == "id" and _id_counts(request, parent)):
            if looks_random(value):
                found.append((value, f"json:{path}"))
        elif normal.endswith(("url", "uri", "href", "location")):
            found += [(each, f"url:{path}") for each in in_url(value)]
    return found


def _id_counts(request: RequestView, parent: str) -> bool:
    """``id`` alone says nothing, but in a session-like object or in the reply to a POST to such a collection."""
    if parent:
        return is_collection(parent)
    if request.method not in ("POST", "PUT"):
        return False
    segments = request.path.rstrip("/").rsplit("/", 1)
    return is_collection(segments[-1])


def from_event(request: RequestView, data: bytes) -> list[tuple[str, str]]:
    """The first server-sent event: JSON, or a URL to post to."""
    if data[:1] == b"{":
        return from_json(request, data)
    if len(data) > 2048 or b"/" not in data:
        return []
    return [(value, "url:event") for value in in_url(data.decode("latin-1"))]


def in_url(url: str) -> list[str]:
    """IDs inside a URL: random segments after a session-like collection, random values under session-like names."""
    if len(url) > 2048 or " " in url.strip():
        return []
    try:
        split = urlsplit(url.strip())
    except ValueError:
        return []
    segments = unquote(split.path).split("/")
    found = [segment for before, segment in pairwise(segments) if is_collection(before) and looks_random(segment)]
    for name, value in parse_qsl(split.query):
        if is_session_key(name) and looks_random(value):
            found.append(value)
    return found
