"""Inference: what it learns and recognises, and the false IDs that it must not learn."""

from __future__ import annotations

import json
import secrets
import uuid

import pytest

from sessionworkers.affinity.auto import Auto, LocalNames
from sessionworkers.affinity.ids import looks_random
from sessionworkers.affinity.inference import from_event, from_head, from_json, in_url
from sessionworkers.affinity.presets import PRESETS, PresetContext
from sessionworkers.affinity.rules import Mint
from sessionworkers.affinity.ruleset import NEED_BODY, Found, Learned, RuleSet
from sessionworkers.affinity.views import ReplyView, RequestView
from sessionworkers.affinity.words import parse_rule

from .traffic import JSON, Traffic

UUID = "550e8400-e29b-41d4-a716-446655440000"
HEX = "9f86d081884c7d659a2feaa0c55ad015"
URLSAFE = "VtYjr2eUSnFOqPXlA3Y8bw"
POST = RequestView("POST", "/start")
GET = RequestView("GET", "/status")


LEARNED = [
    # request, document, values
    (POST, {"session_id": UUID}, [UUID]),
    (POST, {"sessionId": HEX}, [HEX]),
    (POST, {"SID": URLSAFE}, [URLSAFE]),
    (POST, {"job_id": HEX, "status": "queued"}, [HEX]),
    (POST, {"thread-id": UUID}, [UUID]),
    (POST, {"data": {"run_id": UUID}}, [UUID]),
    (POST, {"session": {"id": UUID}}, [UUID]),
    (POST, {"event_id": HEX}, [HEX]),
    (POST, {"chat_session_id": UUID}, [UUID]),
    (RequestView("POST", "/threads"), {"id": UUID}, [UUID]),
    (RequestView("POST", "/v1/sessions/"), {"id": HEX}, [HEX]),
    (POST, {"status_url": f"/jobs/{HEX}/status"}, [HEX]),
    (POST, {"links": {"href": f"https://host/x?session_id={UUID}"}}, [UUID]),
    # false IDs
    (POST, {"session_id": "alice"}, []),
    (POST, {"session_id": "1234567890123456"}, []),
    (POST, {"session_id": "00000000-0000-0000-0000-000000000000"}, []),
    (POST, {"session_id": ["a"]}, []),
    (POST, {"user_id": UUID, "component_class_id": HEX, "request_id": UUID, "trace_id": HEX}, []),
    (POST, {"id": UUID}, []),
    (RequestView("GET", "/threads"), {"id": UUID}, []),
    (RequestView("POST", "/users"), {"id": UUID}, []),
    (POST, {"sessions": [{"session_id": UUID}]}, []),  # a list mentions
    ([], [{"session_id": UUID}], []),
    (POST, {"a": {"b": {"c": {"session_id": UUID}}}}, []),  # too deep
    (POST, {"avatar_url": f"/images/{HEX}.png"}, []),
    (POST, {"url": f"https://cdn.example.org/assets/{HEX}"}, []),
    (POST, {"text": f"your session_id is {UUID}"}, []),
]


@pytest.mark.parametrize(("request_", "document", "expected"), LEARNED)
def test_from_json(request_: RequestView, document: object, expected: list[str]) -> None:
    found = from_json(request_ or POST, json.dumps(document).encode())
    assert [value for value, _ in found] == expected


HEADS = [
    ([(b"x-session-id", UUID)], [UUID]),
    ([(b"X-Job-Id", HEX)], [HEX]),
    ([(b"location", f"/sessions/{UUID}")], [UUID]),
    ([(b"location", f"https://host/jobs/{HEX}/events")], [HEX]),
    ([(b"location", f"/x?session_id={UUID}")], [UUID]),
    ([(b"set-cookie", f"token={URLSAFE}; Path=/; HttpOnly; SameSite=lax")], [URLSAFE]),
    ([(b"set-cookie", f"access-token-unsecure-aBc={URLSAFE}; HttpOnly")], [URLSAFE]),
    ([(b"set-cookie", f"session_id={UUID}; Path=/")], [UUID]),
    # false IDs
    ([(b"x-request-id", UUID)], []),
    ([(b"etag", f'"{HEX}"')], []),
    ([(b"x-session-id", "alice")], []),
    ([(b"set-cookie", f"tracker={UUID}; Path=/")], []),
    ([(b"set-cookie", f"csrftoken={HEX}; HttpOnly")], []),
    ([(b"set-cookie", f"session_id={UUID}; HttpOnly; Max-Age=0")], []),
    ([(b"set-cookie", "session=eyJzZXNzaW9uX2lkIjogIjEyMyJ9.aB3dEf9.x1Y2z3A4b5C6d7E8f9; HttpOnly")], []),
    ([(b"location", f"https://login.example.org/authorize?state={HEX}")], []),
    ([(b"location", f"/users/{UUID}")], []),
]


@pytest.mark.parametrize(("headers", "expected"), HEADS)
def test_from_head(headers: list[tuple[bytes, str]], expected: list[str]) -> None:
    reply = ReplyView(200, [(name, value.encode()) for name, value in headers])
    assert [value for value, _ in from_head(POST, reply)] == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (f"/messages/?session_id={HEX}", [HEX]),
        (json.dumps({"run_id": UUID}), [UUID]),
        ("hello", []),
        (f"/static/{HEX}", []),
        ("{broken", []),
    ],
)
def test_from_event(data: str, expected: list[str]) -> None:
    assert [value for value, _ in from_event(POST, data.encode())] == expected


def test_hostile_urls() -> None:
    assert in_url("http://[x") == []
    assert in_url("/sessions/" + "x" * 5000) == []


# sessions as a whole


def a_token() -> str:
    """One of the 449 of 450 that look random (`test_ids`)."""
    while not looks_random(token := secrets.token_urlsafe(16)):
        pass
    return token


@pytest.mark.parametrize("make", [lambda: uuid.uuid4().hex, lambda: str(uuid.uuid4()), lambda: a_token()])
def test_the_generic_cases(make) -> None:  # type: ignore[no-untyped-def]
    traffic = Traffic([], auto=True)
    traffic.call("GET", "/")  # so that no step of the round robin hides anything
    for _ in range(8):
        sid = make()
        content = json.dumps({"session_id": sid, "pid": 1}).encode()
        owner = traffic.call("POST", "/v1/sessions/start", body=b"", reply=JSON, content=content)
        assert not traffic.held
        for method, path in (("POST", "action"), ("POST", "action"), ("DELETE", "stop")):
            assert traffic.call(method, f"/v1/sessions/{sid}/{path}") == owner
        # WebSocket after POST
        assert traffic.call("GET", f"/ws/voice/{sid}", kind="websocket", messages=['{"n": 1}']) == owner
        # a job and its events
        job = make()
        owner = traffic.call("POST", "/build", reply=JSON, content=json.dumps({"job_id": job}).encode())
        reply = [(b"content-type", b"text/event-stream")]
        assert traffic.call("GET", f"/build/{job}/events", reply=reply, content=b"data: step 0\n\n") == owner
        # WebSocket first, an upload on the side
        sid = make()
        message = json.dumps({"session_id": sid})
        owner = traffic.call("GET", "/stream", kind="websocket", messages=[message])
        assert traffic.call("PUT", f"/upload/{sid}/x.txt", body=b"data") == owner


@pytest.mark.parametrize("place", ["path", "query", "header", "json", "cookie"])
def test_it_may_come_back_anywhere(place: str) -> None:
    traffic = Traffic([], auto=True)
    for _ in range(6):
        sid = uuid.uuid4().hex
        content = json.dumps({"session_id": sid}).encode()
        owner = traffic.call("POST", "/new", headers=JSON, body=b"{}", reply=JSON, content=content)
        for _ in range(3):
            if place == "path":
                served = traffic.call("GET", f"/s/{sid}")
            elif place == "query":
                served = traffic.call("GET", "/s", query=f"x=1&token={sid}")
            elif place == "header":
                served = traffic.call("GET", "/s", headers=[(b"x-session-id", sid.encode())])
            elif place == "cookie":
                served = traffic.call("GET", "/s", headers=[(b"cookie", f"a=b; c={sid}".encode())])
            else:
                body = json.dumps({"config": {"state": sid}}).encode()
                served = traffic.call("POST", "/s", headers=JSON, body=body)
            assert served == owner


def test_openenv_by_jsonrpc() -> None:
    traffic = Traffic([], auto=True)
    for _ in range(6):
        sid = str(uuid.uuid4())
        created = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"session_id": sid}}).encode()
        body = b'{"jsonrpc":"2.0","id":1,"method":"openenv/session/create"}'
        owner = traffic.call("POST", "/mcp", headers=JSON, body=body, reply=JSON, content=created)
        step = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"session_id": sid}}).encode()
        assert all(traffic.call("POST", "/mcp", headers=JSON, body=step) == owner for _ in "123")


def test_adk_sessions() -> None:
    traffic = Traffic([], auto=True)
    for _ in range(6):
        sid = str(uuid.uuid4())
        path = "/apps/hello/users/u1/sessions"
        content = json.dumps({"id": sid, "appName": "hello", "userId": "u1", "events": []}).encode()
        owner = traffic.call("POST", path, headers=JSON, body=b"{}", reply=JSON, content=content)
        body = json.dumps({"app_name": "hello", "user_id": "u1", "session_id": sid, "new_message": {}}).encode()
        assert traffic.call("POST", "/run_sse", headers=JSON, body=body) == owner
        assert traffic.call("GET", f"{path}/{sid}") == owner


def test_responses_api() -> None:
    traffic = Traffic([], auto=True)
    for _ in range(6):
        first = f"resp_{uuid.uuid4().hex}"
        content = json.dumps({"id": first, "object": "response"}).encode()
        owner = traffic.call("POST", "/v1/responses", headers=JSON, body=b'{"input":"x"}', reply=JSON, content=content)
        body = json.dumps({"input": "y", "previous_response_id": first}).encode()
        second = f"resp_{uuid.uuid4().hex}"
        content = json.dumps({"id": second, "previous_response_id": first}).encode()
        assert traffic.call("POST", "/v1/responses", headers=JSON, body=body, reply=JSON, content=content) == owner
        assert traffic.call("GET", f"/v1/responses/{second}") == owner


def test_an_agents_stream_names_its_run_in_the_first_event() -> None:
    traffic = Traffic([], auto=True)
    events = [(b"content-type", b"text/event-stream")]
    for _ in range(6):
        run = str(uuid.uuid4())
        content = b"event: metadata\ndata: " + json.dumps({"run_id": run}).encode() + b"\n\ndata: {}\n\n"
        owner = traffic.call("POST", "/runs/stream", headers=JSON, body=b"{}", reply=events, content=content)
        assert traffic.call("POST", f"/runs/{run}/cancel") == owner


def test_login_by_cookie() -> None:
    traffic = Traffic([], auto=True)
    for _ in range(6):
        value = a_token()
        reply = [(b"set-cookie", f"access-token-x={value}; Path=/; HttpOnly".encode())]
        owner = traffic.call("POST", "/login", status=303, reply=reply)
        assert all(
            traffic.call("GET", "/", headers=[(b"cookie", f"access-token-x={value}".encode())]) == owner for _ in "123"
        )


SIGHT = [
    ("query", "session_id", "abcdefg-123"),
    ("query", "sid", "12345678"),
    ("header", "marimo-session-id", "s_abc123"),
    ("header", "x-chainlit-session-id", UUID),
    ("json", "thread_id", "thread-42"),
    ("json", "config.configurable.thread_id", "thread-42"),
    ("json", "session_hash", "a1b2c3d4e5f"),
]


def build(place: str, name: str, value: str) -> tuple[str, list[tuple[bytes, bytes]], bytes | None]:
    if place == "query":
        return f"{name}={value}", [], None
    if place == "header":
        return "", [(name.encode(), value.encode())], None
    document: object = value
    for part in reversed(name.split(".")):
        document = {part: document}
    return "", JSON, json.dumps(document).encode()


@pytest.mark.parametrize(("place", "name", "value"), SIGHT)
def test_ids_that_clients_mint_are_claimed_on_sight(place: str, name: str, value: str) -> None:
    traffic = Traffic([], auto=True)
    for number in range(5):
        query, headers, body = build(place, name, f"{value}{number}")
        owner = traffic.call("POST", "/invoke", query=query, headers=headers, body=body)
        assert traffic.found is not None
        assert (traffic.found.rule.name, traffic.found.rule.mint) == ("auto-sight", Mint.CLIENT)
        assert traffic.found.rule.inferred
        assert all(traffic.call("POST", "/invoke", query=query, headers=headers, body=body) == owner for _ in "123")


def test_a_claim_on_sight_is_dropped_when_the_reply_is_no_success() -> None:
    traffic = Traffic([], auto=True)
    traffic.call("GET", "/x", query="session_id=abc-12345", status=404)
    assert traffic.claims == {}


NO_SIGHT = [
    ("query", "session_id", "short1"),
    ("query", "session_id", "no-digits-here"),
    ("query", "user_id", "user-123456"),
    ("query", "environment_id", "prod-123456"),
    ("header", "x-request-id", UUID),
    ("header", "session", "abc-12345"),
    ("json", "job_id", "job-1234567"),
    ("json", "a.b.c.session_id", "abc-12345"),
]


@pytest.mark.parametrize(("place", "name", "value"), NO_SIGHT)
def test_what_is_not_claimed_on_sight(place: str, name: str, value: str) -> None:
    traffic = Traffic([], auto=True)
    query, headers, body = build(place, name, value)
    traffic.call("POST", "/x", query=query, headers=headers, body=body)
    assert traffic.found is None
    assert traffic.claims == {}


def test_nothing_on_sight_inside_jsonrpc() -> None:
    traffic = Traffic([], auto=True)
    body = b'{"jsonrpc": "2.0", "method": "x", "params": {"session_id": "abc-12345"}}'
    traffic.call("POST", "/rpc", headers=JSON, body=body)
    assert traffic.found is None


def test_an_id_handed_out_beats_one_on_sight() -> None:
    traffic = Traffic([], auto=True)
    sid = uuid.uuid4().hex
    owner = traffic.call("POST", "/new", reply=JSON, content=json.dumps({"session_id": sid}).encode())
    body = json.dumps({"thread_id": "thread-12345", "path": sid}).encode()
    assert all(traffic.call("POST", "/x", headers=JSON, body=body) == owner for _ in "1234")
    # With a value of the learned shape that nobody claims, the one on sight still counts.
    query = f"session_id={uuid.uuid4().hex}"
    first = traffic.call("GET", "/y", query=query)
    assert all(traffic.call("GET", "/y", query=query) == first for _ in "123")


def test_an_id_on_sight_joins_a_login_and_is_narrower_than_it() -> None:
    traffic = Traffic([], auto=True)
    value = a_token()
    cookie = (b"cookie", f"login={value}".encode())
    reply = [(b"set-cookie", f"login={value}; HttpOnly".encode())]
    owner = traffic.call("POST", "/login", reply=reply)
    for _ in range(3):
        assert traffic.call("GET", "/x", query="thread_id=thread-1", headers=[cookie]) == owner
    assert traffic.call("GET", "/x", query="thread_id=thread-1") == owner
    traffic.next = owner + 1 if owner < 3 else 0
    other = traffic.call("GET", "/x", query="thread_id=thread-2")
    assert other != owner
    assert traffic.call("GET", "/x", query="thread_id=thread-2", headers=[cookie]) == other


def test_large_and_unmeasured_bodies_are_not_read() -> None:
    rule_set = RuleSet([], Auto())
    for headers in ([*JSON], [*JSON, (b"content-length", b"100000")], [*JSON, (b"content-length", b"0")]):
        assert rule_set.find(RequestView("POST", "/", headers=headers)) is None
    small = RequestView("POST", "/", headers=[*JSON, (b"content-length", b"10")])
    assert rule_set.find(small) is NEED_BODY
    assert RuleSet([], Auto(read_bodies=False)).find(small) is None


def test_an_echo_teaches_nothing() -> None:
    traffic = Traffic([], auto=True)
    sid = uuid.uuid4().hex
    content = json.dumps({"session_id": sid}).encode()
    for path, query, body in ((f"/s/{sid}", "", None), ("/s", f"x={sid}", None), ("/s", "", content)):
        traffic.call("POST", path, query=query, headers=JSON if body else [], body=body, reply=JSON, content=content)
        assert traffic.learned == []


def test_a_value_that_two_workers_hand_out_is_no_session() -> None:
    traffic = Traffic([], auto=True)
    shared = uuid.uuid4().hex
    content = json.dumps({"job_id": shared}).encode()
    traffic.call("GET", "/latest", reply=JSON, content=content)
    assert len(traffic.learned) == 1
    traffic.call("GET", "/latest", reply=JSON, content=content)  # the second worker: it is blocked now
    traffic.call("GET", "/latest", reply=JSON, content=content)
    assert traffic.learned == []
    served = {traffic.call("GET", f"/x/{shared}") for _ in range(4)}
    assert served == {0, 1, 2, 3}
    traffic.call("POST", "/other", reply=JSON, content=json.dumps({"job_id": uuid.uuid4().hex}).encode())
    assert traffic.learned == []  # nothing is learned from that place any more
    traffic.call("POST", "/other", reply=JSON, content=json.dumps({"session_id": uuid.uuid4().hex}).encode())
    assert len(traffic.learned) == 1


def test_presets_own_their_values() -> None:
    traffic = Traffic(PRESETS["mcp"].rules(PresetContext()), auto=True)
    sid = uuid.uuid4().hex
    reply = [*JSON, (b"mcp-session-id", sid.encode())]
    traffic.call(
        "POST", "/mcp", headers=JSON, body=b"{}", reply=reply, content=json.dumps({"session_id": sid}).encode()
    )
    assert [each.rule.name for each in traffic.learned] == ["mcp"]
    content = json.dumps({"session_id": uuid.uuid4().hex}).encode()
    traffic.call(
        "POST", "/mcp", headers=[*JSON, (b"mcp-session-id", sid.encode())], body=b"{}", reply=JSON, content=content
    )
    assert traffic.learned == []


def test_ones_own_rule_owns_its_values() -> None:
    traffic = Traffic([parse_rule("path:/s/{id} json:session_id", "mine")], auto=True)
    content = json.dumps({"session_id": uuid.uuid4().hex}).encode()
    traffic.call("POST", "/s", reply=JSON, content=content)
    assert [(each.rule.name, each.strict) for each in traffic.learned] == [("mine", True)]


def test_inferred_rules_are_told_once_and_in_words() -> None:
    auto = Auto()
    told: list[str] = []
    auto.on_inferred(told.append)
    rule_set = RuleSet([], auto)
    for _ in range(3):
        sid = uuid.uuid4().hex
        watching = rule_set.watch(POST, None)
        assert watching is not None
        watching.head(200, JSON)
        watching.body(json.dumps({"session_id": sid}).encode(), False)
        found = rule_set.find(RequestView("GET", f"/v1/sessions/{sid}/action"))
        assert isinstance(found, Found)
    assert len(told) == 1
    assert '--session-id "path:/v1/sessions/{id} json:session_id"' in told[0]
    assert sid not in told[0]
    parse_rule("path:/v1/sessions/{id} json:session_id", "as told")


def test_what_is_told_holds_no_id_and_no_line_of_a_client() -> None:
    auto = Auto()
    told: list[str] = []
    auto.on_inferred(told.append)
    rule_set = RuleSet([], auto)
    watching = rule_set.watch(POST, None)
    assert watching is not None
    watching.head(200, JSON)
    watching.body(json.dumps({"job_id": HEX}).encode(), False)
    rule_set.find(RequestView("GET", f"/users/{UUID}/x\ny/v1/jobs/{HEX}"))
    rule_set.find(RequestView("GET", "/", f"x%0Aforged={HEX}".encode()))
    assert len(told) == 1
    assert '"path:/users/*/*/v1/jobs/{id} json:job_id"' in told[0]
    request = RequestView("GET", "/", b"session%0A_id=abc-12345")
    found = rule_set.find(request)
    assert isinstance(found, Found)
    watching = rule_set.watch(request, found)
    assert watching is not None
    watching.head(200, [])
    assert len(told) == 1


def test_inferred_rules_of_clients_are_told_too() -> None:
    auto = Auto()
    told: list[str] = []
    auto.on_inferred(told.append)
    rule_set = RuleSet([], auto)
    for number in range(3):
        for request in (
            RequestView("GET", "/x", f"session_id=abc-12345{number}".encode()),
            RequestView(
                "POST", "/x", headers=[*JSON, (b"content-length", b"9")], body=b'{"a":{"thread_id":"t-123456"}}'
            ),
        ):
            found = rule_set.find(request)
            assert isinstance(found, Found)
            watching = rule_set.watch(request, found)
            assert watching is not None
            watching.head(200, [])
    assert ['"query:session_id mint=client"' in told[0], '"json:a.thread_id mint=client"' in told[1]] == [True, True]
    assert len(told) == 2


def test_the_app_may_announce_an_id_of_any_form() -> None:
    auto = Auto()
    rule_set = RuleSet([], auto)
    assert rule_set.find(RequestView("GET", "/rooms/blue-7")) is None
    assert auto.announce("blue-7") is auto.rule
    found = rule_set.find(RequestView("GET", "/rooms/blue-7"))
    assert isinstance(found, Found)
    assert [named.value for named in found.candidates] == ["blue-7"]


def test_candidates_are_bounded() -> None:
    auto = Auto()
    rule_set = RuleSet([], auto)
    auto.announce(uuid.uuid4().hex)
    path = "/" + "/".join(uuid.uuid4().hex for _ in range(50))
    found = rule_set.find(RequestView("GET", path))
    assert isinstance(found, Found)
    assert len(found.candidates) == 8


def test_conflicts_of_real_rules_block_nothing() -> None:
    board = LocalNames()
    Auto(board).report_conflict(Learned(parse_rule("cookie:sid", "mine"), "x", "0" * 32, False, "cookie:sid"))
    assert board.names() == frozenset()


def test_shared_names_are_bounded() -> None:
    board = LocalNames()
    auto = Auto(board)
    for size in range(1, 400):
        auto.announce("a1" * size)
    for _ in range(400):
        key = uuid.uuid4().hex
        auto.report_conflict(Learned(auto.rule, "x", key, False, f"json:{key}"))
    assert len(board.names()) <= 256
    assert sum(name.startswith("+") for name in board.names()) <= 64


def test_a_board_that_fails_stops_nothing() -> None:
    class Full(LocalNames):
        def add(self, name: str) -> None:
            raise OSError(28, "No space left on device")

    auto = Auto(Full())
    watching = RuleSet([], auto).watch(POST, None)
    assert watching is not None
    watching.head(200, JSON)
    assert len(watching.body(json.dumps({"session_id": UUID}).encode(), False)) == 1
