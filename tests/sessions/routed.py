"""The app of the session tests behind the plain ASGI router."""

from __future__ import annotations

from sessionworkers import SessionRouter
from tests.sessions.app import app as inner

app = SessionRouter(inner)
