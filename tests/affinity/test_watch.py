"""What a reply shows and tells: use, confirmation, IDs learned, what is never learned, what is strict."""

from __future__ import annotations

import json
import time
from base64 import b64encode

import pytest
from itsdangerous import TimestampSigner

from sessionworkers.affinity.presets import PRESETS, PresetContext
from sessionworkers.affinity.rules import Rule
from sessionworkers.affinity.ruleset import Found, Learned, ReplyWatch, RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import parse_rule

JSON = (b"content-type", b"application/json")
UUID = "550e8400-e29b-41d4-a716-446655440000"
OTHER = "6fa459ea-ee8a-4ca4-894e-db77e160355e"


def rules(*texts: str) -> RuleSet:
    return RuleSet([parse_rule(text, f"r{index}") for index, text in enumerate(texts)])


def watch(rule_set: RuleSet, request: RequestView) -> ReplyWatch:
    found = rule_set.find(request)
    assert found is None or isinstance(found, Found)
    watching = rule_set.watch(request, found)
    assert watching is not None
    return watching


def values(learned: tuple[Learned, ...]) -> list[str]:
    return [each.value for each in learned]


@pytest.mark.parametrize(
    ("status", "used"), [(200, True), (202, True), (204, True), (101, True), (302, False), (404, False), (500, False)]
)
def test_a_plain_id_is_used_when_the_app_says_2xx(status: int, used: bool) -> None:
    watching = watch(rules("header:x"), RequestView(headers=[(b"x", b"abc")]))
    assert watching.used is None
    watching.head(status, [])
    assert watching.used is used


def test_a_route_word_in_the_place_of_an_id_is_not_used() -> None:
    rule_set = rules("path:/v1/sessions/{id} json:session_id")
    watching = watch(rule_set, RequestView("POST", "/v1/sessions/start", body=b""))
    watching.head(200, [JSON])
    assert watching.used is False
    (learned,) = watching.body(b'{"session_id": "abc"}', False)
    assert (learned.value, learned.strict) == ("abc", True)


@pytest.mark.parametrize(
    ("headers", "used", "confirmed"),
    [
        ([], False, False),
        ([(b"vary", b"Cookie")], True, False),
        ([(b"set-cookie", b"sid=abc; Path=/")], True, True),
        ([(b"set-cookie", b"sid=new; Path=/")], False, False),
        ([(b"set-cookie", b"sid=abc; Max-Age=0")], False, False),
    ],
)
def test_a_cookie_is_used_when_the_reply_says_so(
    headers: list[tuple[bytes, bytes]], used: bool, confirmed: bool
) -> None:
    watching = watch(rules("cookie:sid"), RequestView(headers=[(b"cookie", b"sid=abc")]))
    watching.head(200, headers)
    assert (watching.used, watching.confirmed) == (used, confirmed)


def cookie(id: str, secret: str = "s") -> bytes:
    return TimestampSigner(secret).sign(b64encode(json.dumps({"session_id": id}).encode()))


@pytest.mark.parametrize("secrets", [("s",), ()], ids=["verified", "unverified"])
def test_signed_cookies(secrets: tuple[str, ...]) -> None:
    context = PresetContext(cookies=(("session", "s", 100),) if secrets else ())
    rule_set = RuleSet(PRESETS["starlette"].rules(context))
    request = RequestView(headers=[(b"cookie", b"session=" + cookie(UUID))])
    again = (b"set-cookie", b"session=" + cookie(UUID) + b"; path=/; httponly")
    vary = watch(rule_set, request)
    assert vary.head(200, [(b"vary", b"Cookie")]) == ()
    assert (vary.used, vary.confirmed) == (bool(secrets), False)
    confirmed = watch(rule_set, request)
    assert confirmed.head(200, [again]) == ()
    assert (confirmed.used, confirmed.confirmed) == (True, True)
    fresh = watch(rule_set, request)
    (learned,) = fresh.head(200, [(b"set-cookie", b"session=" + cookie(OTHER) + b"; path=/")])
    assert learned.value == OTHER
    assert fresh.used is False
    gone = watch(rule_set, request)
    assert gone.head(200, [(b"set-cookie", b"session=null; path=/; expires=Thu, 01 Jan 1970 00:00:00 GMT;")]) == ()


@pytest.mark.parametrize("status", [400, 404, 500])
def test_nothing_is_learned_from_errors(status: int) -> None:
    watching = watch(rules("header:x json:id"), RequestView("POST", body=b""))
    assert watching.head(status, [JSON, (b"x", b"abc")]) == ()
    assert watching.done
    assert not watching.hold
    assert watching.body(b'{"id":"abc"}', False) == ()


def test_redirects_teach() -> None:
    watching = watch(rules("cookie:sid"), RequestView("POST", "/login", body=b""))
    assert values(watching.head(303, [(b"set-cookie", b"sid=abc")])) == ["abc"]


def test_a_rule_may_learn_from_errors() -> None:
    rule_set = RuleSet(PRESETS["nicegui"].rules(PresetContext()))
    watching = watch(rule_set, RequestView("GET", "/nowhere"))
    watching.head(404, [(b"content-type", b"text/html"), (b"X-NiceGUI-Content", b"page")])
    assert watching.hold
    assert values(watching.body(f"'client_id': '{UUID}'".encode(), False)) == [UUID]


def test_hold_is_for_short_json_and_never_for_streams() -> None:
    for kind, hold in ((b"application/json", True), (b"text/event-stream", False), (b"text/html", False)):
        watching = watch(rules("json:id"), RequestView("POST", body=b""))
        watching.head(200, [(b"content-type", kind)])
        assert watching.hold is hold, kind


def test_a_head_request_has_a_length_and_no_body() -> None:
    watching = watch(rules("json:id"), RequestView("HEAD"))
    watching.head(200, [JSON, (b"content-length", b"20")])
    assert watching.done
    assert not watching.hold


def test_the_requests_own_id_is_not_learned_again() -> None:
    rule_set = rules("header:x json:id", "cookie:sid")
    headers = [(b"x", b"abc"), (b"cookie", b"sid=c1"), JSON]
    watching = watch(rule_set, RequestView("POST", "/", headers=headers, body=b'{"id":"two"}'))
    assert values(
        watching.head(200, [JSON, (b"x", b"abc"), (b"set-cookie", b"sid=c1"), (b"set-cookie", b"sid=c2")])
    ) == ["c2"]
    assert watching.body(b'{"id":"two"}', False) == ()
    assert watching.done


def test_an_id_is_told_once() -> None:
    watching = watch(rules("header:x json:id"), RequestView("POST", body=b""))
    assert values(watching.head(200, [JSON, (b"x", b"abc")])) == ["abc"]
    assert watching.body(b'{"id":"abc"}', False) == ()


def test_malformed_ids_are_not_learned() -> None:
    watching = watch(rules("header:x json:id"), RequestView("POST", body=b""))
    assert watching.head(200, [JSON, (b"x", b"a b")]) == ()
    assert watching.body(b'{"id": "%b"}' % (b"x" * 600), False) == ()


STRICT = [
    # rule, request, strict
    ("json:id", RequestView("POST", "/", body=b""), True),
    ("json:id", RequestView("GET", "/"), False),  # a list or a status
    ("json:id start=POST:/open", RequestView("POST", "/open", body=b""), True),
    ("json:id start=POST:/open", RequestView("POST", "/search", body=b""), False),
    ("path:/s/{id} json:id", RequestView("POST", "/s/7a/fork", body=b""), False),
    ("header:x", RequestView("GET", "/"), True),
]


@pytest.mark.parametrize(("text", "request_", "strict"), STRICT)
def test_strict(text: str, request_: RequestView, strict: bool) -> None:
    watching = watch(rules(text), request_)
    learned = watching.head(200, [JSON, (b"x", b"new")]) + watching.body(b'{"id":"new"}', False)
    assert [each.strict for each in learned] == [strict]


def test_other_rules_learn_too_but_not_of_the_same_space() -> None:
    rule_set = rules("header:x space=one", "cookie:sid space=one", "json:job_id")
    request = RequestView("POST", "/", headers=[(b"x", b"abc")], body=b"")
    watching = watch(rule_set, request)
    assert watching.head(200, [JSON, (b"set-cookie", b"sid=junk")]) == ()
    assert values(watching.body(b'{"job_id":"j1"}', False)) == ["j1"]


def test_websocket_messages() -> None:
    rule_set = rules("json:session_id")
    watching = watch(rule_set, RequestView("GET", "/ws", kind="websocket"))
    assert watching.head(101, []) == ()
    assert not watching.done
    assert watching.message("hello") == ()
    assert values(watching.message('{"session_id": "abc"}')) == ["abc"]
    for _ in range(3):
        assert watching.message("{}") == ()
    assert watching.done
    assert watching.message('{"session_id": "later"}') == ()


def test_a_refused_websocket_teaches_nothing() -> None:
    watching = watch(rules("json:session_id"), RequestView("GET", "/ws", kind="websocket"))
    watching.head(403, [])
    assert watching.done


def test_an_endless_stream_is_given_up() -> None:
    watching = watch(rules("json:session_id"), RequestView("GET", "/events"))
    watching.head(200, [(b"content-type", b"text/event-stream")])
    for _ in range(3):
        assert not watching.done
        watching.body(b"data: {}\n\n", True)
    assert watching.done


def test_watching_a_plain_reply_is_cheap() -> None:
    rule_set = RuleSet([rule for preset in PRESETS.values() for rule in preset.rules(PresetContext())])
    request = RequestView("GET", "/")
    start = time.perf_counter()
    for _ in range(2000):
        watching = rule_set.watch(request, None)
        assert watching is not None
        watching.head(200, [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", b"5")])
    assert (time.perf_counter() - start) / 2000 < 60e-6


def test_limits_of_what_is_learned_are_the_rules() -> None:
    handles = [rule for rule in PRESETS["mcp"].rules(PresetContext()) if rule.name == "mcp-handles"]
    rule_set = RuleSet(handles)
    state = "v1." + "x" * 5000
    request = RequestView("POST", "/mcp", headers=[JSON, (b"mcp-method", b"tools/call")], body=b"{}")
    watching = watch(rule_set, request)
    watching.head(200, [JSON])
    assert values(watching.body(b'{"result":{"requestState":"%b"}}' % state.encode(), False)) == [state]
    assert isinstance(handles[0], Rule)


def test_bodies_may_be_memoryviews() -> None:
    for kind, body in ((b"application/json", b'{"id":"abc"}'), (b"text/event-stream", b'data: {"id":"abc"}\n\n')):
        watching = watch(rules("json:id"), RequestView("POST", body=b""))
        watching.head(200, [(b"content-type", kind)])
        assert values(watching.body(memoryview(body), True)) == ["abc"]  # type: ignore[arg-type]
