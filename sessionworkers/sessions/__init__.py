"""Explicit sessions: a client opens one, is pinned to one worker, and it ends by call, webhook, app or expiry.

::

    Front (accepting side: routes, envelope, placement) ── here, or by the hop ──> Owner (registry, lifetimes, close)
    EndServer (127.0.0.1) ──> Front                                                └──> Hooks

`table`, `messages`, `envelope`, `grants`, `targets` and `meter` do no I/O. An explicit session is a claimed session of
the ledger whose record has a deadline: same store, same hop, same sweeper, same `current_session`.
"""
