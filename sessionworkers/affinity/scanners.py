"""Reading IDs out of reply bodies as they pass: bounded memory, an ID as soon as it can be read, never an exception.

A scanner is fed each piece before the piece goes on to the client, so whatever it finds can be claimed in time.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from typing import Protocol

from sessionworkers.affinity.views import ReplyView

MAX_JSON = 256 * 1024
"""Bytes of a JSON reply that are looked at; a longer one passes unread."""
MAX_SSE = 256 * 1024
MAX_HTML = 64 * 1024
_EARLY_TRIES = 16
"""Times that a JSON document is tried before its end is known: bounds the work on a body in thousands of pieces."""
_CLOSERS = frozenset(b'}]"')

Extract = Callable[[bytes], Iterable[str]]


class Scanner(Protocol):
    done: bool
    """True when nothing more can come of it."""

    def feed(self, chunk: bytes, more: bool) -> Iterable[str]:
        """The IDs that are readable now that ``chunk`` came. ``more``: the body goes on."""


class JsonScanner:
    """Gives the whole document to ``extract``: at the piece where it first parses or its length is reached, which may
    come long before the server says that the body has ended."""

    __slots__ = ("_buffer", "_extract", "_length", "_limit", "_tries", "done")

    def __init__(
        self, extract: Extract, length: int | None = None, limit: int = MAX_JSON, *, early: bool = True
    ) -> None:
        """``length``: bytes of the body, if announced. ``early``: try before its end is known."""
        self.done = False
        self._extract = extract
        self._length = length
        self._limit = limit
        self._tries = _EARLY_TRIES if early else 0
        self._buffer = bytearray()

    def feed(self, chunk: bytes, more: bool) -> Iterable[str]:
        if self.done:
            return ()
        buffer = self._buffer
        if len(buffer) + len(chunk) > self._limit:
            self.done = True
            return ()
        buffer += chunk
        ended = not more or (self._length is not None and len(buffer) >= self._length)
        if not ended:
            tail = buffer[-16:].rstrip()
            if not tail or tail[-1] not in _CLOSERS or self._tries == 0:
                return ()
            self._tries -= 1
        found = tuple(self._extract(bytes(buffer)))
        self.done = ended or bool(found)
        return found


class EventScanner:
    """Gives the data of each server-sent event to ``extract``, up to ``events`` events that have data."""

    __slots__ = ("_buffer", "_data", "_events", "_extract", "_left", "done")

    def __init__(self, extract: Extract, events: int, limit: int = MAX_SSE) -> None:
        self.done = False
        self._extract = extract
        self._events = events
        self._left = limit
        self._buffer = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes, more: bool) -> Iterable[str]:
        if self.done:
            return ()
        self._left -= len(chunk)
        if self._left < 0:
            self.done = True
            return ()
        buffer = self._buffer + chunk
        # A CR at the very end may be half of a CRLF: it waits for the next piece.
        held = b"\r" if more and buffer.endswith(b"\r") else b""
        lines = re.split(rb"\r\n|\n|\r", buffer[: len(buffer) - len(held)])
        self._buffer = lines.pop() + held
        if not more and self._buffer:
            lines += [self._buffer, b""]
        found: list[str] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                data = b"\n".join(self._data)
                self._data.clear()
                if data.strip():
                    found.extend(self._extract(data))
                    self._events -= 1
                    if self._events == 0:
                        self.done = True
                        break
        return found


class PatternScanner:
    """The first match of ``pattern``, whose group 1 is the ID, in the first ``limit`` bytes."""

    __slots__ = ("_buffer", "_limit", "_pattern", "done")

    def __init__(self, pattern: re.Pattern[bytes], limit: int = MAX_HTML) -> None:
        self.done = False
        self._pattern = pattern
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, chunk: bytes, more: bool) -> Iterable[str]:
        if self.done:
            return ()
        start = max(0, len(self._buffer) - 1024)
        self._buffer += chunk[: self._limit - len(self._buffer)]
        match = self._pattern.search(self._buffer, start)
        self.done = match is not None or not more or len(self._buffer) >= self._limit
        return (match.group(1).decode("latin-1"),) if match is not None else ()


class Unpacked:
    """A bounded decompressed copy for the scanner behind it."""

    __slots__ = ("_inner", "_left", "_unpack", "done")

    def __init__(self, inner: Scanner, encoding: str, limit: int = 1024 * 1024) -> None:
        self.done = False
        self._inner = inner
        self._left = limit
        self._unpack: zlib._Decompress | None = zlib.decompressobj(31) if encoding == "gzip" else None

    def feed(self, chunk: bytes, more: bool) -> Iterable[str]:
        if self.done:
            return ()
        if self._unpack is None and chunk:
            # "deflate" is zlib by the standard, raw in some servers: a zlib stream begins with 0x?8.
            self._unpack = zlib.decompressobj(15 if chunk[0] & 0x0F == 8 else -15)
        try:
            plain = self._unpack.decompress(chunk, self._left) if self._unpack is not None else b""
        except zlib.error:
            self.done = True
            return ()
        self._left -= len(plain)
        found = self._inner.feed(plain, more)
        self.done = self._inner.done or self._left <= 0 or not more
        return found


def unpacked(scanner: Scanner, reply: ReplyView) -> Scanner | None:
    """``scanner`` behind whatever the reply is packed in; None if that cannot be read here (br, zstd)."""
    raw = reply.raw(b"content-encoding")
    if raw is None:
        return scanner
    encoding = raw.strip().lower().decode("latin-1")
    if encoding in ("", "identity"):
        return scanner
    return Unpacked(scanner, encoding) if encoding in ("gzip", "deflate") else None


def length_of(reply: ReplyView) -> int | None:
    """The announced length of the body as it is sent (packed, if it is), or None."""
    text = reply.raw(b"content-length")
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else None


def json_scanner(reply: ReplyView, extract: Extract, limit: int = MAX_JSON, *, early: bool = True) -> Scanner | None:
    """A scanner for one JSON document (``early``: it ends where it parses); None if it is longer than ``limit``."""
    length = length_of(reply)
    if length is not None and (length > limit or length == 0):
        return None
    packed = reply.raw(b"content-encoding") not in (None, b"identity")
    return unpacked(JsonScanner(extract, None if packed else length, limit, early=early), reply)
