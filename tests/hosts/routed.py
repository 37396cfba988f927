"""The plain ASGI way in."""

from sessionworkers import SessionRouter
from tests.hosts.app import app as plain

app = SessionRouter(plain)
