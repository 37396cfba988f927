"""Grants that a platform signs: RSA PKCS#1 v1.5 with SHA-256 over the grant's URL, checked with its public key.

What is signed is ``{"url": …}`` alone, as JSON with sorted keys and an indent of 4 (facts of the real worker: cost,
endpoint and numbers of a grant are not signed). Checking needs the public key only, which is arithmetic on public
numbers, so it is done here without a library. No I/O.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from typing import Any

_PEM = re.compile(r"-----BEGIN (RSA )?PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END (?:RSA )?PUBLIC KEY-----")
_RSA = bytes.fromhex("2a864886f70d010101")  # rsaEncryption, 1.2.840.113549.1.1.1
_SHA256 = bytes.fromhex("3031300d060960864801650304020105000420")  # DigestInfo for SHA-256, RFC 8017 section 9.2


def read_key(value: str) -> GrantKey:
    """The key in ``value``, PEM text or the path of a file with it. ValueError, OSError."""
    if "-----BEGIN" in value:
        return GrantKey(value)
    with open(value, encoding="ascii", errors="replace") as file:
        return GrantKey(file.read(64 * 1024))


class GrantKey:
    """A platform's public key."""

    def __init__(self, pem: str) -> None:
        """``pem``: PEM text of an RSA public key of 2048 bits or more. ValueError with the reason."""
        match = _PEM.search(pem)
        if match is None:
            raise ValueError("not a public key in PEM form")
        try:
            data = base64.b64decode("".join(match[2].split()), validate=True)
            outer, _ = _read(data, 0x30)
            if match[1] is None:
                algorithm, rest = _read(outer, 0x30)
                oid, _ = _read(algorithm, 0x06)
                if oid != _RSA:
                    raise ValueError("not an RSA key")
                bits, _ = _read(rest, 0x03)
                outer, _ = _read(bits[1:], 0x30)
            modulus, rest = _read(outer, 0x02)
            exponent, _ = _read(rest, 0x02)
        except (binascii.Error, IndexError) as error:
            raise ValueError(f"not a public key: {error}") from None
        self._n = int.from_bytes(modulus, "big")
        self._e = int.from_bytes(exponent, "big")
        self._size = (self._n.bit_length() + 7) // 8
        if self._n.bit_length() < 2048 or self._e < 3 or self._e % 2 == 0:
            raise ValueError("an RSA key of 2048 bits or more is needed")

    def signed(self, auth_data: Any) -> bool:
        """True if ``auth_data`` holds a ``signature`` of its ``url`` by this key."""
        if not isinstance(auth_data, dict):
            return False
        url, signature = auth_data.get("url"), auth_data.get("signature")
        if not isinstance(url, str) or not isinstance(signature, str):
            return False
        try:
            raw = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return False
        return self.verify(json.dumps({"url": url}, indent=4, sort_keys=True).encode("utf-8", "surrogatepass"), raw)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """RSASSA-PKCS1-v1_5 with SHA-256: the whole padded block is compared, never parsed."""
        number = int.from_bytes(signature, "big")
        if len(signature) != self._size or number >= self._n:
            return False
        info = _SHA256 + hashlib.sha256(message).digest()
        wanted = b"\x00\x01" + b"\xff" * (self._size - len(info) - 3) + b"\x00" + info
        return hmac.compare_digest(pow(number, self._e, self._n).to_bytes(self._size, "big"), wanted)


def _read(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """The content of the DER value at the front of ``data``, and what follows it."""
    if len(data) < 2 or data[0] != tag:
        raise ValueError("not an RSA public key")
    size, at = data[1], 2
    if size & 0x80:
        count = size & 0x7F
        if not 1 <= count <= 4:
            raise ValueError("not an RSA public key")
        size, at = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if len(data) < at + size:
        raise ValueError("cut off")
    return data[at : at + size], data[at + size :]
