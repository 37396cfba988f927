"""The frames that two workers exchange. No I/O: bytes in, frames out.

A frame is a nine-byte header and a payload::

    length u32 | kind u8 | stream u32 | payload of `length` bytes          (network byte order)

Payloads are raw bytes or msgpack (msgspec; arrays with typed fields). Stream 0 is the link itself, any other number is
one request, given by the acceptor, rising by one. A stream's frames, in the order in which they may come::

    acceptor → owner                             owner → acceptor
    OPEN     head, meta, perhaps the whole body  WANT    the app asks for the body (Expect: 100-continue)
    DATA*    END    a request's body             REFUSE  nothing was answered, the app may not have run: last frame
    (PART* TEXT | PART* BYTES)*   WebSocket      HEAD    start of a reply, perhaps with its first or whole body
    CREDIT*  more of the reply may come          DATA* END   a reply's body;  PART* TEXT | BYTES   WebSocket
    CANCEL   the client is gone: last frame      EVENT   any other ASGI message
                                                 CREDIT* more of the body may come
                                                 DONE    the app returned;  FAIL   it raised: last frame

A stream opened by OPEN_RAW carries the reply as the bytes that the client gets: RAW, and as its last frame RAW_KEEP or
RAW_CLOSE, by what becomes of the client's connection. OPEN_AGAIN is an OPEN_RAW in parts, by whose bytes the owner
knows a head that came before. SHARED stands for one of the RAWs whose bytes lie in memory that RING, a frame of the
link itself, has made known, or will in a moment, which LAID may tell (`hop.ring`). With TUNNEL both directions are such
bytes (a WebSocket that cannot be handed over): DATA from the acceptor, RAW from the owner.

A reply that is complete ends its stream without a DONE. Each side may send a stream's body bytes and WebSocket messages
while it has *credit*: it begins with WINDOW, each frame takes its ``cost``, a frame may go out while any credit is
left, and CREDIT gives back what the far side has consumed. So at most WINDOW + PIECE bytes wait anywhere per stream.

On a new link the acceptor says HELLO first and waits for the owner's HELLO, or its BYE with the reason. GOAWAY says
that no new stream may be opened; open ones go on.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from sessionworkers.errors import FrameError

VERSION: Final = 1  # what this release speaks
OLDEST: Final = 1  # the oldest it still understands: two releases run side by side during a rolling restart

HELLO: Final = 1
BYE: Final = 2
GOAWAY: Final = 3
OPEN: Final = 4
DATA: Final = 5
END: Final = 6
HEAD: Final = 7
EVENT: Final = 8
TEXT: Final = 9
BYTES: Final = 10
PART: Final = 11
CREDIT: Final = 12
WANT: Final = 13
CANCEL: Final = 14
REFUSE: Final = 15
DONE: Final = 16
FAIL: Final = 17
RAW: Final = 18
RAW_KEEP: Final = 19
RAW_CLOSE: Final = 20
OPEN_RAW: Final = 21
OPEN_AGAIN: Final = 22
RING: Final = 23
SHARED: Final = 24
LAID: Final = 25
LAST_KIND: Final = LAID

# Frames that are given out in pieces as they come, and what each piece but the last is.
_RAWS: Final = frozenset((RAW, RAW_KEEP, RAW_CLOSE))
_LARGE: Final = 16 * 1024  # from here on a copy costs more than a view
_PIECES: Final = {DATA: DATA, END: DATA, RAW: RAW, RAW_KEEP: RAW, RAW_CLOSE: RAW}

WINDOW: Final = 256 * 1024  # credit of a stream, bytes per direction (facts-performance, pitfall 6)
GRANT: Final = 64 * 1024  # credit goes back in steps of at least this
RAW_WINDOW: Final = 1024 * 1024  # credit of a raw reply, bytes; a stalled client holds no more
RAW_GRANT: Final = RAW_WINDOW // 2  # its steps: most replies end before one is due
PIECE: Final = 64 * 1024  # most bytes of body or message in one frame
INLINE: Final = 8 * 1024  # up to here a body travels inside OPEN or HEAD; larger ones are not worth the copies
MESSAGE_COST: Final = 64  # each WebSocket message also costs this, so that empty ones cannot pile up
MAX_FRAME: Final = 16 * 1024 * 1024
MAX_HELLO: Final = 4096  # longest frame of a peer that has not said hello
LAST_STREAM: Final = 0xFFFFFFFF

_HEADER: Final = struct.Struct("!IBI")
_HEADER_SIZE: Final = _HEADER.size
_PARTS: Final = struct.Struct("!BHHH")  # flags, lengths of head, its first line and peer
_CREDIT_FRAME: Final = struct.Struct("!IBII")
_U32: Final = struct.Struct("!I")
_SHARED: Final = struct.Struct("!BII")  # the kind that it stands for; where the bytes are, and how many

Pair = tuple[bytes, bytes]
Address = tuple[str, int | None]


class Hello(msgspec.Struct, array_like=True):
    """First frame of each side. ``uid``: who sends it; ``expects``: who the acceptor wants, "" in the reply."""

    uid: str
    expects: str
    version: int
    oldest: int
    raw: bool = False
    """From the owner: its host takes raw streams. From the acceptor: this connection is for handing sockets over."""


class Bye(msgspec.Struct, array_like=True):
    """Why the owner does not take the link: "uid" (it is another worker), "version" or "closing"."""

    why: str
    text: str


class Setting(msgspec.Struct, array_like=True):
    """What the scopes of one listening socket have in common. It travels encoded: both ends know it again by that."""

    scheme: str
    http_version: str
    root_path: str
    server: Address | None
    asgi: dict[str, Any]
    extensions: dict[str, Any] | None


class Open(msgspec.Struct, array_like=True):
    """An ASGI scope, the meta of the router, and the whole body if ``flags`` has COMPLETE."""

    flags: int
    setting: bytes  # an encoded Setting
    method: str
    path: str
    raw_path: bytes | None
    query: bytes
    headers: list[Pair]
    client: Address | None
    meta: dict[str, Any]
    body: bytes
    subprotocols: list[str] | None = None
    extra: dict[str, Any] | None = None


WEBSOCKET: Final = 1  # flags of Open
COMPLETE: Final = 2  # `body` is all of it
ASK: Final = 4  # send WANT before the body comes
KEEP: Final = 32  # of a raw stream: the client would keep its connection
FIRST: Final = 16  # of a raw stream: the first one of its client's connection, perhaps the only one
TUNNEL: Final = 64  # of a raw stream: a WebSocket
STATE: Final = 8  # the acceptor's scope had a state, so the owner's has one too


class OpenRaw(msgspec.Struct, array_like=True):
    """The head of a request as its server parsed it; ``body`` is all of it if ``flags`` has COMPLETE.

    ``meta``: as in `Open`; None where the head alone tells the owner all. ``raw_path`` None: ``path`` in ASCII.
    """

    flags: int
    method: str
    path: str
    raw_path: bytes | None
    query: bytes
    headers: list[Pair]
    client: Address | None
    server: Address | None
    scheme: str
    http_version: str
    meta: dict[str, Any] | None
    body: bytes


class Head(msgspec.Struct, array_like=True):
    """``http.response.start``, and the first ``http.response.body`` unless ``body`` is None. ``more``: more_body."""

    status: int
    headers: list[Pair]
    trailers: bool | None
    body: bytes | None
    more: bool


class Refusal(msgspec.Struct, array_like=True):
    """Why a stream was refused: "not-mine" (``owner`` holds the claim, None: nobody), "closing" or "unreadable"."""

    why: str
    owner: str | None


Unreadable: Final = (msgspec.MsgspecError, UnicodeDecodeError)  # what a payload that is not as it should be raises

encode: Final = msgspec.msgpack.Encoder().encode
read_hello: Final = msgspec.msgpack.Decoder(Hello).decode
read_bye: Final = msgspec.msgpack.Decoder(Bye).decode
read_setting: Final = msgspec.msgpack.Decoder(Setting).decode
read_open: Final = msgspec.msgpack.Decoder(Open).decode
read_raw: Final = msgspec.msgpack.Decoder(OpenRaw).decode
read_packed_line: Final = msgspec.msgpack.Decoder(tuple[str, str, bytes, bytes]).decode
read_packed_fields: Final = msgspec.msgpack.Decoder(list[Pair]).decode
read_packed_peer: Final = msgspec.msgpack.Decoder(tuple[Address | None, Address | None, str]).decode  # type: ignore[arg-type, misc, unused-ignore]
read_head: Final = msgspec.msgpack.Decoder(Head).decode
read_refusal: Final = msgspec.msgpack.Decoder(Refusal).decode
read_event: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode

Frame = tuple[int, int, Any]
"""Kind, stream, payload: bytes, but a memoryview for a large piece of a raw reply, which is only passed on."""


def packed(kind: int, stream: int, body: object) -> bytes:
    """A frame whose payload is msgpack. FrameError: larger than a frame may be; TypeError: msgpack cannot carry it."""
    payload = encode(body)
    if len(payload) > MAX_FRAME:
        raise FrameError(f"a frame of {len(payload)} bytes; at most {MAX_FRAME} may be sent")
    return _HEADER.pack(len(payload), kind, stream) + payload


def packed_line(method: str, path: str, raw_path: bytes, query: bytes) -> bytes:
    """A request's first line, which begins its head for `open_again`."""
    return encode((method, path, raw_path, query))


def packed_fields(headers: Sequence[Pair]) -> bytes:
    """The rest of its head."""
    return encode(headers)


def packed_peer(client: Address | None, server: Address | None, scheme: str) -> bytes:
    """A client's connection, for `open_again`."""
    return encode((client, server, scheme))


def open_again(stream: int, flags: int, head: bytes, line: int, peer: bytes, body: bytes) -> bytes:
    """An OPEN_AGAIN: an HTTP/1.1 request whose head tells all, in parts that were packed before and are not unpacked
    again. The first ``line`` bytes of ``head`` are a `packed_line`. ``body`` is all of it if ``flags`` has COMPLETE.
    ``struct.error``: head or peer are longer than 64 KB."""
    size = _PARTS.size + len(head) + len(peer) + len(body)
    parts = _HEADER.pack(size, OPEN_AGAIN, stream), _PARTS.pack(flags, len(head), line, len(peer)), head, peer, body
    return b"".join(parts)


def read_again(payload: bytes) -> tuple[int, bytes, int, bytes, bytes]:
    """The parts of an OPEN_AGAIN: flags, head, length of its line, peer, body. FrameError: shorter than it says."""
    if len(payload) < _PARTS.size:
        raise FrameError("a head in parts is too short")
    flags, head, line, peer = _PARTS.unpack_from(payload)
    at = _PARTS.size + head
    body = at + peer
    if body > len(payload) or line > head:
        raise FrameError("a head in parts is shorter than it says")
    return flags, payload[_PARTS.size : at], line, payload[at:body], payload[body:]


def bare(kind: int, stream: int) -> bytes:
    """A frame without payload."""
    return _HEADER.pack(0, kind, stream)


def header(kind: int, stream: int, length: int) -> bytes:
    """The header of a frame whose payload is written apart from it."""
    return _HEADER.pack(length, kind, stream)


def shared(stream: int, kind: int, at: int, size: int) -> bytes:
    """A SHARED in place of a frame of that ``kind``."""
    return _HEADER.pack(_SHARED.size, SHARED, stream) + _SHARED.pack(kind, at, size)


def read_shared(payload: bytes) -> tuple[int, int, int]:
    """Kind, place and size of a SHARED. FrameError: it is none."""
    if len(payload) != _SHARED.size or payload[0] not in _RAWS:
        raise FrameError("a frame about shared memory that cannot be")
    kind, at, size = _SHARED.unpack(payload)
    return kind, at, size


def credit(stream: int, amount: int) -> bytes:
    return _CREDIT_FRAME.pack(4, CREDIT, stream, amount)


def read_credit(payload: bytes) -> int:
    if len(payload) != 4:
        raise FrameError("a credit frame of the wrong length")
    amount: int = _U32.unpack(payload)[0]
    return amount


def can_travel(value: object) -> bool:
    """Whether msgpack can carry ``value``."""
    try:
        encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


class FrameReader:
    """Cuts a byte stream into frames ``(kind, stream, payload)``.

    Body frames (DATA, END, RAW …) are given out in pieces as they come, the pieces as DATA or RAW and only the last one
    as what it is, so that a large one is never put together here. Any other frame comes whole; ``limit`` bounds what
    is held for it.
    """

    __slots__ = ("_held", "_kind", "_left", "_need", "_piece", "_stream", "limit")

    def __init__(self, limit: int = MAX_HELLO) -> None:
        self.limit = limit
        self._held: bytearray | None = None  # an incomplete frame,
        self._need = 0  # and how long `_held` must be before it is worth a look
        self._left = 0  # bytes that a body frame still lacks,
        self._kind = 0  # and whose they are
        self._piece = 0
        self._stream = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes. FrameError: the peer broke the protocol, the link is of no more use."""
        frames: list[Frame] = []
        start = 0
        size = len(data)
        if self._held is not None:
            held = self._held
            held += data
            size = len(held)
            if size < self._need:
                return frames
            data = bytes(held)
            self._held = None
        elif self._left:
            if size < self._left:
                self._left -= size
                if data:
                    frames.append((self._piece, self._stream, data))
                return frames
            start = self._left
            frames.append((self._kind, self._stream, data if start == size else data[:start]))
            self._left = 0
        while size - start >= _HEADER_SIZE:
            length, kind, stream = _HEADER.unpack_from(data, start)
            body = start + _HEADER_SIZE
            end = body + length
            if length > self.limit or not HELLO <= kind <= LAST_KIND:
                raise FrameError(f"a frame of kind {kind} and {length} bytes; at most {self.limit} are allowed")
            if end <= size:
                large = length >= _LARGE and kind in _RAWS
                frames.append((kind, stream, memoryview(data)[body:end] if large else data[body:end]))
                start = end
            elif kind in _PIECES:
                self._piece = _PIECES[kind]
                if body < size:
                    large = size - body >= _LARGE and kind in _RAWS
                    frames.append((self._piece, stream, memoryview(data)[body:] if large else data[body:]))
                self._left = end - size
                self._kind = kind
                self._stream = stream
                return frames
            else:
                self._need = end - start
                self._held = bytearray(data[start:])
                return frames
        if start < size:
            self._need = _HEADER_SIZE
            self._held = bytearray(data[start:])
        return frames
