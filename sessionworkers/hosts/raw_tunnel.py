"""A WebSocket whose connection cannot move: its bytes go through a raw stream, uvicorn's protocol runs at its owner.

So close codes, a crash's 1006 and a shutdown's 1012 are exactly uvicorn's. The handshake goes as uvicorn itself replays
it into its WebSocket protocol; until something comes back the owner may still refuse it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from sessionworkers.errors import FrameError
from sessionworkers.hop.codec import (
    CANCEL,
    CREDIT,
    DATA,
    EVENT,
    OPEN_RAW,
    PIECE,
    RAW,
    RAW_CLOSE,
    RAW_GRANT,
    RAW_KEEP,
    REFUSE,
    TUNNEL,
    OpenRaw,
    header,
    packed,
    read_credit,
    read_refusal,
)
from sessionworkers.hop.link import AcceptorLink
from sessionworkers.hop.raw import NOBODY, ServedRaw
from sessionworkers.hop.wire import Stream
from sessionworkers.worker.router import DECIDED, Carried

if TYPE_CHECKING:
    from sessionworkers.hosts.protocol import SessionHttpToolsProtocol
    from sessionworkers.hosts.raw_owner import RawOwner


class Tunnel(Stream, asyncio.Protocol):
    """The accepting end: the client's connection has this as its protocol."""

    link: AcceptorLink
    grant = RAW_GRANT

    def __init__(self, link: AcceptorLink, http: SessionHttpToolsProtocol) -> None:
        super().__init__(link, link.number())
        self.http = http
        self.transport = http.transport
        self.begun = False
        self._sent = bytearray()  # by the client, until the owner has begun
        self._held = bytearray()  # what waits for credit
        self._unread = 0
        self._paused = False

    def open(self, head: OpenRaw) -> None:
        """Send the handshake."""
        frame = packed(OPEN_RAW, self.id, head)
        self.link.streams[self.id] = self
        self.http.connections.discard(self.http)
        self.http.connections.add(self)  # type: ignore[arg-type]
        self.transport.set_protocol(self)
        self.link.write(frame)

    def tick(self) -> bool:
        return False

    # from the owner
    def frame(self, kind: int, payload: bytes) -> None:
        if kind in (RAW, RAW_KEEP, RAW_CLOSE):
            self.begun = True
            if payload and not self.transport.is_closing():
                self.transport.write(payload)
                if self._paused:
                    self._unread += len(payload)
                else:
                    self.consumed(len(payload))
            if kind != RAW:
                self._end()
                self.transport.close()
        elif kind == CREDIT:
            self.left += read_credit(payload)
            self._pump()
        elif kind == REFUSE:
            read_refusal(payload)
            self._back()
        else:
            raise FrameError(f"a frame of kind {kind} in a tunnel")

    def lost(self) -> None:
        if self.begun:
            self._end()
            self.transport.close()  # without a close frame: 1006, as when its worker dies
        else:
            self._back()

    def _back(self) -> None:
        """Nothing was answered: the handshake is this worker's to answer, and the router asks anew whose it is."""
        self._end()
        if self.transport.is_closing():
            return
        self.http.run_websocket_here(bytes(self._sent))

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self.link.release(self.id)
        self.http.connections.discard(self)

    # from the client
    def data_received(self, data: bytes) -> None:
        if not self.begun:
            self._sent += data
        self._held += data
        self._pump()

    def _pump(self) -> None:
        held = self._held
        while held and self.left > 0 and not self.ended:
            piece = bytes(held[:PIECE])
            del held[:PIECE]
            self.left -= len(piece)
            self.link.write_with(header(DATA, self.id, len(piece)), piece)
        if self.transport.is_closing():
            return
        if held:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended:
            self.link.write(packed(CANCEL, self.id, {}))
        self._end()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._unread:
            unread, self._unread = self._unread, 0
            self.consumed(unread)

    def shutdown(self) -> None:
        """This worker stops: uvicorn's protocol at the owner says 1012."""
        if not self.ended:
            self.link.write(packed(EVENT, self.id, {}))


def handshake(http: SessionHttpToolsProtocol, meta: dict[str, Any] | None) -> OpenRaw:
    """The frame's head; the handshake's bytes as uvicorn's `handle_websocket_upgrade` writes them."""
    scope = http.scope
    output = [scope["method"].encode(), b" ", http.url, b" HTTP/1.1\r\n"]
    for name, value in scope["headers"]:
        output += [name, b": ", value, b"\r\n"]
    output.append(b"\r\n")
    return OpenRaw(
        TUNNEL, "GET", "", None, b"", [], http.client, http.server, http.scheme or "http", "1.1", meta, b"".join(output)
    )


class OwnedTunnel(Carried):
    """The owner's end: uvicorn's WebSocket protocol with the stream as its transport."""

    def __init__(self, owner: RawOwner, stream: ServedRaw, head: OpenRaw) -> None:
        self.stream = stream
        self.app = owner.app
        self.meta = head.meta
        self._over = False
        stream.request = self
        stream.info = {"peername": head.client, "sockname": head.server, "sslcontext": head.scheme == "https" or None}
        config = owner.config
        self.protocol: Any = config.ws_protocol_class(
            config=config, server_state=owner.server_state, app_state=owner.state()
        )
        self.protocol.app = self._app
        self.protocol.connection_made(cast(asyncio.Transport, stream))
        self.protocol.data_received(head.body)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        scope[DECIDED] = self
        await self.app(scope, receive, send)

    def refuse(self, owner: str | None) -> None:
        self.stream.refuse(owner)

    def more(self, data: bytes, last: bool) -> None:
        if not self._over:
            self.protocol.data_received(data)
        if not self.stream.reading_paused:
            self.stream.resume_reading()

    def gone(self) -> None:
        if not self._over:
            self.protocol.eof_received()
            self.closed()

    def closed(self) -> None:
        if not self._over:
            self._over = True
            self.protocol.connection_lost(None)
            self.protocol = None  # it names this, and the stream does: else both were left to the garbage collector
            self.stream.request = NOBODY

    def shut(self) -> None:
        if not self._over:
            self.protocol.shutdown()

    def pause(self) -> None:
        if not self._over:
            self.protocol.pause_writing()

    def resume(self) -> None:
        if not self._over:
            self.protocol.resume_writing()
