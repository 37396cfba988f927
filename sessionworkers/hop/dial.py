"""Reaching an owner's private socket.

asyncio reports success with an unconnected socket when a Unix socket's backlog is full (EAGAIN), uvloop raises
BlockingIOError; that is the normal case with a busy or stopped owner. So the connecting is done here.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final

from sessionworkers.errors import HopRefused, OwnerBusy, OwnerGone
from sessionworkers.hop.wire import same_user

_FIRST_PAUSE: Final = 0.001  # seconds; doubles up to
_LONGEST_PAUSE: Final = 0.05


async def dial(path: str, deadline: float) -> socket.socket:
    """A connected, non-blocking socket; ``deadline`` by the loop's clock.

    OwnerGone: nobody listens there. OwnerBusy: the backlog stayed full. HopRefused: another user's process listens.
    """
    loop = asyncio.get_running_loop()
    pause = _FIRST_PAUSE
    while True:
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise OwnerBusy(f"no link to the owner can be made: {error.strerror}") from error
        try:
            sock.setblocking(False)
            sock.connect(path)
            if not same_user(sock):
                raise HopRefused("a process of another user listens on the owner's private socket")
            return sock
        except BlockingIOError:
            sock.close()
        except OSError as error:
            sock.close()
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET):
                raise OwnerGone("nobody listens on the owner's private socket") from error
            raise HopRefused(f"the owner's private socket cannot be used: {error}") from error
        except BaseException:
            sock.close()
            raise
        if loop.time() + pause > deadline:
            raise OwnerBusy("the owner's backlog stayed full")
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
