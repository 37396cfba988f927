"""Carrying a request from the worker that accepted it to its owner: ASGI in frames, over one connection per pair.

::

    host → Links.carry (link, carried) ══ frames (codec, wire) ══ PrivateServer (private, served) → app

`codec` and `scopes` do no I/O. Nothing here knows sessions or claims: who the owner is comes in, `NotMine` goes out.
"""

from sessionworkers.hop.link import Links
from sessionworkers.hop.private import PrivateServer
from sessionworkers.hop.served import ClientDisconnected, Handler

__all__ = ["ClientDisconnected", "Handler", "Links", "PrivateServer"]
