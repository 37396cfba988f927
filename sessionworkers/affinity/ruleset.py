"""The rules of a server, in order: find the session that a request names, and say what its reply may tell.

`RuleSet.find` is on every request's way. It first looks at what costs next to nothing (`RequestInterest`) and asks only
the rules that may apply: none on most requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sessionworkers.affinity.auto import Auto
from sessionworkers.affinity.examine import Examiner, by_head
from sessionworkers.affinity.found import NEED_BODY, Found, Learned, Named, NeedBody
from sessionworkers.affinity.ids import MAX_ID
from sessionworkers.affinity.interest import ReplyInterest, RequestInterest
from sessionworkers.affinity.learners import Learner, Place
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.rules import Mint, Rule
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.watch import ReplyWatch

__all__ = ["NEED_BODY", "Found", "Learned", "Named", "NeedBody", "ReplyWatch", "RuleSet"]


class RuleSet:
    """``rules`` in order, first match first; ``auto`` last; ``no_routing`` paths, and all below, are left alone."""

    def __init__(
        self, rules: Sequence[Rule], auto: Auto | None = None, no_routing: Sequence[PathTemplate] = ()
    ) -> None:
        self.rules = tuple(rules)
        self.auto = auto
        self._off = tuple(no_routing)
        self._named = {rule.name: rule for rule in self.rules}
        if auto is not None:
            self._named |= {rule.name: rule for rule in (auto.rule, auto.sight)}
        self.interest = RequestInterest(self.rules, auto is not None)
        self._asked = tuple((1 << number, rule, Examiner(rule)) for number, rule in enumerate(self.rules))
        self._clients = tuple(each for each in self._asked if each[1].mint is Mint.CLIENT and not each[1].tentative)
        self._starting = tuple(rule for rule in self.rules if rule.starts)
        self._patterns = tuple(pattern for rule in self.rules for pattern in (*rule.starts, *rule.ends))
        self.learners: tuple[tuple[Rule, Learner], ...] = tuple(
            (rule, learner) for rule in self.rules for learner in rule.learners
        )
        self.head_learners = tuple(each for each in self.learners if each[1].place is Place.HEAD)
        self.body_learners: dict[str, tuple[tuple[Rule, Learner], ...]] = {
            kind: tuple(each for each in self.learners if kind in each[1].kinds)
            for kind in ("json", "events", "text", "html")
        }
        self.messages = auto is not None or len(self.head_learners) < len(self.learners)
        self.reply_interest = ReplyInterest([learner for _, learner in self.learners], auto is not None)
        self.by_headers = frozenset(self._by_headers())
        """Names of the rules for which headers decide alone, where nothing in path and query concerns any rule."""
        self._limits = {rule.name: max([MAX_ID, *_limits(rule)]) for rule in self.rules}

    def _by_headers(self) -> Iterator[str]:
        if self._off or any(rule.only for _, rule, _ in self._clients):
            return
        for rule in self.rules:
            if rule.only:
                return  # it comes first for some paths, and not for others
            if not rule.starts and not rule.ends:
                yield rule.name

    def untelling(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """The kind of the body ("" for none) of a reply whose ``headers`` tell no ID and whose body no rule reads:
        `auto` still may. None of any other."""
        in_head, kind = self.reply_interest.glance(headers)
        if in_head or (self.body_learners and self.body_learners.get(kind)):
            return None
        return kind

    # requests

    def find(self, request: RequestView) -> Found | NeedBody | None:
        """The session that ``request`` names; `NEED_BODY` if that cannot be said before its body was read."""
        mask = self.interest.look(request)
        return self._find(request, mask)

    def instead(self, request: RequestView, found: Found) -> Found | None:
        """What else ``request`` names, for an unclaimed ``found`` that a client minted: if that is claimed, the request
        belongs there and ``found`` joins it. (A browser's new tab brings an ID of its own and the login's cookie.)"""
        mask = self.interest.look(request)
        for bit, rule, _ in self._asked:
            mask &= ~bit
            if rule is found.rule:
                break
        other = self._find(request, mask)
        if not isinstance(other, Found) or other.rule.key_space == found.rule.key_space:
            return None
        each: Found | None = other
        while each is not None:
            each.joins = ((found.rule, found.primary), *each.joins)
            each = each.otherwise
        return other

    def _find(self, request: RequestView, mask: int) -> Found | NeedBody | None:
        candidates: list[Named] = []
        tentative: Rule | None = None
        found: Found | NeedBody | None = None
        if mask & self.interest.rules:
            for bit, rule, examiner in self._asked:
                if not mask & bit or not examiner.reads(request):
                    continue
                found = examiner.find(request)
                if found is None:
                    continue
                if not rule.tentative or not isinstance(found, Found):
                    break
                tentative = tentative or rule
                candidates += (found.primary, *found.also)
                found = None
        if isinstance(found, NeedBody):
            return found
        if found is not None:
            found.joins = self._joins(request, found, mask)
        elif self.auto is not None:
            other = self.auto.find(request, mask & self.interest.session != 0)
            if tentative is None or isinstance(other, NeedBody):
                return other
            if other is not None:
                candidates += other.candidates
                found = other.otherwise if other.candidates else other
        if tentative is None:
            return found
        return Found(tentative, candidates[0], candidates=tuple(candidates), otherwise=found)

    def _joins(self, request: RequestView, found: Found, mask: int) -> tuple[tuple[Rule, Named], ...]:
        joins: list[tuple[Rule, Named]] = []
        for bit, rule, examiner in self._clients:
            if mask & bit and rule.key_space != found.rule.key_space and examiner.reads(request):
                named = examiner.first(request)
                if named is not None:
                    joins.append((rule, named))
        return tuple(joins)

    def named(self, name: str) -> Rule | None:
        """The rule of that name, `auto`'s included."""
        return self._named.get(name)

    def off(self, request: RequestView) -> bool:
        """True for a path that is not routed."""
        return any(path.covers(request) for path in self._off) if self._off else False

    def start_without_id(self, request: RequestView) -> Rule | None:
        """The first rule that knows ``request`` as a start; ask it when the request names no ID."""
        for rule in self._starting:
            for pattern in rule.starts:
                if pattern.matches(request):
                    return rule
        return None

    def start_or_end(self, request: RequestView) -> bool:
        """True if some rule knows ``request`` as a start or end, as far as its head tells."""
        return any(by_head(pattern, request) for pattern in self._patterns)

    # replies

    def watch(self, request: RequestView, found: Found | None) -> ReplyWatch | None:
        """What watches the reply; None if no reply to this request can teach or confirm anything."""
        if found is None and self.auto is None and not self.learners:
            return None
        return ReplyWatch(self, request, found)

    def limit(self, rule: Rule) -> int:
        """Bytes of a learned ID."""
        return self._limits.get(rule.name, MAX_ID)


def _limits(rule: Rule) -> list[int]:
    # A signed cookie's or token's limit bounds what is around the ID, not the ID.
    return [carrier.limit for carrier in rule.carriers if not hasattr(carrier, "secrets")]
