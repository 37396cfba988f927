"""Path templates: ``/v1/sessions/{id}``.

==================  ====================================================================================================
``{id}``            the ID: one segment, or the part of one (``job-{id}.json``)
``*``               any one segment
``/**`` at the end  everything below, and the path itself
``/**`` in front    any prefix: app mounted below another, proxy prefix, rollout prefix
==================  ====================================================================================================

A template with ``{id}`` also matches everything below it, one without matches only itself, with or without a slash at
the end (``exact`` says otherwise). A prefix that the template does not name is allowed at any segment boundary if the
template has two or more literal segments, since such a path stands for itself wherever the app is mounted; with fewer
it must begin where the server's ``root_path`` ends, or at the very start.
"""

from __future__ import annotations

import re

from sessionworkers.affinity.views import RequestView


class PathTemplate:
    """One template. ``needle`` is text that every path it matches holds: a cheap check before the real one."""

    __slots__ = ("_below", "_regex", "anywhere", "below", "exact", "has_id", "needle", "text")

    def __init__(self, text: str, exact: bool | None = None) -> None:
        """ValueError, with what is wrong, for a text that is no template. ``exact``: nothing below it."""
        if not text.startswith("/"):
            raise ValueError(f"path {text!r} must begin with a slash")
        if any(c in text for c in "?# \t") or not text.isascii() or not text.isprintable():
            raise ValueError(f"path {text!r} must be a plain path: no query, no spaces, ASCII")
        if text.count("{id}") > 1 or re.search(r"[{}]", text.replace("{id}", "")):
            raise ValueError(f"path {text!r} may hold {{id}} once and no other braces")
        body = text
        self.anywhere = body.startswith("/**/")
        body = body[3:] if self.anywhere else body
        self.below = below = body == "/**" or body.endswith("/**")
        body = body[:-3] if below else body.rstrip("/")
        if "**" in body or any("*" in part and part != "*" for part in body.split("/")):
            raise ValueError(f"path {text!r}: * stands for one whole segment, /** only in front and at the end")
        segments = body.split("/")[1:]
        literals = [part for part in segments if part != "*" and "{id}" not in part]
        self.text = text
        self.has_id = "{id}" in text
        self.exact = (not self.has_id if exact is None else exact) and not below
        self.anywhere = self.anywhere or len(literals) >= 2
        runs = re.split(r"/\*|/[^/]*\{id\}[^/]*", body)
        self.needle = max(runs, key=len) if runs else ""
        middle = "".join("/" + _segment(part) for part in segments)
        front = "(?:/[^/]*)*?" if self.anywhere else ""
        self._regex = re.compile(front + middle + ("/?" if self.exact else "(?:/.*)?"), re.DOTALL).fullmatch
        self._below = re.compile(front + middle + "(?:/.*)?", re.DOTALL).fullmatch

    def match(self, request: RequestView) -> str | None:
        """The value of ``{id}``, "" if the template has none, None if the path does not match."""
        path = request.path
        if self.needle not in path:
            return None
        found = self._regex(path)
        if found is None and request.root_path and not self.anywhere:
            found = self._regex(request.route_path)
        if found is None:
            return None
        return found["id"] if self.has_id else ""

    def covers(self, request: RequestView) -> bool:
        """True if the path matches or lies below, whatever ``exact`` says: how ``--no-routing`` reads its paths."""
        if self.needle not in request.path:
            return False
        return self._below(request.path) is not None or self._below(request.route_path) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PathTemplate) and (self.text, self.exact) == (other.text, other.exact)

    def __hash__(self) -> int:
        return hash((self.text, self.exact))

    def __repr__(self) -> str:
        return f"PathTemplate({self.text!r})"


def _segment(text: str) -> str:
    if text == "*":
        return "[^/]+"
    before, found, after = text.partition("{id}")
    return re.escape(before) + (r"(?P<id>[^/]+)" if found else "") + re.escape(after)
