"""What the accepting side found travels with the request, so that the owner need not look for it again.

``[rule name, start, end, primary, [other IDs], [[rule name, joining ID] …]]``, each ID as ``[value, key, carrier,
verified]``. Between two releases during a rolling restart a rule may be unknown: then the owner looks by itself.
"""

from __future__ import annotations

from typing import Any

from sessionworkers.affinity.rules import Rule
from sessionworkers.affinity.ruleset import Found, Named, NeedBody, RuleSet
from sessionworkers.affinity.views import RequestView


def encode(found: Found) -> dict[str, Any]:
    """``found`` as plain data."""
    return {
        "found": [
            found.rule.name,
            found.start,
            found.end,
            _pack(found.primary),
            [_pack(named) for named in found.also],
            [[rule.name, _pack(named)] for rule, named in found.joins],
        ]
    }


def encode_placed(found: Found | None) -> dict[str, Any]:
    """A request whose session is to begin on the worker that gets it; ``found`` None: it names no session."""
    return {**(encode(found) if found is not None else {"found": None}), "placed": True}


def decode(meta: dict[str, Any], rules: RuleSet, request: RequestView) -> Found | None:
    """What `encode` packed, or what the request's head tells where this worker does not know the rule."""
    packed = meta.get("found")
    if packed is None and meta.get("placed"):
        return None
    if packed is not None:
        name, start, end, primary, also, joins = packed
        rule = rules.named(name)
        if rule is not None:
            known = [(rules.named(joined), named) for joined, named in joins]
            joining: tuple[tuple[Rule, Named], ...] = tuple(
                (joined, _unpack(named)) for joined, named in known if joined is not None
            )
            return Found(rule, _unpack(primary), tuple(_unpack(each) for each in also), start, end, joining)
    found = rules.find(request)
    return None if isinstance(found, NeedBody) else found


def _pack(named: Named) -> list[Any]:
    return [named.value, named.key, named.carrier, named.verified]


def _unpack(packed: list[Any]) -> Named:
    value, key, carrier, verified = packed
    return Named(value, key, carrier, verified)
