"""Finding the session of a request: order, disagreement, bodies, starts and ends, what it costs."""

from __future__ import annotations

import timeit

import pytest

from sessionworkers.affinity.auto import Auto
from sessionworkers.affinity.ids import claim_key
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.presets import PRESETS, PresetContext
from sessionworkers.affinity.rules import Rule
from sessionworkers.affinity.ruleset import NEED_BODY, Found, NeedBody, RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import parse_rule

JSON = (b"content-type", b"application/json")


def rules(*texts: str) -> RuleSet:
    return RuleSet([parse_rule(text, f"r{index}") for index, text in enumerate(texts)])


def post(
    path: str = "/", body: bytes | None = None, *headers: tuple[bytes, bytes], method: str = "POST"
) -> RequestView:
    return RequestView(method, path, b"", [JSON, *headers], body=body)


def found(rule_set: RuleSet, request: RequestView) -> Found:
    result = rule_set.find(request)
    assert isinstance(result, Found)
    return result


def test_the_first_rule_wins() -> None:
    rule_set = rules("header:x-session", "cookie:sid", "query:sid")
    request = RequestView("GET", "/", b"sid=q", [(b"cookie", b"sid=c"), (b"x-session", b"h")])
    result = found(rule_set, request)
    assert (result.rule.name, result.primary.value, result.also) == ("r0", "h", ())
    assert found(rule_set, RequestView("GET", "/", b"sid=q", [(b"cookie", b"sid=c")])).rule.name == "r1"
    assert found(rule_set, RequestView("GET", "/", b"sid=q")).rule.name == "r2"
    assert found(rule_set, RequestView("GET", "/", b"%73id=q")).rule.name == "r2"
    assert rule_set.find(RequestView("GET", "/", b"x=q")) is None


def test_keys_are_of_the_rules_space() -> None:
    rule_set = rules("header:x-session", "query:sid space=shared")
    assert found(rule_set, RequestView(headers=[(b"x-session", b"a")])).primary.key == claim_key("r0", "a")
    assert found(rule_set, RequestView(query=b"sid=a")).primary.key == claim_key("shared", "a")


def test_different_ids_of_one_rule_show() -> None:
    rule_set = rules("header:x-session cookie:sid query:sid")
    request = RequestView("GET", "/", b"sid=a", [(b"cookie", b"sid=b"), (b"x-session", b"a")])
    result = found(rule_set, request)
    assert result.primary.value == "a"
    assert [(named.value, named.carrier) for named in result.also] == [("b", 1)]


def test_a_malformed_id_is_none() -> None:
    rule_set = rules("header:x-session query:sid")
    request = RequestView("GET", "/", b"sid=a", [(b"x-session", b"x" * 600)])
    assert found(rule_set, request).primary.carrier == 1
    assert rule_set.find(RequestView(headers=[(b"x-session", b"\xff")])) is None


BODIES = [
    # rule, request without its body, is the body needed
    ("json:id", post(), True),
    ("json:id", post(method="GET"), False),
    ("json:id", RequestView("POST", headers=[(b"content-type", b"image/png")]), False),
    ("header:x json:id", post("/", None, (b"x", b"1")), False),  # the narrow place has it
    ("json:id header:x", post("/", None, (b"x", b"1")), True),  # the body comes first
    ("path:/s/{id} json:id", post("/s/1/act"), False),
    ("path:/s/{id} json:id end=POST:/s/{id}/stop", post("/s/1/act"), False),
    ("path:/s/{id} json:id end=POST:/s/{id}/stop", post("/s/1/stop"), True),  # it must not name two sessions
    ("header:x json:id start=POST:/open", post("/open", None, (b"x", b"1")), True),
    ("json:id@/run", post("/run"), True),
    ("json:id@/run", post("/walk"), False),
]


@pytest.mark.parametrize(("text", "request_", "needed"), BODIES)
def test_the_body_is_read_only_where_it_may_tell(text: str, request_: RequestView, needed: bool) -> None:
    result = rules(text).find(request_)
    assert (result is NEED_BODY) is needed
    if needed:
        request_.body = b'{"id": "abc"}'
        result = rules(text).find(request_)
        assert isinstance(result, Found)
        assert "abc" in {result.primary.value, *(named.value for named in result.also)}
        request_.body = b""
        assert not isinstance(rules(text).find(request_), NeedBody)
        request_.body = None


def test_a_body_of_an_earlier_rule_comes_before_a_header_of_a_later_one() -> None:
    rule_set = rules("json:id", "header:x")
    assert rule_set.find(post("/", None, (b"x", b"1"))) is NEED_BODY
    assert found(rule_set, post("/", b"{}", (b"x", b"1"))).rule.name == "r1"
    assert found(rule_set, post("/", b'{"id":"2"}', (b"x", b"1"))).rule.name == "r0"


OWN = "path:/v1/sessions/{id} json:session_id start=POST:/v1/sessions end=DELETE:/v1/sessions/{id}"


def test_ones_own_api() -> None:
    rule_set = rules(OWN)
    start = post("/v1/sessions", b"{}")
    assert rule_set.find(start) is None
    assert rule_set.start_without_id(start) is rule_set.rules[0]
    result = found(rule_set, post("/v1/sessions/abc/action", b"{}"))
    assert (result.primary.value, result.start, result.end) == ("abc", False, False)
    result = found(rule_set, post("/v1/sessions/abc", b"", method="DELETE"))
    assert (result.primary.value, result.start, result.end) == ("abc", False, True)
    below = found(rule_set, post("/v1/sessions/abc/items/7", b"", method="DELETE"))
    assert not below.end


def test_a_start_with_an_id_and_without() -> None:
    rule_set = rules("json:id start=POST:/open end=POST:/close mint=client")
    result = found(rule_set, post("/open", b'{"id":"a"}'))
    assert result.start
    assert not result.end
    assert found(rule_set, post("/close", b'{"id":"a"}')).end
    without = post("/open", b"{}")
    assert rule_set.find(without) is None
    assert rule_set.start_without_id(without) is rule_set.rules[0]
    assert rule_set.start_without_id(post("/other")) is None


def test_a_start_route_below_the_template_names_no_session() -> None:
    rule_set = rules("path:/v1/sessions/{id} json:session_id start=POST:/v1/sessions/start")
    start = post("/v1/sessions/start", b"{}")
    assert rule_set.find(start) is None
    assert rule_set.start_without_id(start) is rule_set.rules[0]
    assert found(rule_set, post("/v1/sessions/start/action", b"{}")).primary.value == "start"


@pytest.mark.parametrize(
    ("value", "end"),
    [(None, True), ("", True), ("0", True), ("false", True), ("False", True), ("1", False), ("x", False)],
)
def test_a_header_may_suspend_the_end(value: str | None, end: bool) -> None:
    rule_set = rules("json:id end=POST:/close end-unless=X-More-Follows")
    headers = [] if value is None else [(b"x-more-follows", value.encode())]
    assert found(rule_set, post("/close", b'{"id":"a"}', *headers)).end is end


def test_every_header_that_decides_is_of_interest() -> None:
    """`Recall` keeps answers by these: one that is missing would give an end for none, or none for an end."""
    names = rules("json:id end=POST:/close end-unless=X-More-Follows", "header:X-A", "token:x-t/sid").interest.names()
    assert all(names[name] for name in (b"x-more-follows", b"x-a", b"x-t", b"X-A"))
    assert not names[b"accept"]


def test_only_restricts_a_rule() -> None:
    rule_set = rules("header:x only=POST:/run")
    assert rule_set.find(RequestView("GET", "/run", headers=[(b"x", b"1")])) is None
    assert found(rule_set, RequestView("POST", "/run", headers=[(b"x", b"1")])).primary.value == "1"


def test_ids_that_clients_mint_join_the_first() -> None:
    rule_set = rules("header:x", "query:tab mint=client", "cookie:c", "json:j mint=client")
    request = post("/", None, (b"x", b"1"), (b"cookie", b"c=2"))
    request.query = b"tab=t1"
    result = found(rule_set, request)
    assert [(rule.name, named.value) for rule, named in result.joins] == [("r1", "t1")]
    request.body = b'{"j": "3"}'
    assert [named.value for _, named in found(rule_set, request).joins] == ["t1", "3"]


def test_no_routing_covers_what_is_below() -> None:
    rule_set = RuleSet([], None, [PathTemplate("/static"), PathTemplate("/a/{id}/b")])
    assert rule_set.off(RequestView("GET", "/static/x.css"))
    assert rule_set.off(RequestView("GET", "/a/1/b/c"))
    assert not rule_set.off(RequestView("GET", "/statics"))


def test_start_or_end_by_head() -> None:
    rule_set = rules(OWN)
    assert rule_set.start_or_end(RequestView("POST", "/v1/sessions"))
    assert rule_set.start_or_end(RequestView("DELETE", "/v1/sessions/a"))
    assert not rule_set.start_or_end(RequestView("GET", "/v1/sessions/a"))


def test_named_knows_autos_rules() -> None:
    auto = Auto()
    rule_set = RuleSet([parse_rule("header:x", "mine")], auto)
    assert rule_set.named("mine") is rule_set.rules[0]
    assert rule_set.named("auto") is auto.rule
    assert rule_set.named("auto-sight") is auto.sight
    assert rule_set.named("other") is None


def test_without_rules_nothing_is_watched() -> None:
    assert RuleSet([]).find(RequestView()) is None
    assert RuleSet([]).watch(RequestView(), None) is None


def test_an_unclaimed_id_of_the_clients_own_may_follow_another() -> None:
    rule_set = rules("query:tab mint=client", "cookie:login", "header:x")
    request = RequestView("GET", "/", b"tab=t1", [(b"cookie", b"login=me"), (b"x", b"1")])
    result = found(rule_set, request)
    assert (result.primary.value, result.joins) == ("t1", ())
    other = rule_set.instead(request, result)
    assert other is not None
    assert (other.rule.name, other.primary.value) == ("r1", "me")
    assert [(rule.name, named.value) for rule, named in other.joins] == [("r0", "t1")]
    alone = RequestView("GET", "/", b"tab=t1")
    assert rule_set.instead(alone, found(rule_set, alone)) is None


TENTATIVE = Rule("maybe", parse_rule("query:session_id query:sessionId", "x").carriers, tentative=True)


def test_a_tentative_id_leaves_the_rest_standing() -> None:
    rule_set = RuleSet([TENTATIVE, parse_rule("cookie:sid", "cookie")])
    request = RequestView("GET", "/", b"session_id=a&sessionId=b", [(b"cookie", b"sid=c")])
    result = found(rule_set, request)
    assert (result.rule.name, [named.value for named in result.candidates]) == ("maybe", ["a", "b"])
    assert result.otherwise is not None
    assert (result.otherwise.rule.name, result.otherwise.primary.value) == ("cookie", "c")
    assert found(rule_set, RequestView(query=b"session_id=a")).otherwise is None
    earlier = RuleSet([parse_rule("cookie:sid", "cookie"), TENTATIVE])
    assert found(earlier, request).candidates == ()


HEADERS = [
    (b"host", b"localhost:8000"),
    (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b"en"),
    (b"connection", b"keep-alive"),
    (b"x-forwarded-for", b"192.0.2.1"),
    (b"cookie", b"theme=dark; lang=en"),
]


def test_finding_nothing_is_cheap() -> None:
    """Aim: 2 us on an idle core. The bound leaves room for a busy one and still catches a loop over all rules."""
    context = PresetContext()
    rule_set = RuleSet([rule for name in ("mcp", "socketio") for rule in PRESETS[name].rules(context)], Auto())
    request = RequestView("GET", "/api/items/17", b"", HEADERS)
    assert rule_set.find(request) is None
    count = 5000
    best = min(timeit.repeat(lambda: rule_set.find(request), number=count, repeat=7)) / count
    assert best < 10e-6
