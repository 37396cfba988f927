"""A toy cluster over the pure core: requests are accepted round robin, claims are a dict, the test gives the replies.

It knows just enough of the decision table to tell which worker would have served a request.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessionworkers.affinity.auto import Auto, LocalNames
from sessionworkers.affinity.rules import Mint, Rule
from sessionworkers.affinity.ruleset import Found, Learned, NeedBody, RuleSet
from sessionworkers.affinity.views import RequestView

JSON = [(b"content-type", b"application/json")]


class Traffic:
    """``claims``: key to worker. ``read``: how many bodies were read for their IDs."""

    def __init__(self, rules: Sequence[Rule], *, auto: bool = False, workers: int = 4) -> None:
        board = LocalNames()
        self.sets = [RuleSet(rules, Auto(board) if auto else None) for _ in range(workers)]
        self.claims: dict[str, int] = {}
        self.next = 0
        self.read = 0
        self.found: Found | None = None
        self.learned: list[Learned] = []
        self.held = False

    def call(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes | None = None,
        status: int = 200,
        reply: Sequence[tuple[bytes, bytes]] = (),
        content: bytes = b"",
        messages: Sequence[str] = (),
        kind: str = "http",
    ) -> int:
        """The number of the worker that served the request."""
        accepted, self.next = self.next, (self.next + 1) % len(self.sets)
        lines = list(headers)
        if body is not None and not any(name == b"content-length" for name, _ in lines):
            lines.append((b"content-length", str(len(body)).encode()))
        request = RequestView(method, path, query.encode(), lines, kind=kind)
        rules = self.sets[accepted]
        found = rules.find(request)
        if isinstance(found, NeedBody):
            self.read += 1
            request.body = body or b""
            found = rules.find(request)
            assert not isinstance(found, NeedBody)
        found = self._settle(found)
        if found is not None and found.rule.mint is Mint.CLIENT and found.primary.key not in self.claims:
            other = self._settle(rules.instead(request, found))
            if other is not None and other.primary.key in self.claims:
                found = other
        self.found = found
        owner = accepted
        if found is not None:
            owner = self.claims.get(found.primary.key, accepted)
            carrier = found.rule.carriers[found.primary.carrier]
            typed = (found.start or found.end) and carrier.needs_body
            token = (
                bool(getattr(carrier, "secrets", ())) and found.primary.verified and carrier.word.startswith("token:")
            )
            if found.rule.mint is Mint.CLIENT or typed or token:
                self.claims.setdefault(found.primary.key, owner)
            for _, named in found.joins:
                self.claims.setdefault(named.key, owner)
        self.learned = []
        watching = self.sets[owner].watch(request, found)
        if watching is not None:
            self.learned += watching.head(status if kind == "http" else 101, list(reply))
            self.held = watching.hold
            if found is not None and watching.used:
                self.claims.setdefault(found.primary.key, owner)
            elif found is not None and found.rule.name == "auto-sight" and not watching.used:
                self.claims.pop(found.primary.key, None)
            if not watching.done and content:
                self.learned += watching.body(content, False)
            for message in messages:
                self.learned += watching.message(message)
        for each in self.learned:
            if self.claims.setdefault(each.key, owner) != owner:
                assert not each.strict, f"{each.value} was minted twice"
                auto = self.sets[owner].auto
                if auto is not None:
                    auto.report_conflict(each)
        return owner

    def _settle(self, found: Found | None) -> Found | None:
        while found is not None and found.candidates:
            for named in found.candidates:
                if named.key in self.claims:
                    found.primary = named
                    return found
            found = found.otherwise
        return found
