"""Watching one reply: did the app use the ID that the request named, and which IDs does the reply tell?

1. `ReplyWatch.head`: status and headers. Outcome (`used`, `confirmed`), IDs in headers, cookies and URLs.
2. `ReplyWatch.body`, piece by piece, before each is passed on; or `ReplyWatch.message`, the first WebSocket messages.

An ID that the request named itself is never learned from its reply.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sessionworkers.affinity.carriers import Cookie, Path, StarletteCookie, plain
from sessionworkers.affinity.found import Found, Learned
from sessionworkers.affinity.ids import claim_key, is_word, valid_id
from sessionworkers.affinity.learners import EARLY_MESSAGES, Learner, Place
from sessionworkers.affinity.rules import Mint, Rule
from sessionworkers.affinity.scanners import Scanner
from sessionworkers.affinity.views import ReplyView, RequestView

if TYPE_CHECKING:
    from sessionworkers.affinity.ruleset import RuleSet


class ReplyWatch:
    """One reply. Never raises on what a reply holds."""

    __slots__ = (
        "_auto",
        "_found",
        "_given",
        "_index",
        "_named",
        "_owned",
        "_request",
        "_scanners",
        "_set",
        "confirmed",
        "done",
        "hold",
        "used",
    )

    def __init__(self, rules: RuleSet, request: RequestView, found: Found | None) -> None:
        self.used: bool | None = None
        """After the head: the reply shows that the app used the ID that was found."""
        self.confirmed = False
        """The reply sets a cookie with that very ID: as good as a signature that could be checked."""
        self.done = False
        """Nothing more can be learned."""
        self.hold = False
        """After the head: keep it back until the first piece of the body was fed, so that a conflict can be a 409."""
        self._set = rules
        self._request = request
        self._found = found
        self._auto = rules.auto if found is None or not found.rule.owns_replies else None
        self._named: set[str] = set()
        if found is not None:
            self._named = {found.primary.key, *(n.key for n in found.also), *(n.key for _, n in found.joins)}
        self._given: set[str] = set()
        self._owned: set[str] = set()
        self._scanners: list[tuple[Rule | None, Learner | None, Scanner]] = []
        self._index = 0

    def head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> tuple[Learned, ...]:
        """IDs that the head of the reply tells. 101 is an accepted WebSocket."""
        reply = ReplyView(status, headers)
        request, found = self._request, self._found
        learned: list[Learned] = []
        good = 200 <= status < 400 or status == 101
        in_head, kind = self._set.reply_interest.look(reply)
        if request.method == "HEAD":
            kind = ""  # it has a length and a type, but no body
        if in_head:
            for rule, learner in self._set.head_learners:
                if (good or rule.learn_any_status) and self._concerned(rule, learner):
                    for value in learner.from_head(reply):
                        self._tell(learned, rule, value, learner)
        for rule, learner in self._set.body_learners.get(kind, ()):
            if not (good or rule.learn_any_status) or not self._concerned(rule, learner):
                continue
            scanner = learner.scanner(reply)
            if scanner is not None:
                self._scanners.append((rule, learner, scanner))
                self.hold = self.hold or (learner.hold and not rule.inferred and kind != "events")
        if found is not None:
            self._outcome(found, status, good, reply)
        auto = self._auto
        if auto is not None and good:
            for value, source in auto.from_head(request, reply) if in_head else ():
                self._infer(learned, value, source)
            if kind in ("json", "events") and (body := auto.scanner(request, reply)) is not None:
                self._scanners.append((None, None, body))
        self.done = not self._scanners and not (status == 101 and self._set.messages)
        return tuple(learned)

    def body(self, chunk: bytes, more: bool) -> tuple[Learned, ...]:
        """IDs that became readable with this piece; call it before the piece is passed on."""
        if self.done:
            return ()
        if not isinstance(chunk, bytes):
            chunk = bytes(chunk)  # Starlette passes memoryviews on
        learned: list[Learned] = []
        left = False
        for rule, learner, scanner in self._scanners:
            for value in scanner.feed(chunk, more):
                if rule is not None and learner is not None:
                    self._tell(learned, rule, value, learner)
                else:
                    value, _, source = value.partition("\0")
                    self._infer(learned, value, source)
            left = left or not scanner.done
        self.done = not left or not more
        return tuple(learned)

    def message(self, data: str | bytes) -> tuple[Learned, ...]:
        """IDs in the app's next WebSocket message; only the first five are looked at."""
        if self.done:
            return ()
        learned: list[Learned] = []
        index, self._index = self._index, self._index + 1
        self.done = self._index >= EARLY_MESSAGES
        for rule, learner in self._set.learners:
            if learner.place is not Place.HEAD and self._concerned(rule, learner):
                for value in learner.from_message(index, data):
                    self._tell(learned, rule, value, learner)
        if self._auto is not None and index == 0:
            for value, source in self._auto.from_message(self._request, data):
                self._infer(learned, value, source)
        return tuple(learned)

    def _concerned(self, rule: Rule, learner: Learner) -> bool:
        found, request = self._found, self._request
        if found is not None and rule is not found.rule and rule.key_space == found.rule.key_space:
            return False  # of rules that spell the same IDs, the one that matched knows where the reply tells them
        if rule.only and not any(pattern.matches(request) for pattern in rule.only):
            return False
        return learner.applies(request)

    def _outcome(self, found: Found, status: int, good: bool, reply: ReplyView) -> None:
        ok = 200 <= status < 300 or status == 101
        carriers = found.rule.carriers
        carrier = plain(carriers[found.primary.carrier]) if found.primary.carrier < len(carriers) else None
        if isinstance(carrier, (Cookie, StarletteCookie)):
            if not self.confirmed and good and isinstance(carrier, Cookie):
                self.confirmed = (carrier.name, found.primary.value) in reply.set_cookies
            self.used = self.confirmed or (good and found.primary.verified and reply.vary_cookie)
        elif isinstance(carrier, Path) and found.rule.mint is Mint.APP and is_word(found.primary.value):
            self.used = False  # POST /v1/sessions/start: a route of the app's, not a session called "start"
        else:
            self.used = ok and (found.primary.verified or self.confirmed)
        if self.used and self._auto is not None and found.rule.inferred:
            self._auto.used(self._request, found)

    def _tell(self, learned: list[Learned], rule: Rule, value: str, learner: Learner) -> None:
        if not valid_id(value, self._set.limit(rule)):
            return
        key = claim_key(rule.key_space, value)
        found = self._found
        if found is not None and key == found.primary.key and learner.place is Place.HEAD:
            self.confirmed = True
        if key in self._named or key in self._given:
            return
        if self._names(rule, value):
            self._named.add(key)
            return
        self._given.add(key)
        self._owned.add(value)
        learned.append(Learned(rule, value, key, self._strict(rule, learner), learner.word))

    def _names(self, rule: Rule, value: str) -> bool:
        """True if the request names ``value`` where ``rule`` did not have to look."""
        request = self._request
        for carrier in rule.carriers:
            if not carrier.needs_body or request.body is not None:
                read = carrier.read(request)
                if read is not None and read.value == value:
                    return True
        return False

    def _strict(self, rule: Rule, learner: Learner) -> bool:
        if rule.inferred or not rule.strict:
            return False
        if rule.starts and (learner.place is not Place.HEAD or self._found is not None):
            return any(pattern.matches(self._request) for pattern in rule.starts)
        if learner.place is Place.BODY and self._request.kind == "http":
            found = self._found
            if found is not None and found.rule.key_space == rule.key_space and not is_word(found.primary.value):
                return False
            return self._request.method not in ("GET", "HEAD")
        return True

    def _infer(self, learned: list[Learned], value: str, source: str) -> None:
        auto = self._auto
        if auto is None:
            return
        if value in self._owned:
            return  # a rule's own
        key = claim_key(auto.rule.key_space, value)
        if key in self._given or key in self._named or auto.refuses(value, key, source):
            return
        if auto.names(self._request, value):
            return
        self._given.add(key)
        auto.learned(value, key, source)
        learned.append(Learned(auto.rule, value, key, False, source))
