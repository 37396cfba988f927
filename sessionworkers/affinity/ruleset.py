"""The rules of a server, in order: find the session that a request names, and say what its reply may tell.

`RuleSet.find` is on every request's way. It first looks at what costs next to nothing (header names, texts in path and
query) and leaves a bit per rule that may apply; only those rules are then asked, and none on most requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessionworkers.affinity.auto import Auto
from sessionworkers.affinity.carriers import Path, may_have_json, plain
from sessionworkers.affinity.found import NEED_BODY, Found, Learned, Named, NeedBody
from sessionworkers.affinity.ids import MAX_ID, claim_key
from sessionworkers.affinity.learners import FromCookie, FromHeader, FromLocation, FromStarletteCookie, Learner, Place
from sessionworkers.affinity.names import is_session_header
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.rules import Mint, RequestPattern, Rule
from sessionworkers.affinity.views import ReplyView, RequestView, kind_of
from sessionworkers.affinity.watch import BODY, HEAD, ReplyWatch

__all__ = ["NEED_BODY", "Found", "Learned", "Named", "NeedBody", "ReplyWatch", "RuleSet"]

_MOST_NAMES = 4096


class _HeaderBits(dict[bytes, int]):
    """Header name → bits of what it concerns. Names that were not named are judged once and remembered."""

    def __init__(self, prefixes: Sequence[tuple[bytes, int]], session_bit: int) -> None:
        self.prefixes = prefixes
        self.session_bit = session_bit

    def __missing__(self, name: bytes) -> int:
        bits = self.session_bit if is_session_header(name) else 0
        for prefix, bit in self.prefixes:
            if name.startswith(prefix):
                bits |= bit
        if len(self) < _MOST_NAMES:
            self[name] = bits
        return bits


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
        self._bits = tuple((1 << index, rule) for index, rule in enumerate(self.rules))
        self._client_bits = tuple(
            (bit, rule) for bit, rule in self._bits if rule.mint is Mint.CLIENT and not rule.tentative
        )
        self._starting = tuple(rule for rule in self.rules if rule.starts)
        self._patterns = tuple(pattern for rule in self.rules for pattern in (*rule.starts, *rule.ends))
        self.learners: tuple[tuple[Rule, Learner], ...] = tuple(
            (rule, learner) for rule in self.rules for learner in rule.learners
        )
        self.messages = auto is not None or any(learner.place is not Place.HEAD for _, learner in self.learners)
        self.head_learners = tuple(each for each in self.learners if each[1].place is Place.HEAD)
        self.body_learners: dict[str, tuple[tuple[Rule, Learner], ...]] = {
            kind: tuple(each for each in self.learners if kind in each[1].kinds)
            for kind in ("json", "events", "text", "html")
        }
        self._limits = {rule.name: max([MAX_ID, *_token_free_limits(rule)]) for rule in self.rules}
        self._hint()
        self._reply_hints()

    def _hint(self) -> None:
        self._rule_bits = (1 << len(self.rules)) - 1
        self._session_bit = 1 << len(self.rules) if self.auto is not None else 0
        headers: dict[bytes, int] = {}
        prefixes: list[tuple[bytes, int]] = []
        queries: dict[bytes, int] = {}
        paths: dict[str, int] = {}
        self._body_bits = 0
        for bit, rule in self._bits:
            for carrier in rule.carriers:
                for hint in carrier.hints:
                    if hint.kind == "header":
                        headers[hint.header] = headers.get(hint.header, 0) | bit
                    elif hint.kind == "prefix":
                        prefixes.append((hint.header, bit))
                    elif hint.kind == "query":
                        text = hint.text.encode()
                        queries[text] = queries.get(text, 0) | bit
                    elif hint.kind == "path":
                        paths[hint.text] = paths.get(hint.text, 0) | bit
                    else:
                        self._body_bits |= bit
        self._headers = _HeaderBits(prefixes, self._session_bit)
        for name, bits in headers.items():
            self._headers[name] = self._headers[name] | bits
        self._queries = tuple(queries.items())
        self._query_bits = 0
        for bits in queries.values():
            self._query_bits |= bits
        self._paths = tuple(paths.items())

    def _reply_hints(self) -> None:
        names: dict[bytes, int] = {b"content-type": BODY}
        for _, learner in self.learners:
            inner = getattr(learner, "learner", learner)
            if isinstance(inner, FromHeader):
                names[inner.name] = names.get(inner.name, 0) | HEAD
            elif isinstance(inner, (FromCookie, FromStarletteCookie)):
                names[b"set-cookie"] = HEAD
            elif isinstance(inner, FromLocation):
                names[b"location"] = HEAD
        if self.auto is not None:
            names |= {b"set-cookie": HEAD, b"location": HEAD}
        self._reply_names = _HeaderBits((), HEAD if self.auto is not None else 0)
        self._reply_names.update(names)

    # requests

    def find(self, request: RequestView) -> Found | NeedBody | None:
        """The session that ``request`` names; `NEED_BODY` if that cannot be said before its body was read."""
        mask = self._look(request)
        if mask & self._rule_bits:
            found = self._ask(request, mask)
            if found is not None:
                return found
        if self.auto is not None:
            return self.auto.find(request, bool(mask & self._session_bit))
        return None

    def instead(self, request: RequestView, found: Found) -> Found | None:
        """What else ``request`` names, for an unclaimed ``found`` that a client minted: if that is claimed, the request
        belongs there and ``found`` joins it. (A browser's new tab brings an ID of its own and the login's cookie.)"""
        mask = self._look(request)
        later = False
        for bit, rule in self._bits:
            if rule is found.rule or not later:
                mask &= ~bit
            later = later or rule is found.rule
        other = self._ask(request, mask) if mask & self._rule_bits else None
        if other is None and self.auto is not None:
            other = self.auto.find(request, bool(mask & self._session_bit))
        if not isinstance(other, Found) or other.rule.key_space == found.rule.key_space:
            return None
        each: Found | None = other
        while each is not None:
            each.joins = ((found.rule, found.primary), *each.joins)
            each = each.otherwise
        return other

    def _look(self, request: RequestView) -> int:
        """Bits of the rules that may apply, by what costs next to nothing to see."""
        mask = 0
        bits = self._headers
        for name, _ in request.headers:
            mask |= bits[name]
        query = request.query
        if query:
            for text, bit in self._queries:
                if text in query:
                    mask |= bit
            if b"%" in query:
                mask |= self._query_bits  # a name may be spelled with escapes
        path = request.path
        for needle, bit in self._paths:
            if needle in path:
                mask |= bit
        if self._body_bits and may_have_json(request):
            mask |= self._body_bits
        return mask

    def _ask(self, request: RequestView, mask: int) -> Found | NeedBody | None:
        candidates: list[Named] = []
        tentative: Rule | None = None
        found: Found | NeedBody | None = None
        for bit, rule in self._bits:
            if not mask & bit:
                continue
            if rule.only and not any(pattern.matches(request) for pattern in rule.only):
                continue
            found = _examine(rule, request)
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
        if tentative is None:
            return found
        if found is None and self.auto is not None:
            other = self.auto.find(request, bool(mask & self._session_bit))
            if isinstance(other, NeedBody):
                return other
            if other is not None:
                candidates += other.candidates
                found = other.otherwise if other.candidates else other
        return Found(tentative, candidates[0], candidates=tuple(candidates), otherwise=found)

    def _joins(self, request: RequestView, found: Found, mask: int) -> tuple[tuple[Rule, Named], ...]:
        joins: list[tuple[Rule, Named]] = []
        for bit, rule in self._client_bits:
            if not mask & bit or rule.key_space == found.rule.key_space:
                continue
            if rule.only and not any(pattern.matches(request) for pattern in rule.only):
                continue
            for index, carrier in enumerate(rule.carriers):
                if carrier.needs_body and request.body is None:
                    continue
                read = carrier.read(request)
                if read is not None and read.verified:
                    joins.append((rule, Named(read.value, claim_key(rule.key_space, read.value), index)))
                    break
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
        return any(_by_head(pattern, request) for pattern in self._patterns)

    # replies

    def watch(self, request: RequestView, found: Found | None) -> ReplyWatch | None:
        """What watches the reply; None if no reply to this request can teach or confirm anything."""
        if found is None and self.auto is None and not self.learners:
            return None
        return ReplyWatch(self, request, found)

    def reply_interest(self, reply: ReplyView) -> tuple[bool, str]:
        """Whether a header may tell an ID, and the kind of body if that may; "" if it may not."""
        bits = 0
        kind = ""
        names = self._reply_names
        for name, value in reply.headers:
            bit = names[name if name.islower() else name.lower()]
            if bit:
                bits |= bit
                if bit == BODY:
                    kind = kind_of(value)
        return bits & HEAD != 0, kind

    def limit(self, rule: Rule) -> int:
        """Bytes of a learned ID."""
        return self._limits.get(rule.name, MAX_ID)


def _token_free_limits(rule: Rule) -> list[int]:
    # A signed cookie's or token's limit bounds what is around the ID, not the ID.
    return [carrier.limit for carrier in rule.carriers if not hasattr(carrier, "secrets")]


def _by_head(pattern: RequestPattern, request: RequestView) -> bool:
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


def _examine(rule: Rule, request: RequestView) -> Found | NeedBody | None:
    """What ``request`` names under ``rule``. The body is asked for if it may hold an ID and nothing before it in the
    rule's order did, or the request is a start or end: those must not name two sessions."""
    unread = request.body is None
    early = late = False
    starts = [pattern for pattern in rule.starts if pattern.matches(request)] if rule.starts else []
    ends = [pattern for pattern in rule.ends if pattern.matches(request)] if rule.ends else []
    # POST /v1/sessions/start under path:/v1/sessions/{id}: what opens or closes sessions there names none in its path.
    fixed = any(not pattern.path.has_id and not pattern.path.below for pattern in (*starts, *ends))
    named: list[Named] = []
    keys: set[str] = set()
    space = rule.key_space
    for index, carrier in enumerate(rule.carriers):
        if unread and carrier.needs_body:
            if carrier.applies(request):
                early, late = early or not named, True
            continue
        if fixed and isinstance(plain(carrier), Path):
            continue
        many = getattr(carrier, "read_all", None)
        if many is None:
            read = carrier.read(request)
            found = () if read is None else (read,)
        else:
            found = many(request)
        for read in found:
            key = claim_key(space, read.value)
            if key not in keys:
                keys.add(key)
                named.append(Named(read.value, key, index, read.verified))
    if early:
        return NEED_BODY
    if late and any(_by_head(pattern, request) for pattern in (*rule.starts, *rule.ends)):
        return NEED_BODY
    if not named:
        return None
    return Found(rule, named[0], tuple(named[1:]), bool(starts), bool(ends) and _ends(rule, request))
