"""What a worker needs of the hop in order to run a request on another one."""

from __future__ import annotations

from typing import Any, Final, Protocol

from sessionworkers.ledger.ledger import Receive, Send

BELONGS: Final = "sessionworkers.belongs"
"""Key of an ASGI scope by which the host is told, as a reply from another worker begins, where its connection belongs:
that worker, and the explicit session that was used (it belongs there if it is used again), or None (at once). No app
sees it: the one that was called had a scope of its own."""


class Elsewhere(Protocol):
    """The other workers (`sessionworkers.hop.Links`)."""

    async def carry(self, owner: str, scope: Any, receive: Receive, send: Send, meta: dict[str, Any]) -> None:
        """Run one request on ``owner``. Raises `HopError` and its kinds."""
