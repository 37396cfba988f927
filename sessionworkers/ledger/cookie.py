"""The router's own affinity cookie, for apps whose session ID cannot be read (Streamlit, Shiny, Bokeh).

Off by default: one cookie pins all of a browser's tabs to one worker, and API clients drop cookies. A reply to a page
request without the cookie gets one with an ID that we mint, claimed here like any other before the reply leaves.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from sessionworkers.affinity.rules import Rule

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True)
class AffinityCookie:
    """``name`` of the cookie, and the ``rule`` that reads it."""

    name: str
    rule: Rule

    def wanted(self, status: int, headers: Headers) -> bool:
        """True for a reply that shows a page: 2xx and HTML. Health checks and API calls get no cookie."""
        return 200 <= status < 300 and any(
            name.lower() == b"content-type" and value.lower().startswith(b"text/html") for name, value in headers
        )

    def mint(self) -> str:
        """A new ID: 43 characters from `secrets`."""
        return secrets.token_urlsafe(32)

    def header(self, value: str, *, secure: bool) -> tuple[bytes, bytes]:
        """The Set-Cookie header for ``value``; ``secure`` on https."""
        text = f"{self.name}={value}; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if secure else "")
        return b"set-cookie", text.encode()
