"""The bodies of the session routes: read and checked as the page has them, refused with 422 and a reason. No I/O.

``POST /session/create``: ``{auth_data, payload: {lifetime, on_close_route, on_close_payload, cost}}``. The key
``auth_data`` must be there; ``null`` asks the server to mint a credential. The other three: ``{session_id,
session_auth}``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from dataclasses import dataclass
from typing import Any, Final

from sessionworkers.ledger.answers import Refused

DEFAULT_COST: Final = 100.0
"""Workload of a session that names none, and of a request without a cost of its own: the page's default."""

MAX_COST: Final = 1e15


@dataclass(frozen=True)
class Wanted:
    """A create that may go ahead. ``auth_data`` None: the server mints the credential. Times are seconds."""

    auth_data: dict[str, Any] | None
    lifetime: float
    cost: float
    on_close_route: str | None
    on_close_payload: Any


@dataclass(frozen=True)
class Credentials:
    """What end, get and health are asked with. ``auth`` None: none was sent, which is never right."""

    session_id: str
    auth: bytes | None


def malformed(error: str, detail: str) -> Refused:
    """A 422."""
    return Refused(422, error, detail)


def decode(body: bytes) -> Any:
    """The JSON in ``body``: UTF-8, finite numbers. Raises `Refused` (422) for anything else, never anything more."""
    try:
        return json.loads(body.decode(), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        raise malformed("invalid JSON", "the body is not JSON") from None


def parse_create(body: bytes, *, lifetime: float, max_lifetime: float) -> Wanted:
    """Check a create. ``lifetime`` is the default, ``max_lifetime`` the largest allowed (seconds)."""
    document = _object(decode(body))
    if "auth_data" not in document:
        raise malformed("missing auth_data", "auth_data: an object, or null to have the credential minted")
    auth_data, payload = document["auth_data"], document.get("payload")
    if auth_data is not None and not (isinstance(auth_data, dict) and auth_data):
        raise malformed("auth_data is not valid", "auth_data must be an object that is not empty, or null")
    if not isinstance(payload, dict):
        raise malformed("missing payload", "payload: an object")
    wanted = _number(payload.get("lifetime", lifetime), "lifetime")
    if not 0 < wanted <= max_lifetime:
        raise malformed("lifetime is not valid", f"lifetime must be above 0 and at most {max_lifetime:g} seconds")
    cost = (auth_data or {}).get("cost", payload.get("cost", DEFAULT_COST))
    cost = _number(cost, "cost")
    if not 0 <= cost <= MAX_COST:
        raise malformed("cost is not valid", "cost must be a number that is not negative")
    route = payload.get("on_close_route")
    if route is not None and not isinstance(route, str):
        raise malformed("on_close_route is not valid", "on_close_route must be a string")
    return Wanted(auth_data, wanted, cost, route or None, payload.get("on_close_payload") if route else None)


def parse_credentials(body: bytes) -> Credentials:
    """Check the body of end, get or health."""
    document = _object(decode(body))
    session_id = document.get("session_id")
    if session_id is None or session_id == "":
        raise malformed("missing session_id", "session_id: the ID that create gave")
    if isinstance(session_id, int) and not isinstance(session_id, bool):
        session_id = str(session_id)  # simply unknown, as any other ID that was never given
    if not isinstance(session_id, str):
        raise malformed("session_id is not valid", "session_id must be a string")
    auth = document.get("session_auth")
    return Credentials(session_id, None if auth is None else digest(auth))


def digest(auth: Any) -> bytes:
    """32 bytes that are equal for equal JSON values: keys in any order, ``100`` and ``100.0`` alike."""
    text = json.dumps(_canonical(auth), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def same(one: bytes | None, other: bytes) -> bool:
    """Compare two digests in constant time; None is equal to nothing."""
    return one is not None and hmac.compare_digest(one, other)


def hook_body(payload: Any, session_id: str) -> bytes:
    """The hook's body: the payload with ``session_id`` added unless it is there."""
    document: dict[str, Any]
    if payload is None:
        document = {}
    elif isinstance(payload, dict):
        document = dict(payload)
    else:
        document = {"payload": payload}
    document.setdefault("session_id", session_id)
    return json.dumps(document).encode()


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _canonical(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise malformed("invalid body", "the body must be a JSON object")
    return document


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise malformed(f"{name} is not valid", f"{name} must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise malformed(f"{name} is not valid", f"{name} must be a finite number")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _no_constant(text: str) -> float:
    raise ValueError(text)  # NaN, Infinity: Python's own extensions
