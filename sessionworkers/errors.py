"""Every error this package raises on purpose.

::

    SessionworkersError
    ├── ConfigError            a setting is wrong; carries every problem found, exit code 2
    ├── RuntimeDirError        the runtime directory cannot be trusted or made, exit code 2
    ├── StartupError           a worker or the server could not start, exit code 3
    ├── ClaimError             a claim could not be made or read
    │   ├── ClaimConflict      another worker holds the claim                      409
    │   ├── ClaimsFull         the cap on claims is reached, new sessions only     503
    │   └── StoreUnavailable   the store itself failed (disk full, no inodes)      503
    ├── HopError               a request could not be carried to its owner
    │   ├── OwnerGone          the owner no longer lives; nothing was answered     410
    │   ├── OwnerBusy          the owner's backlog stayed full; nothing was sent   503
    │   ├── NotMine            the owner says that another worker holds the claim
    │   ├── HopRefused         the owner's end would not take it (another release, unreadable)    502
    │   ├── AppFailed          the owner's app raised before its reply began; logged there         500
    │   └── HopBroken          the hop broke after the reply had begun; end with FIN
    ├── FrameError             the peer spoke another protocol or broke a limit
    └── ClientError            of `sessionworkers.client`: a request did not do what was asked
        ├── SessionClosed      (a ValueError) the session has ended, or was never there         410
        ├── Unreachable        (a ConnectionError) no connection, or it broke; the request may have run
        ├── TimedOut           (a TimeoutError) no reply in time; the request may have run
        ├── NoRoom             (a TimeoutError) no worker had room for a session in time        429
        └── Rejected           the server said no: `status` and `text` tell why

``status`` is the HTTP status that the error means to the client, so that no caller needs a ladder of types.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any


class SessionworkersError(Exception):
    """Base of all errors of this package."""

    status: int = 500
    exit_code: int = 1


class ConfigError(SessionworkersError):
    """Settings that cannot work. ``problems`` holds one sentence each, all that were found."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class RuntimeDirError(SessionworkersError):
    """The runtime directory cannot be made or is not safe to use; the message names the path and the reason."""

    exit_code = 2


class StartupError(SessionworkersError):
    """The server or one of its workers could not start."""

    exit_code = 3


class ClaimError(SessionworkersError):
    """A claim could not be made or read."""

    status = 503


class ClaimConflict(ClaimError):
    """Another worker, ``owner`` (its uid), holds the claim."""

    status = 409

    def __init__(self, message: str, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class ClaimsFull(ClaimError):
    """This worker holds as many claims as it may; sessions that are open go on."""


class StoreUnavailable(ClaimError):
    """The claim store failed (no space, no inodes, read-only); no claim was made."""


class HopError(SessionworkersError):
    """A request could not be carried to its owner.

    ``replay`` is an ASGI ``receive`` that gives the request once more from its beginning, for handling it elsewhere.
    It is None when the owner's app may have seen the request, which then must never run a second time.
    """

    status = 502
    replay: Callable[[], Awaitable[Any]] | None = None


class OwnerGone(HopError):
    """The owner no longer lives. No byte of a reply was sent.

    ``sent``: the request had already been sent to it, so the app may have acted on it and nothing may be repeated.
    """

    status = 410

    def __init__(self, message: str = "the owner is gone", *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class OwnerBusy(HopError):
    """The owner did not accept within the connect limit. Nothing was sent to it."""

    status = 503


class NotMine(HopError):
    """The owner refused before its app saw anything: the claim names another worker, ``owner``, or none (None)."""

    status = 409

    def __init__(self, owner: str | None = None) -> None:
        super().__init__("the claim names another worker")
        self.owner = owner


class HopRefused(HopError):
    """The owner's end would not take the request: no protocol version in common, or a head it could not read."""


class AppFailed(HopError):
    """The owner's app raised before its reply began. The owner has logged the traceback; the client gets a 500."""

    status = 500


class HopBroken(HopError):
    """The hop broke after the reply had begun: what was sent cannot be taken back."""


class FrameError(SessionworkersError):
    """A peer on a private socket broke the frame protocol."""


class ClientError(SessionworkersError):
    """A request of the client SDK did not do what was asked."""


class SessionClosed(ClientError, ValueError):
    """The session has ended, or was never there."""

    status = 410


class Unreachable(ClientError, ConnectionError):
    """The server cannot be reached, or the connection broke. ``sent``: the request may have run."""

    status = 502

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class TimedOut(ClientError, TimeoutError):
    """No reply within the time limit. The request may have run."""

    status = 504


class NoRoom(ClientError, TimeoutError):
    """No worker had room for another session within the time that was given."""

    status = 429


class Rejected(ClientError):
    """The server refused: ``status``, and ``text`` as it said it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text
