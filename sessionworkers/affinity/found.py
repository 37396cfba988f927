"""What finding a session gives: the ID of a request, and the IDs that its reply tells."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from sessionworkers.affinity.rules import Rule


@dataclass(slots=True)
class Named:
    """An ID as a request names it. ``key`` is its claim key, ``carrier`` the index in the rule's carriers."""

    value: str
    key: str
    carrier: int
    verified: bool = True


@dataclass(slots=True)
class Found:
    """The session that a request names. ``also``: other, different IDs of the same rule. ``joins``: IDs of other rules
    whose clients mint them; they join the owner.

    With ``candidates`` nothing is certain: the first of them that is claimed is the ``primary``; if none is,
    ``otherwise`` is what the request names (None: nothing).
    """

    rule: Rule
    primary: Named
    also: tuple[Named, ...] = ()
    start: bool = False
    end: bool = False
    joins: tuple[tuple[Rule, Named], ...] = ()
    candidates: tuple[Named, ...] = ()
    otherwise: Found | None = None
    recalled: bool = False
    """It came from memory, as it will again: nothing but the request's head is needed to find it."""


class NeedBody(enum.Enum):
    """The ID may stand in the body, which was not read: read it, set ``request.body``, ask again."""

    NEED_BODY = "need body"


NEED_BODY: Final = NeedBody.NEED_BODY


@dataclass(slots=True)
class Learned:
    """An ID that a reply tells. ``strict``: the app minted it here and now, so another worker's claim on it is a
    conflict; otherwise it may be a mere mention (a list, an echo) and never refuses anything. ``source``: where it
    stood, for inferred ones."""

    rule: Rule
    value: str
    key: str
    strict: bool
    source: str = ""
