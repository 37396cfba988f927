"""The rule, as one table: what to do with a request, given what it names and who holds the claim.

DESIGN, *The rule*. No I/O: whoever calls has looked the claims up. Each row of `TABLE` is one line of the design's
table; the first row that fits decides, and a combination that no row covers raises.

=========  ==========  ===========================  ======================================================
arrived    names       claim                        answer
=========  ==========  ===========================  ======================================================
private    any         mine, none                   HERE: a claim may have ended while the request travelled
private    any         another's, gone              NOT_MINE (a start: CONFLICT); never a second hop
public     nothing     --                           HERE, and the reply is watched
public     conflict    --                           CONFLICT (409): two IDs, two owners, on a start or end
public     an ID       mine                         HERE, no file is read
public     an ID       another live worker's        HOP
public     an ID       a dead worker's              GONE; an inferred ID: HERE
public     an ID       none                         HERE; claimed on sight where clients mint the ID
=========  ==========  ===========================  ======================================================
"""

from __future__ import annotations

import enum

from sessionworkers.affinity.rules import Mint
from sessionworkers.affinity.ruleset import Found, Named


class Arrival(enum.Enum):
    """Which socket the request came by. Known by the socket itself, never by a header."""

    PUBLIC = "public"
    PRIVATE = "private"


class Names(enum.Enum):
    """What the request names. A malformed ID is no ID."""

    NOTHING = "nothing"
    AN_ID = "an ID"
    CONFLICT = "two IDs with two owners"


class Claim(enum.Enum):
    """Who holds the claim. *None* (unknown) is not *gone*."""

    NONE = "none"
    MINE = "mine"
    OTHER = "another live worker's"
    GONE = "a dead worker's"


class Answer(enum.Enum):
    """What to do. Closed: whoever switches over it ends with a branch that raises."""

    HERE = "handle here"
    HOP = "hop to the owner"
    GONE = "the rule's gone answer"
    CONFLICT = "409"
    NOT_MINE = "refuse: not mine"


def decide(arrival: Arrival, names: Names, claim: Claim, *, inferred: bool = False, start: bool = False) -> Answer:
    """The answer to a request. ``inferred``: the ID was found by `auto`; ``start``: the request opens a session."""
    if arrival is Arrival.PRIVATE:
        if claim in (Claim.MINE, Claim.NONE):
            return Answer.HERE
        return Answer.CONFLICT if start else Answer.NOT_MINE
    if names is Names.NOTHING:
        return Answer.HERE
    if names is Names.CONFLICT:
        return Answer.CONFLICT
    if claim in (Claim.MINE, Claim.NONE):
        return Answer.HERE
    if claim is Claim.OTHER:
        return Answer.HOP
    if claim is Claim.GONE:
        return Answer.HERE if inferred else Answer.GONE
    raise AssertionError(f"no row for {arrival}, {names}, {claim}")


def claims_on_sight(found: Found, named: Named) -> bool:
    """True if an unclaimed ID is claimed because the request carries it.

    Only where clients mint the ID: the rule says so, a typed start or end names it in its body, or a verified token
    does. Everything else waits for the reply to show that the app used the ID, so that made-up IDs cost nothing.
    """
    carrier = found.rule.carriers[named.carrier]
    if found.rule.mint is Mint.CLIENT:
        return True
    if (found.start or found.end) and carrier.needs_body:
        return True
    return named.verified and carrier.word.startswith("token:") and getattr(carrier, "secrets", None) not in (None, ())


def refuses_late_start(found: Found) -> bool:
    """True if a start with this ID is refused within the window after the session's end.

    Only for IDs that the client mints: a browser may well log in again with the cookie of an ended session.
    """
    return found.start and found.rule.refuse_late_start and claims_on_sight(found, found.primary)
