"""Rules, and what a request meets, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sessionworkers.affinity.decide import claims_on_sight
from sessionworkers.affinity.rules import FailedStart, Mint, RequestPattern, Rule
from sessionworkers.affinity.ruleset import NEED_BODY, Found, Named, RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import describe
from sessionworkers.settings.units import size_text


def rule_lines(number: int, rule: Rule, origin: str) -> Iterator[str]:
    """One rule: its words, then what they mean."""
    yield f"{number}. {rule.name} ({origin})"
    yield f"     {describe(rule)}"
    yield f"     reads the ID from {_list([carrier.word for carrier in rule.carriers])}"
    if rule.only:
        yield f"     only in {_list([_pattern(pattern) for pattern in rule.only])}"
    if rule.learners:
        yield f"     learns it from replies: {_list([learner.word for learner in rule.learners], 'and')}"
    if rule.mint is Mint.CLIENT:
        yield "     clients make the IDs up: one that nobody owns is claimed on sight"
    if rule.starts:
        yield f"     opened by {_list([_pattern(pattern) for pattern in rule.starts])}"
    if rule.ends:
        unless = f", unless {rule.ends_unless_header.decode()} is set" if rule.ends_unless_header else ""
        yield f"     closed by {_list([_pattern(pattern) for pattern in rule.ends])}{unless}"
    if rule.starts and rule.failed_start is FailedStart.RELEASE:
        yield "     a refused start leaves nothing"
    if rule.refuse_late_start:
        yield "     a start after the end is refused (409)"
    gone = "handled where the request arrives" if rule.inferred else f"{rule.gone.status}"
    yield f"     its worker died: {gone}"
    lives = "until it is closed" if rule.has_lifetime else f"until it was idle for {_time(rule.idle)}"
    yield f"     kept {lives}; after its end for {_time(rule.retry_window)}"


def request_lines(rules: RuleSet, request: RequestView, max_body: int) -> Iterator[str]:
    """What happens to ``request``, whose body is set, and why."""
    what = "WebSocket" if request.kind == "websocket" else request.method
    yield f"{what} {request.path}"
    if rules.off(request):
        yield "  not routed: the path is named by --no-routing. The worker that accepts it handles it."
        return
    body, request.body = request.body, None
    found = rules.find(request)
    request.body = body
    if found is NEED_BODY:
        size = len(body or b"")
        if size > max_body:
            refused = (
                "refused (413): it opens or closes a session" if rules.start_or_end(request) else "as without an ID"
            )
            yield f"  its body ({size} bytes) is longer than --max-body {size_text(max_body)}: {refused}."
            return
        yield "  the ID may stand in the body, so that is read first."
        found = rules.find(request)
    if isinstance(found, Found):
        yield from _found(found)
    else:
        yield from _not_found(rules, request)


def _found(found: Found) -> Iterator[str]:
    rule = found.rule
    if found.candidates:
        for named in found.candidates:
            yield f"  {_id(named)} may be a session ID, {_where(rule, named)}: the first that a worker owns decides."
        if found.otherwise is None:
            yield "  If nobody owns one, the worker that accepts the request handles it as without an ID."
        else:
            yield "  If nobody owns one:"
            yield from _found(found.otherwise)
        return
    yield f"  {rule.name} finds the session ID {_id(found.primary)}, {_where(rule, found.primary)}."
    if not found.primary.verified:
        yield "  Its signature was not checked (no secret is known): it counts once a reply confirms it."
    kind = " and ".join(word for word, is_so in (("opens", found.start), ("closes", found.end)) if is_so)
    if kind:
        yield f"  The request {kind} the session, if the app answers 2xx."
    for named in found.also:
        end = "refused (409) if they belong to different sessions" if kind else "the first decides"
        yield f"  It also names {_id(named)}, {_where(rule, named)}: {end}."
    yield "  If a worker owns it: that worker handles the request."
    if rule.inferred:
        yield "  If its worker died: the worker that accepts the request handles it, because the ID is inferred."
    else:
        jsonrpc = " with a JSON-RPC error" if rule.gone.jsonrpc else ""
        yield f"  If its worker died: {rule.gone.status}{jsonrpc}."
    claimed = "claims it at once" if claims_on_sight(found, found.primary) else "claims it if the reply shows its use"
    yield f"  If nobody owns it: the worker that accepts the request handles it, and {claimed}."
    if found.start and rule.refuse_late_start:
        yield "  If it was closed already: refused (409)."
    for other, named in found.joins:
        yield f"  {_id(named)} of {other.name} then belongs to the same worker."


def _not_found(rules: RuleSet, request: RequestView) -> Iterator[str]:
    yield "  no session ID. The worker that accepts it handles it."
    for rule in rules.rules:
        if rule.only and not any(pattern.matches(request) for pattern in rule.only):
            yield f"  {rule.name}: is not for this kind of request"
            continue
        there = [hint.header.decode() for carrier in rule.carriers for hint in carrier.hints if hint.kind == "header"]
        unusable = [
            name for name in dict.fromkeys(there) if name != "cookie" and request.header(name.encode()) is not None
        ]
        if unusable:
            yield f"  {rule.name}: {_list(unusable)} holds no ID that can be used (1 to 512 visible ASCII characters)"
        else:
            yield f"  {rule.name}: nothing in {_list([carrier.word for carrier in rule.carriers])}"
    start = rules.start_without_id(request)
    if start is not None:
        yield f"  It opens a session of {start.name}: the worker that handles it owns the ID in its reply."
    elif rules.watch(request, None) is not None:
        auto = " and by auto" if rules.auto is not None else ""
        yield f"  An ID that its reply hands out is learned, by the rules{auto}, and belongs to that worker."


def _id(named: Named) -> str:
    """Enough of an ID to know it by: no more than half, 8 characters at most."""
    shown = named.value[: min(8, len(named.value) // 2)]
    return f"{shown}… ({len(named.value)} characters)"


def _where(rule: Rule, named: Named) -> str:
    if 0 <= named.carrier < len(rule.carriers):
        return f"in {rule.carriers[named.carrier].word}"
    return "in a place that sessions were seen in"


def _pattern(pattern: RequestPattern) -> str:
    method = "WebSocket" if pattern.kind == "websocket" else "|".join(sorted(pattern.methods)) or "any"
    text = f"{method} {pattern.path.text}"
    if pattern.body_contains is not None:
        text += f" with {pattern.body_contains.decode('latin-1')} in the body"
    return text


def _list(words: Sequence[str], last: str = "or") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else "nothing"


def _time(seconds: float) -> str:
    for unit, factor in (("d", 86_400.0), ("h", 3_600.0), ("m", 60.0)):
        if seconds >= factor and seconds % factor == 0:
            return f"{seconds / factor:g}{unit}"
    return f"{seconds:g}s"
