"""One request that another worker answers, at the worker that accepted it.

The head goes out as one frame and the reply comes back as bytes, written to the client from the link's callback: no
task, no parse, no ASGI on the way. uvicorn's own cycle for the request was made as always but is not run; it keeps the
body that has not been sent yet, and if the owner refuses it runs after all, with the reason for the router to act on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sessionworkers.errors import FrameError, HopError, OwnerGone
from sessionworkers.hop.carried import refused
from sessionworkers.hop.codec import (
    ASK,
    CANCEL,
    COMPLETE,
    CREDIT,
    DATA,
    END,
    FIRST,
    INLINE,
    KEEP,
    OPEN_RAW,
    RAW,
    RAW_CLOSE,
    RAW_GRANT,
    RAW_KEEP,
    REFUSE,
    header,
    open_again,
    packed,
    packed_peer,
    read_credit,
)
from sessionworkers.hop.link import AcceptorLink
from sessionworkers.hop.wire import Stream
from sessionworkers.hosts.heads import Head, cycle_of, scope_of
from sessionworkers.worker.router import DECIDED, Failed

if TYPE_CHECKING:
    from sessionworkers.affinity.found import Found
    from sessionworkers.hosts.protocol import SessionHttpToolsProtocol
    from sessionworkers.hosts.raw import Accepting

_PIECE: Final = 128 * 1024  # most bytes of a body in one frame
_HEAD_END: Final = b"\r\n\r\n"


class _NobodyWaits:
    """The message event of a request that no app has."""

    def set(self) -> None: ...


_NOBODY_WAITS: Final = _NobodyWaits()


class Remote(Stream):
    """One request that another worker answers. ``cycle`` is uvicorn's, not run."""

    link: AcceptorLink
    cycle: Any
    id = 0  # until it is opened
    grant = RAW_GRANT
    sent = False  # the whole request
    begun = False  # something of the reply's own head has gone to the client
    _taken: list[bytes] | None = None  # what was sent of the body, until the owner has begun with it
    _unread = 0

    def __init__(
        self,
        accepting: Accepting,
        link: AcceptorLink,
        protocol: SessionHttpToolsProtocol,
        found: Found,
        owner: str,
    ) -> None:
        self.accepting = accepting
        self.link = link
        self.protocol = protocol
        self.found = found
        self.owner = owner

    def open(self) -> bool:
        """Send the head, and the body if it is here in full. False: the head cannot travel so, and the owner has heard
        nothing; the router finds out why and answers."""
        cycle = self.cycle
        scope: Any = cycle.scope
        flags = KEEP if cycle.keep_alive else 0
        if cycle.waiting_for_100_continue:
            flags |= ASK
        body = b""
        if not cycle.more_body and len(cycle.body) <= INLINE:
            flags |= COMPLETE
            if cycle.body:
                body = bytes(cycle.body)
        link = self.link
        number = link.number()
        try:
            frame = packed(
                OPEN_RAW,
                number,
                (  # an `OpenRaw`, without making one
                    flags,
                    scope["method"],
                    scope["path"],
                    scope["raw_path"],
                    scope["query_string"],
                    scope["headers"],
                    scope["client"],
                    scope["server"],
                    scope["scheme"],
                    scope["http_version"],
                    self.accepting.router.meta(self.found),
                    body,
                ),
            )
        except (FrameError, TypeError, ValueError, OverflowError):
            return False
        self.id = number
        link.streams[number] = self
        if flags & COMPLETE:
            self.sent = True
            link.write(frame)
            if body:
                self._taken = [body]
                cycle.body = b""
        else:
            self._taken = []
            link.write_all([frame, *self._pieces()])
        return True

    # the request's body
    def pump(self) -> None:
        """Send what has come of the body, as far as credit allows; the rest of it later."""
        pieces = self._pieces()
        if pieces:
            self.link.write_all(pieces)

    def _pieces(self) -> list[bytes]:
        cycle = self.cycle
        frames: list[bytes] = []
        while not self.ended and not self.sent and self.left > 0 and (cycle.body or not cycle.more_body):
            body = cycle.body
            piece, cycle.body = (body, b"") if len(body) <= _PIECE else (body[:_PIECE], body[_PIECE:])
            self.sent = last = not cycle.body and not cycle.more_body
            self.left -= len(piece)
            if self._taken is not None:
                self._taken.append(piece)
            frames.append(header(END if last else DATA, self.id, len(piece)))
            frames.append(piece)
        if len(cycle.body) <= HIGH_WATER_LIMIT and not self.protocol.pipeline:
            self.protocol.flow.resume_reading()
        return frames

    def cancel(self) -> None:
        """The client is gone."""
        if not self.ended and self.id:
            self.link.write(packed(CANCEL, self.id, {}))
            self._detach()

    def resume(self) -> None:
        """The client takes more again."""
        if self._unread:
            unread, self._unread = self._unread, 0
            self.consumed(unread)

    def tick(self) -> bool:
        """A cut connection is told by the transport; nothing to watch."""
        return False

    # the reply
    def frame(self, kind: int, payload: bytes) -> None:
        if kind == RAW_KEEP:
            self.ended = True  # before it is written: no credit is given back for what ends here
            if payload:
                self._write(payload)
            self.link.release(self.id)
            self._complete(False)
        elif kind == RAW:
            self._write(payload)
        elif kind == RAW_CLOSE:
            if payload:
                self._write(payload)
            self._complete(True)
        elif kind == CREDIT:
            self._taken = None
            self.left += read_credit(payload)
            self.pump()
        elif kind == REFUSE:
            self._back(refused(payload))
        else:
            raise FrameError(f"a frame of kind {kind} on a raw stream")

    def shared(self, kind: int, piece: memoryview) -> None:
        """Written to the client from where it lies; what its socket does not take is copied for the transport."""
        protocol = self.protocol
        transport = protocol.transport
        if (
            protocol.flow.write_paused
            or not self.cycle.keep_alive
            or transport.is_closing()
            or transport.get_write_buffer_size()
            or transport.get_extra_info("sslcontext")
        ):
            self.frame(kind, bytes(piece))
            return
        if not self.begun:
            self._begin(piece)
        try:
            sent = os.write(transport.get_extra_info("socket").fileno(), piece)
        except OSError:  # it takes nothing now, or is broken, which the transport will find out
            sent = 0
        if kind == RAW:
            self.consumed(sent)
        rest = bytes(piece[sent:])
        if rest or kind != RAW:
            self.frame(kind, rest)

    def lost(self) -> None:
        if self.begun:
            self._detach()
            self._done()
            self.protocol.transport.close()
        else:
            self._back(OwnerGone("the owner was lost before it answered", sent=True))

    def _write(self, data: bytes) -> None:
        protocol = self.protocol
        if not self.begun and data[9:12] != b"100":
            self._begin(data)
            if not self.cycle.keep_alive:
                data = _closing(bytes(data))  # this worker drains since the request went out
        transport = protocol.transport
        if transport.is_closing():
            return  # uvloop's would raise; what is left ends with `cancel`
        transport.write(data)
        if self.ended:
            return
        if protocol.flow.write_paused:
            self._unread += len(data)
        else:
            self.consumed(len(data))

    def _begin(self, data: bytes | memoryview) -> None:
        """``data`` begins with the reply's head."""
        self.begun = self.cycle.response_started = True
        self._taken = None
        protocol = self.protocol
        if protocol.access_log:
            self.accepting.log(protocol, self.cycle.scope, self.found, self.owner, int(bytes(data[9:12])))

    def _complete(self, close: bool) -> None:
        self._detach()
        cycle, protocol = self.cycle, self.protocol
        self._done()
        cycle.response_complete = True
        if close or not cycle.keep_alive or not self.begun or protocol.half_closed():
            protocol.transport.close()
        else:
            protocol.remote_complete()

    def _back(self, error: HopError) -> None:
        """Nothing was answered: uvicorn's cycle runs here, and the router decides what the error means."""
        self._detach()
        self._done()
        if self.protocol.transport.is_closing():
            return
        cycle = self._unanswered()
        scope: Any = cycle.scope
        scope[DECIDED] = Failed(self.found, self.owner, error)
        self.protocol.run_here(cycle)

    def _unanswered(self) -> RequestResponseCycle:
        """uvicorn's cycle, with the whole body that has come."""
        cycle: RequestResponseCycle = self.cycle
        if self._taken:
            cycle.body = bytearray(b"".join((*self._taken, cycle.body)))
            cycle.message_event.set()
        return cycle

    def _done(self) -> None:
        if self.protocol.remote is self:
            self.protocol.remote = None

    def _detach(self) -> None:
        if not self.ended:
            self.ended = True
            self.link.release(self.id)


class RemoteAgain(Remote):
    """One whose head came before and whose body is all here: it stands for the cycle, which is made only if the owner
    refuses."""

    # what a connection asks of a cycle
    response_started = False
    response_complete = False
    disconnected = False
    keep_alive = True
    more_body = False
    message_event = _NOBODY_WAITS

    sent = True

    def __init__(
        self,
        accepting: Accepting,
        link: AcceptorLink,
        protocol: SessionHttpToolsProtocol,
        head: Head,
        body: bytes,
        found: Found,
        owner: str,
    ) -> None:
        super().__init__(accepting, link, protocol, found, owner)
        self.head = head
        self.body = body
        peer = protocol.peer
        flags = KEEP
        if peer is None:
            flags |= FIRST
            peer = protocol.peer = packed_peer(protocol.client, protocol.server, protocol.scheme or "http")
        self.id = number = link.number()
        link.streams[number] = self
        packed = head.pack()
        size = len(body)
        if size <= INLINE:
            link.write(open_again(number, flags | COMPLETE, packed, head.line, peer, body))
        else:
            self.left -= size
            again = open_again(number, flags, packed, head.line, peer, b"")
            link.write_all((again, header(END, number, size), body))

    @property
    def cycle(self) -> Any:
        return self

    @property
    def scope(self) -> Any:
        return scope_of(self.protocol, self.head, {})

    def _unanswered(self) -> RequestResponseCycle:
        cycle = cycle_of(self.protocol, self.head, self.body)
        cycle.keep_alive = self.keep_alive
        return cycle


def _closing(data: bytes) -> bytes:
    """``data`` begins with a reply's head: say in it that the connection will be closed."""
    head, end, rest = data.partition(_HEAD_END)
    if not end or b"\r\nconnection: close" in head.lower():
        return data
    return b"".join((head, b"\r\nconnection: close", end, rest))
