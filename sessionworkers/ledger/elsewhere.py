"""What a worker needs of the hop in order to run a request on another one."""

from __future__ import annotations

from typing import Any, Protocol

from sessionworkers.ledger.ledger import Receive, Send


class Elsewhere(Protocol):
    """The other workers (`sessionworkers.hop.Links`)."""

    async def carry(self, owner: str, scope: Any, receive: Receive, send: Send, meta: dict[str, Any]) -> None:
        """Run one request on ``owner``. Raises `HopError` and its kinds."""
