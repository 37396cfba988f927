"""The client of explicit sessions: ``pip install 'sessionworkers[client]'``.

::

    async with Client("http://127.0.0.1:8000") as client:
        async with client.session(cost=100, lifetime=60) as session:
            result = await session.request("/generate", {"prompt": "hello"})
            print(result["response"])

`sessionworkers.client.sync` has the same names without ``await``. The errors are drawn in `sessionworkers.errors`.
"""

from __future__ import annotations

from sessionworkers.client.session import Client, Session
from sessionworkers.errors import ClientError, NoRoom, Rejected, SessionClosed, TimedOut, Unreachable

__all__ = ["Client", "ClientError", "NoRoom", "Rejected", "Session", "SessionClosed", "TimedOut", "Unreachable"]
