"""The contract of a claim store. One suite of tests holds every store to it.

A claim is the fact "worker W owns this ID", told by the ID's key (``affinity.ids.claim_key``: 32 lower-case hex digits,
so an ID never reaches a store or a file name).

1. *Whole or not at all.* Nobody ever sees half a claim, whatever dies when.
2. *The first wins.* Of any number of workers that claim a key at once exactly one gets it, and `claim` tells each of
   them the same owner.
3. *At once.* When `claim` or `move` returned, every worker's next `owner` sees it.
4. *Only the owner ends or moves it.* `release` and `move` of another's claim do nothing and return False. The calls of
   one owner are made one after another: one process, one event loop.
5. *Death ends nothing.* The claims of a dead worker stay, so that its sessions are gone and not unknown. A store does
   not know who lives: it names the uid, ``Roster.alive`` judges.
6. *No memory.* A store caches no claim and no absence of one; what may be cached is the caller's decision.
7. *Failure is told.* A claim that could not be made or read for lack of space, inodes or a working disk or server is
   ``StoreUnavailable``: no claim was made. A key of another form is a ValueError.
"""

from __future__ import annotations

from typing import Protocol


class ClaimStore(Protocol):
    """Claims as one worker, ``me``, makes and sees them. Calls take microseconds and never wait."""

    me: str

    def claim(self, key: str, worker: str | None = None) -> str:
        """Claim ``key`` for ``worker`` (default: me); the uid of who holds it afterwards. StoreUnavailable.

        Holding it already is as good as winning it. For another worker (a placed session) it is claim and reservation
        in one.
        """
        ...

    def owner(self, key: str) -> str | None:
        """The uid of who holds ``key``, alive or dead; None: unclaimed. StoreUnavailable."""
        ...

    def move(self, key: str, to: str) -> bool:
        """Hand one's own claim to the worker ``to``, never unclaimed in between; False if it is not one's own."""
        ...

    def release(self, key: str) -> bool:
        """End one's own claim; False if it is not one's own (another's, or none). StoreUnavailable."""
        ...

    def keys(self, worker: str | None = None) -> list[str]:
        """All keys that ``worker`` (default: me) holds, in no order. Looks at every claim: not for requests."""
        ...

    def close(self) -> None:
        """Give up what the store holds open. Claims stay."""
        ...
