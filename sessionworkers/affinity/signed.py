"""Signed values that hold an ID: Starlette's session cookie and itsdangerous tokens, read with or without the secret.

The signed text changes with every reply (it holds a time), so the ID inside is the key. itsdangerous derives the key
and keeps the time; the digest is computed here, because its own way costs several times as much per request.

Cookie (``SessionMiddleware``): ``base64(JSON) "." time "." signature``, ``TimestampSigner`` with its default salt.
Token (``URLSafeSerializer``): ``base64url(JSON) "." signature``; a leading dot says that the JSON is zlib-compressed.
"""

from __future__ import annotations

import binascii
import hmac
import zlib
from base64 import b64decode
from collections.abc import Sequence

from itsdangerous import Signer, TimestampSigner

from sessionworkers.affinity.documents import MISSING, decode
from sessionworkers.affinity.ids import looks_random
from sessionworkers.affinity.names import is_session_key, normal_key

DAY = 86_400
COOKIE_MAX_AGE = 14 * DAY
"""Starlette's default, in seconds."""
_KNOWN = 512
_KNOWN_SIZE = 1024
"""Cookies that are remembered opened, and how long such a one may be: browsers send the same one many times."""
MAX_PAYLOAD = 64 * 1024
"""Bytes that a compressed payload may unpack to."""

_URL_ALPHABET = bytes.maketrans(b"-_", b"+/")
_FIRST = ("session_id", "sessionId", "sid", "session")


def _unbase64(data: bytes) -> bytes:
    """Both alphabets, padded or not. ValueError if it is neither."""
    data = data.translate(_URL_ALPHABET).rstrip(b"=")
    return b64decode(data + b"=" * (-len(data) % 4))


def payload(data: bytes) -> object:
    """The JSON value that base64 ``data`` holds, compressed if it begins with a dot; MISSING if it holds none."""
    try:
        if data.startswith(b"."):
            unpack = zlib.decompressobj()
            text = unpack.decompress(_unbase64(data[1:]), MAX_PAYLOAD)
            if unpack.unconsumed_tail:
                return MISSING
        else:
            text = _unbase64(data)
    except (ValueError, binascii.Error, zlib.error):
        return MISSING
    return decode(text)


class SignedCookie:
    """Opens session cookies. ``secrets`` empty: nothing can be verified, everything well-formed is read."""

    __slots__ = ("_clock", "_keys", "_known", "max_age")

    def __init__(self, secrets: Sequence[str] = (), max_age: int | None = COOKIE_MAX_AGE) -> None:
        signers = [TimestampSigner(secret) for secret in secrets]
        self._keys = [signer.derive_key() for signer in signers]
        self._clock = signers[0] if signers else None
        self.max_age = max_age
        self._known: dict[str, tuple[object, bool, int]] = {}

    def open(self, value: str) -> tuple[object, bool]:
        """The payload and whether a secret vouches for it; MISSING for anything that the app would not accept."""
        known = self._known.get(value)
        if known is None:
            known = self._open(value)
            if known[0] is not MISSING and len(value) <= _KNOWN_SIZE:
                if len(self._known) >= _KNOWN:
                    self._known.clear()
                self._known[value] = known
        document, verified, made = known
        if verified and self.max_age is not None and self._clock is not None:
            age = self._clock.get_timestamp() - made
            if age > self.max_age or age < 0:
                return MISSING, False
        return document, verified

    def _open(self, value: str) -> tuple[object, bool, int]:
        """As `open`, whatever its age, with the time when it was made."""
        try:
            data = value.encode("ascii")
        except UnicodeEncodeError:
            return MISSING, False, 0
        signed, found, signature = data.rpartition(b".")
        body, found_too, stamp = signed.rpartition(b".")
        if not (found and found_too and body):
            return MISSING, False, 0
        if self._clock is None:
            return payload(body), False, 0
        if not _vouched(self._keys, signed, signature):
            return MISSING, False, 0
        try:
            made = int.from_bytes(_unbase64(stamp), "big")
        except ValueError:
            return MISSING, False, 0
        return payload(body), True, made


class SignedToken:
    """Opens ``URLSafeSerializer`` tokens made with ``salt``. They never expire."""

    __slots__ = ("_keys",)

    def __init__(self, secrets: Sequence[str], salt: str) -> None:
        self._keys = [Signer(secret, salt=salt).derive_key() for secret in secrets]

    def open(self, value: str) -> tuple[object, bool]:
        """As :meth:`SignedCookie.open`."""
        try:
            data = value.encode("ascii")
        except UnicodeEncodeError:
            return MISSING, False
        body, found, signature = data.rpartition(b".")
        if not found or not body:
            return MISSING, False
        if not self._keys:
            return payload(body), False
        return (payload(body), True) if _vouched(self._keys, body, signature) else (MISSING, False)


def _vouched(keys: Sequence[bytes], signed: bytes, signature: bytes) -> bool:
    try:
        given = _unbase64(signature)
    except (ValueError, binascii.Error):
        return False
    return any(hmac.compare_digest(hmac.digest(key, signed, "sha1"), given) for key in keys)


def pick(document: object, field: str) -> str | None:
    """The ID that a payload holds under ``field``: ``a|b`` takes the first that is there, a payload that is a bare
    string is the ID itself, ``*`` finds it: ``session_id``, ``sid`` and the like, or the only random-looking value
    under a session-like key. None if there is none: the cookie holds the session itself."""
    if isinstance(document, str):
        return document
    if not isinstance(document, dict):
        return None
    if field != "*":
        for name in field.split("|"):
            value = document.get(name)
            if isinstance(value, str) and value:
                return value
        return None
    for name in _FIRST:
        value = document.get(name)
        if isinstance(value, str) and looks_random(value):
            return value
    found = {
        value
        for key, value in document.items()
        if isinstance(value, str) and (is_session_key(key) or normal_key(key) == "id") and looks_random(value)
    }
    return found.pop() if len(found) == 1 else None
