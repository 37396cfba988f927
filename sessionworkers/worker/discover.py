"""What the loaded app itself tells: the session cookies of its Starlette `SessionMiddleware`s, name and secret.

The app is only looked at, never called or changed. Apps wrap apps: the walk follows ``app``, ``router``, ``routes`` and
the middleware lists of Starlette, with a bound, and passes over what it does not know.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MOST_OBJECTS = 2_000
"""How many objects the walk looks at: a large FastAPI app has hundreds of routes."""


@dataclass(frozen=True)
class SessionCookie:
    """A `SessionMiddleware`: cookie ``name``, signing ``secret``, ``max_age`` in seconds (None: none)."""

    name: str
    secret: str
    max_age: int | None


def session_cookies(app: Any) -> tuple[SessionCookie, ...]:
    """The session cookies of ``app``, outermost first, without repeats."""
    module = sys.modules.get("starlette.middleware.sessions")
    if module is None:
        return ()
    middleware: type = module.SessionMiddleware
    found: dict[str, SessionCookie] = {}
    for each in _middlewares(app, middleware):
        found.setdefault(each.name, each)
    return tuple(found.values())


def _middlewares(app: Any, middleware: type) -> Iterator[SessionCookie]:
    seen: set[int] = set()
    waiting = [app]
    while waiting and len(seen) < MOST_OBJECTS:
        each = waiting.pop(0)
        if each is None or id(each) in seen or isinstance(each, (str, bytes, int, float)):
            continue
        seen.add(id(each))
        if isinstance(each, middleware):
            yield from _instance(each)
        for entry in getattr(each, "user_middleware", None) or ():
            cls, options = getattr(entry, "cls", None), getattr(entry, "kwargs", None)
            if isinstance(cls, type) and issubclass(cls, middleware) and isinstance(options, dict):
                yield from _options(options)
        for name in ("app", "middleware_stack", "router", "other_asgi_app", "_app", "asgi_app"):
            waiting.append(_plain(each, name))
        routes = _plain(each, "routes")
        if isinstance(routes, (list, tuple)):
            waiting.extend(routes)


def _plain(holder: Any, name: str) -> Any:
    """An attribute that is simply there; nothing that computes, fails or answers to every name."""
    try:
        return vars(holder).get(name)
    except TypeError:
        return None


def _instance(made: Any) -> Iterator[SessionCookie]:
    secret = getattr(getattr(made, "signer", None), "secret_keys", None) or []
    name = getattr(made, "session_cookie", None)
    if isinstance(name, str) and secret and isinstance(secret[-1], bytes):
        yield SessionCookie(name, secret[-1].decode("utf-8", "replace"), getattr(made, "max_age", None))


def _options(options: dict[str, Any]) -> Iterator[SessionCookie]:
    secret = options.get("secret_key")
    reveal = getattr(secret, "get_secret_value", None)
    text = reveal() if reveal is not None else secret
    if text is not None:
        yield SessionCookie(
            str(options.get("session_cookie", "session")), str(text), options.get("max_age", 14 * 24 * 60 * 60)
        )
