"""Who is there: the runtime directory, each worker's identity and proof of life, and what workers share.

The runtime directory (0700; every name below is made by this package)::

    sw-k3f9a2xq/
    ├── server.lock            locked (shared) for life by each server process: the manager, gunicorn's arbiter
    ├── mask.key               16 random bytes: masked IDs in the logs of all workers correlate
    ├── members/               one worker = one random uid of 24 hex digits, made after fork, never the pid
    │   ├── <uid>.lock         proof of life: locked until the worker dies
    │   ├── <uid>.0.id         the identity file: JSON; <uid>.1.id once that has all the links it can
    │   ├── <uid>.serving      published; renamed to <uid>.draining
    │   └── <uid>.load         its page of the load board (a memory map), where there is one
    ├── s/<uid>                the worker's private socket (0600)
    ├── s/<22 digits>.c        its control socket (0600)
    ├── control                the manager's control socket (0600), where there is a manager
    ├── claims/<32 hex>        a claim: a hard link of the owner's identity file
    └── names/                 keys learned by `auto`: page (a memory map) and 000 … 255, one name each

A worker that dies leaves its identity and its claims behind: together they are the tombstone that says *gone* rather
than *unknown*. They go with the directory. An identity file is never removed before that, since its inode number is
what tells whose a claim is, and a freed number would be used again.
"""

from __future__ import annotations

from .board import NamesBoard
from .fork import close_in_child
from .identity import Identities, Member
from .roster import Roster
from .runtime import RuntimeDir
from .sweep import sweep_stale

__all__ = ["Identities", "Member", "NamesBoard", "Roster", "RuntimeDir", "close_in_child", "sweep_stale"]
