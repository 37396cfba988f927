"""Where a close hook may be posted to. No I/O: what a name resolves to is asked elsewhere and judged here.

A route that is no URL is a path below the base URL, or of this app itself. An absolute URL comes from a client, so it
reaches nothing but what the operator listed: host names, or networks in which *every* address of the host must lie.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PLAIN = re.compile(r"[\x21-\x7e]{1,2048}")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Target:
    """``host`` None: this app itself. ``path``: path and query as they go on the wire. ``named``: listed by name."""

    host: str | None
    port: int
    tls: bool
    path: str
    named: bool = True


class HookAllow:
    """The operator's list. ``entries``: host names (with ``:port`` to allow one port only), addresses or networks."""

    def __init__(self, entries: Iterable[str]) -> None:
        """ValueError for an entry that is neither."""
        self._names: set[tuple[str, int | None]] = set()
        self._networks: list[_Network] = []
        for entry in entries:
            try:
                self._networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
                continue
            except ValueError:
                pass
            host, colon, port = entry.partition(":")
            if not _HOST.fullmatch(host) or (colon and not (port.isdigit() and 0 < int(port) < 65536)):
                raise ValueError(f"{entry!r} is no host name, address or network")
            self._names.add((host.lower(), int(port) if colon else None))

    def names(self, host: str, port: int) -> bool:
        """True if ``host`` itself is listed."""
        return (host, None) in self._names or (host, port) in self._names

    def covers(self, addresses: Sequence[str]) -> bool:
        """True if every one of the addresses lies in a listed network, and there is one."""
        return bool(addresses) and all(self._within(each) for each in addresses)

    def may_resolve(self) -> bool:
        """True if a host that is not listed by name may still be allowed by its addresses."""
        return bool(self._networks)

    def _within(self, text: str) -> bool:
        address: _Address = ipaddress.ip_address(text.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        address = mapped if mapped is not None else address
        return any(address.version == each.version and address in each for each in self._networks)


def parse_target(route: str, base: str | None, allow: HookAllow) -> Target:
    """Where ``route`` leads. ValueError, with the reason, for what may not be posted to whatever it resolves to."""
    if not _PLAIN.fullmatch(route) or "\\" in route:
        raise ValueError("on_close_route must be a path or a URL of visible ASCII characters")
    if _ABSOLUTE.match(route) is None:
        path = "/" + route.lstrip("/")
        if base is None:
            return Target(None, 0, False, path.partition("#")[0])
        host, port, tls, front = split_base(base)
        return Target(host, port, tls, front + path.partition("#")[0])
    host, port, tls, path = _split(route)
    if allow.names(host, port):
        return Target(host, port, tls, path or "/")
    try:
        literal: str | None = str(ipaddress.ip_address(host))
    except ValueError:
        literal = None
    if literal is not None and not allow.covers([literal]):
        raise ValueError("on_close_route leads to an address that is not allowed (--hook-allow)")
    if literal is None and not allow.may_resolve():
        raise ValueError("on_close_route leads to a host that is not allowed (--hook-allow)")
    return Target(host, port, tls, path or "/", named=False)


def split_base(url: str) -> tuple[str, int, bool, str]:
    """(host, port, TLS, path without a slash at its end) of the operator's base URL. ValueError."""
    host, port, tls, path = _split(url)
    if "?" in path:
        raise ValueError("a base URL has no query")
    return host, port, tls, path.rstrip("/")


def _split(url: str) -> tuple[str, int, bool, str]:
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("http", "https"):
        raise ValueError("only http and https can be posted to")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise ValueError("a URL with a user name or password is not posted to")
    host = (parts.hostname or "").rstrip(".").lower()
    if not host or not (_HOST.fullmatch(host) or ":" in host):
        raise ValueError("the URL names no host")
    tls = parts.scheme.lower() == "https"
    port = parts.port if parts.port is not None else (443 if tls else 80)
    return host, port, tls, parts.path + (f"?{parts.query}" if parts.query else "")
