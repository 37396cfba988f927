"""What one rule finds in one request."""

from __future__ import annotations

from sessionworkers.affinity.carriers import Path, plain
from sessionworkers.affinity.found import NEED_BODY, Found, Named, NeedBody
from sessionworkers.affinity.ids import claim_key
from sessionworkers.affinity.rules import RequestPattern, Rule
from sessionworkers.affinity.views import RequestView


class Examiner:
    """One rule, prepared for many requests."""

    __slots__ = ("_carriers", "_patterns", "_space", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._space = rule.key_space
        self._patterns = (*rule.starts, *rule.ends)
        self._carriers = tuple(
            (index, carrier, carrier.needs_body, isinstance(plain(carrier), Path), getattr(carrier, "read_all", None))
            for index, carrier in enumerate(rule.carriers)
        )

    def reads(self, request: RequestView) -> bool:
        """False for a request that the rule leaves alone."""
        only = self.rule.only
        return not only or any(pattern.matches(request) for pattern in only)

    def find(self, request: RequestView) -> Found | NeedBody | None:
        """The IDs that ``request`` names, in the order of the carriers, each once.

        The body is asked for if it may hold an ID and nothing before it in the rule's order did, or if the request is
        a start or end: those must not name two sessions.
        """
        rule = self.rule
        starts: list[RequestPattern] = []
        ends: list[RequestPattern] = []
        fixed = False
        if self._patterns:
            starts = [pattern for pattern in rule.starts if pattern.matches(request)]
            ends = [pattern for pattern in rule.ends if pattern.matches(request)]
            # POST /v1/sessions/start under path:/v1/sessions/{id}: a request that opens or closes sessions at a fixed
            # path names none in it.
            fixed = any(not pattern.path.has_id and not pattern.path.below for pattern in (*starts, *ends))
        unread = request.body is None
        early = late = False
        named: list[Named] = []
        for index, carrier, needs_body, in_path, many in self._carriers:
            if needs_body and unread:
                if carrier.applies(request):
                    early, late = early or not named, True
                continue
            if fixed and in_path:
                continue
            if many is None:
                read = carrier.read(request)
                if read is None:
                    continue
                reads = (read,)
            else:
                reads = many(request)
            for read in reads:
                if not named or all(each.value != read.value for each in named):
                    named.append(Named(read.value, claim_key(self._space, read.value), index, read.verified))
        if early or (late and any(by_head(pattern, request) for pattern in self._patterns)):
            return NEED_BODY
        if not named:
            return None
        return Found(rule, named[0], tuple(named[1:]), bool(starts), bool(ends) and _ends(rule, request))

    def first(self, request: RequestView) -> Named | None:
        """The first verified ID that can be read without more of the request; for those that join another."""
        unread = request.body is None
        for index, carrier, needs_body, _, _ in self._carriers:
            if not (needs_body and unread):
                read = carrier.read(request)
                if read is not None and read.verified:
                    return Named(read.value, claim_key(self._space, read.value), index)
        return None


def by_head(pattern: RequestPattern, request: RequestView) -> bool:
    """As ``pattern.matches``, but a body that was not read may hold anything."""
    if pattern.body_contains is None or request.body is not None:
        return pattern.matches(request)
    if request.kind != pattern.kind or (pattern.methods and request.method not in pattern.methods):
        return False
    return pattern.path.match(request) is not None


def _ends(rule: Rule, request: RequestView) -> bool:
    if rule.ends_unless_header is None:
        return True
    value = request.header(rule.ends_unless_header)
    return value is None or value.strip().lower() in ("", "0", "false")
