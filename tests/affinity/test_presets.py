"""Presets against what the frameworks do on the wire: every request of a session reaches the worker that holds it."""

from __future__ import annotations

import json
import secrets
import uuid
from base64 import b64encode

import pytest
from itsdangerous import TimestampSigner, URLSafeSerializer

from sessionworkers.affinity.presets import PRESETS, PresetContext, recognised
from sessionworkers.affinity.rules import Mint, Rule
from sessionworkers.affinity.ruleset import RuleSet
from sessionworkers.affinity.views import RequestView

from .traffic import JSON, Traffic

NEMO = "StatefulCounterResourcesServer___counter"
CONTEXT = PresetContext(cookies=((NEMO, NEMO, 1_209_600),), retry_window=300.0)
EVENTS = [(b"content-type", b"text/event-stream")]


def rules(*names: str, context: PresetContext = CONTEXT) -> list[Rule]:
    return [rule for name in names for rule in PRESETS[name].rules(context)]


def test_all_presets_together_have_distinct_rules() -> None:
    names = [rule.name for rule in rules(*PRESETS)]
    assert len(names) == len(set(names))
    assert list(PRESETS) == ["mcp", "gradio", "nicegui", "socketio", "nemo-gym", "starlette"]


def test_recognised_by_what_is_imported() -> None:
    assert recognised(set()) == []
    assert recognised({"starlette.middleware.sessions", "mcp.server.sse"}) == ["mcp", "starlette"]
    assert recognised({"mcp"}) == []  # a client alone holds no sessions


# MCP


def test_mcp_streamable_http() -> None:
    traffic = Traffic(rules("mcp", "starlette"), auto=True)
    for _ in range(6):
        sid = uuid.uuid4().hex
        header = (b"mcp-session-id", sid.encode())
        owner = traffic.call(
            "POST", "/mcp", headers=JSON, body=b'{"method":"initialize"}', reply=[*EVENTS, header], content=b""
        )
        assert [(each.value, each.strict, each.rule.name) for each in traffic.learned] == [(sid, True, "mcp")]
        assert not traffic.held
        reads = traffic.read
        for method, status in (("POST", 202), ("POST", 200), ("GET", 200), ("DELETE", 200)):
            # The client also sends a cookie of another session: the header decides.
            headers = [*JSON, header, (b"cookie", b"session=x.y.z")]
            assert traffic.call(method, "/mcp", headers=headers, body=b"{}", status=status, reply=[header]) == owner
            assert traffic.learned == []
            assert traffic.found is not None
            assert traffic.found.end is (method == "DELETE")
        assert traffic.read == reads


def test_mcp_gone() -> None:
    rule = rules("mcp")[0]
    assert (rule.gone.status, rule.gone.jsonrpc, rule.idle) == (404, True, 1800)
    assert json.loads(rule.gone.body)["error"] == {"code": -32600, "message": "Session not found"}
    assert not rule.has_lifetime


@pytest.mark.parametrize("path", ["/messages/", "/api/messages/", "/custom"])
def test_mcp_legacy_sse(path: str) -> None:
    traffic = Traffic(rules("mcp"), auto=True)
    for _ in range(6):
        sid = uuid.uuid4().hex
        first = f"event: endpoint\r\ndata: {path}?session_id={sid}\r\n\r\n".encode()
        owner = traffic.call("GET", "/sse", reply=EVENTS, content=first)
        assert not traffic.held
        for _ in range(3):
            assert traffic.call("POST", path, query=f"session_id={sid}", headers=JSON, body=b"{}", status=202) == owner


def call(arguments: dict[str, object], **params: object) -> bytes:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    return json.dumps({**message, "params": {"name": "t", "arguments": arguments, **params}}).encode()


MODERN = [*JSON, (b"mcp-method", b"tools/call"), (b"mcp-protocol-version", b"2026-07-28")]


@pytest.mark.parametrize("framing", ["json", "events"])
def test_mcp_handles_in_arguments_and_headers(framing: str) -> None:
    traffic = Traffic(rules("mcp"), auto=True)
    for _ in range(6):
        handle = str(uuid.uuid4())
        result = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"structuredContent": {"result": handle}}}).encode()
        content = result if framing == "json" else b"event: message\r\ndata: " + result + b"\r\n\r\n"
        reply = JSON if framing == "json" else EVENTS
        owner = traffic.call("POST", "/mcp", headers=MODERN, body=call({}), reply=reply, content=content)
        assert [each.strict for each in traffic.learned] == [False]
        body = call({"item": "1", "session_id": handle})
        assert traffic.call("POST", "/mcp", headers=MODERN, body=body, reply=reply) == owner
        # The first arguments of unrelated calls do not route.
        traffic.call("POST", "/mcp", headers=MODERN, body=call({"item": "1"}))
        assert traffic.found is None
        headers = [*MODERN, (b"mcp-param-game", handle.encode())]
        assert traffic.call("POST", "/mcp", headers=headers, body=call({"x": 1})) == owner


def test_mcp_request_state_is_never_capped() -> None:
    traffic = Traffic(rules("mcp"))
    owner = traffic.call("POST", "/mcp", headers=MODERN, body=call({}), reply=JSON, content=b"{}")
    for size in (230, 5000, 60_000):
        state = "v1." + secrets.token_urlsafe(size)
        content = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"requestState": state}}).encode()
        owner = traffic.call("POST", "/mcp", headers=MODERN, body=call({}), reply=JSON, content=content)
        assert traffic.call("POST", "/mcp", headers=MODERN, body=call({}, requestState=state)) == owner


# Socket.IO


def test_socketio_polling_upgrade_and_namespaces() -> None:
    traffic = Traffic(rules("socketio"), auto=True)
    text = [(b"content-type", b"text/plain; charset=UTF-8")]
    for number in range(6):
        sid = secrets.token_urlsafe(12)[:16].lower() + "AAAA"
        first = f'0{{"sid":"{sid}","upgrades":["websocket"],"pingInterval":25000}}'.encode()
        owner = traffic.call("GET", "/socket.io/", query="transport=polling&EIO=4", reply=text, content=first)
        assert traffic.held
        query = f"transport=polling&EIO=4&sid={sid}"
        assert traffic.call("POST", "/socket.io/", query=query, body=b"40", reply=text, content=b"OK") == owner
        connect = f'40{{"sid":"ns{number}x"}}\x1e40/admin,{{"sid":"ad{number}x"}}'.encode()
        assert traffic.call("GET", "/socket.io/", query=query, reply=text, content=connect) == owner
        upgrade = f"transport=websocket&EIO=4&sid={sid}"
        messages = ["3probe", "6", f'40/late,{{"sid":"la{number}x"}}']
        assert traffic.call("GET", "/socket.io/", query=upgrade, kind="websocket", messages=messages) == owner
        # An app's own API may name the socket (open-webui does).
        for named in (f"ns{number}x", f"ad{number}x", f"la{number}x"):
            body = json.dumps({"session_id": named}).encode()
            assert traffic.call("POST", "/api/chat", headers=JSON, body=body) == owner


def test_socketio_websocket_only() -> None:
    traffic = Traffic(rules("socketio"))
    messages = ['0{"sid":"abc","upgrades":[]}', '40{"sid":"def"}']
    traffic.call("GET", "/socket.io/", query="transport=websocket&EIO=4", kind="websocket", messages=messages)
    assert [each.value for each in traffic.learned] == ["abc", "def"]


def test_a_sid_elsewhere_is_no_engineio_session() -> None:
    rule_set = RuleSet([rule for rule in rules("socketio") if rule.name == "socketio"])
    assert rule_set.find(RequestView("GET", "/tracks", b"sid=abc")) is None


# Gradio


@pytest.mark.parametrize("prefix", ["", "/gradio_api", "/demo/gradio_api"])
def test_gradio(prefix: str) -> None:
    traffic = Traffic(rules("gradio"), auto=True)
    for _ in range(6):
        hash = secrets.token_hex(6)[:11]
        owner = traffic.call("GET", f"{prefix}/heartbeat/{hash}", reply=EVENTS)
        body = json.dumps({"data": [None], "fn_index": 0, "session_hash": hash}).encode()
        event = uuid.uuid4().hex
        content = json.dumps({"event_id": event}).encode()
        assert (
            traffic.call("POST", f"{prefix}/queue/join", headers=JSON, body=body, reply=JSON, content=content) == owner
        )
        assert traffic.call("GET", f"{prefix}/queue/data", query=f"session_hash={hash}", reply=EVENTS) == owner
        assert traffic.call("POST", f"{prefix}/stream/{event}", headers=JSON, body=b"{}") == owner
        assert traffic.call("POST", f"{prefix}/stream/{event}/close") == owner
        assert traffic.call("GET", f"{prefix}/stream/{hash}/1/2/playlist.m3u8") == owner
        cancel = json.dumps({"session_hash": hash, "fn_index": 0, "event_id": event}).encode()
        assert traffic.call("POST", f"{prefix}/cancel", headers=JSON, body=cancel) == owner
        reset = json.dumps({"event_id": event}).encode()
        assert traffic.call("POST", f"{prefix}/reset", headers=JSON, body=reset) == owner


@pytest.mark.parametrize("version", ["/call", "/call/v2"])
def test_gradio_simple_calls(version: str) -> None:
    traffic = Traffic(rules("gradio"))
    for _ in range(6):
        event = uuid.uuid4().hex
        content = json.dumps({"event_id": event}).encode()
        path = f"/gradio_api{version}/predict"
        owner = traffic.call("POST", path, headers=JSON, body=b'{"data":[]}', reply=JSON, content=content)
        assert traffic.found is None
        assert traffic.call("GET", f"{path}/{event}", reply=EVENTS) == owner


def test_gradio_uploads() -> None:
    traffic = Traffic(rules("gradio"))
    for _ in range(6):
        upload = secrets.token_hex(5)
        owner = traffic.call("POST", "/gradio_api/upload", query=f"upload_id={upload}", body=b"x")
        assert traffic.call("GET", "/gradio_api/upload_progress", query=f"upload_id={upload}") == owner


def test_gradio_join_and_heartbeat_race() -> None:
    by_name = {rule.name: rule for rule in rules("gradio")}
    assert by_name["gradio"].mint is Mint.CLIENT
    assert by_name["gradio"].idle == 3600


def test_gradio_login_comes_before_a_new_tab() -> None:
    """The login's token lives in one worker's memory; a hash that nobody claims yet follows its cookie."""
    traffic = Traffic(rules("gradio"), auto=True)
    value = "pZ3k-9vQ2mB7_R4tW8yL1c"  # of a real one 1 in 450 does not look random to `auto`
    reply = [(b"set-cookie", f"access-token-unsecure-x={value}; HttpOnly; Path=/".encode())]
    owner = traffic.call("POST", "/login", reply=reply)
    cookie = (b"cookie", f"access-token-unsecure-x={value}".encode())
    for number in range(5):
        body = json.dumps({"session_hash": f"a1b2c3d4e5{number}"}).encode()
        assert traffic.call("POST", "/gradio_api/queue/join", headers=[*JSON, cookie], body=body) == owner
        query = f"session_hash=a1b2c3d4e5{number}"
        assert traffic.call("GET", "/gradio_api/queue/data", query=query, headers=[cookie]) == owner
        assert traffic.call("GET", "/gradio_api/queue/data", query=query) == owner


# NiceGUI


def test_nicegui() -> None:
    traffic = Traffic(rules("nicegui", "socketio"), auto=True)
    for status in (200, 404, 200):
        client = str(uuid.uuid4())
        page = f"<script>const x = {{'client_id': '{client}', 'next': 0}}</script>".encode()
        reply = [(b"content-type", b"text/html; charset=utf-8"), (b"x-nicegui-content", b"page")]
        owner = traffic.call("GET", "/", reply=reply, content=page, status=status)
        query = f"client_id={client}&EIO=4&transport=websocket"
        messages = ['0{"sid":"abc","upgrades":[]}']
        assert traffic.call("GET", "/_nicegui_ws/socket.io/", query=query, kind="websocket", messages=messages) == owner
        upload = f"/_nicegui/client/{client}/upload/3"
        assert traffic.call("POST", upload, body=b"x") == owner
        assert traffic.call("POST", "/mounted" + upload, body=b"x") == owner


# Starlette


def cookie(payload: dict[str, object], secret: str) -> str:
    return TimestampSigner(secret).sign(b64encode(json.dumps(payload).encode())).decode()


def sets(name: str, payload: dict[str, object], secret: str) -> list[tuple[bytes, bytes]]:
    value = f"{name}={cookie(payload, secret)}; path=/; Max-Age=1209600; httponly; samesite=lax"
    return [(b"set-cookie", value.encode()), (b"vary", b"Cookie")]


def sends(name: str, payload: dict[str, object], secret: str) -> tuple[bytes, bytes]:
    return (b"cookie", f'theme=dark; {name}="{cookie(payload, secret)}"'.encode())


@pytest.mark.parametrize("known", [True, False], ids=["secret", "no secret"])
def test_starlette_session_cookies(known: bool) -> None:
    context = PresetContext(cookies=(("session", "s3", 1_209_600),)) if known else PresetContext()
    traffic = Traffic(rules("starlette", context=context), auto=True)
    for _ in range(6):
        payload: dict[str, object] = {"session_id": uuid.uuid4().hex}
        owner = traffic.call("POST", "/seed_session", reply=sets("session", payload, "s3"), content=b"{}")
        for _ in range(3):
            headers = [sends("session", payload, "s3")]
            assert traffic.call("POST", "/step", headers=headers, reply=[(b"vary", b"Cookie")]) == owner


def test_stateless_session_cookies_are_not_claimed() -> None:
    traffic = Traffic(rules("starlette", context=PresetContext()), auto=True)
    payload: dict[str, object] = {"user": "alice", "user_id": str(uuid.uuid4()), "cart": [1, 2]}
    traffic.call("POST", "/login", reply=sets("session", payload, "s3"), content=b"{}")
    assert traffic.learned == []
    traffic.call("GET", "/cart", headers=[sends("session", payload, "s3")])
    assert traffic.found is None
    assert traffic.claims == {}


def test_starlette_uses_each_middleware_and_every_secret() -> None:
    context = PresetContext(cookies=(("a", "s1", None), ("b", "s2", 60)), secrets=("old",), idle=1000.0)
    first, second = rules("starlette", context=context)
    assert (first.name, first.idle, second.name, second.idle) == ("starlette:a", 1000.0, "starlette:b", 60.0)
    request = RequestView(headers=[sends("a", {"session_id": "x" * 8 + "1" * 8}, "old")])
    found = first.carriers[0].read(request)
    assert found is not None
    assert found.verified
    assert rules("starlette", context=CONTEXT) == []  # NeMo Gym's own cookie


# NeMo Gym


def token(sid: str, **extra: object) -> tuple[bytes, bytes]:
    value = URLSafeSerializer(NEMO, salt="nemo-gym-mcp-session-token").dumps({"sid": sid, "tools": None, **extra})
    return (b"x-nemo-gym-session-token", value.encode())


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/abc.1", "/ng-rollout/abc.1/training-token-capture"])
def test_nemo_untyped_seed(prefix: str) -> None:
    traffic = Traffic(rules("nemo-gym"), auto=True)
    for _ in range(6):
        sid = str(uuid.uuid4())
        reply = [*JSON, *sets(NEMO, {"session_id": sid}, NEMO)]
        owner = traffic.call("POST", f"{prefix}/seed_session", headers=JSON, body=b"{}", reply=reply, content=b"{}")
        assert [(each.value, each.strict) for each in traffic.learned] == [(sid, True)]
        headers = [*JSON, sends(NEMO, {"session_id": sid}, NEMO)]
        again = [*JSON, *sets(NEMO, {"session_id": sid}, NEMO)]
        for path, end in (("/increment", False), ("/verify", True), ("/close_session", True)):
            assert traffic.call("POST", prefix + path, headers=headers, body=b"{}", reply=again, content=b"{}") == owner
            assert traffic.found is not None
            assert traffic.found.end is end
            assert traffic.learned == []


def test_nemo_typed_seed_and_close() -> None:
    traffic = Traffic(rules("nemo-gym"))
    for _ in range(6):
        typed, inner = f"resources-session-{uuid.uuid4().hex}", str(uuid.uuid4())
        body = json.dumps({"resources_session_id": typed, "episode_id": {"rollout_id": "r", "attempt": 0}}).encode()
        reply = [*JSON, *sets(NEMO, {"session_id": inner}, NEMO)]
        owner = traffic.call("POST", "/seed_session", headers=JSON, body=body, reply=reply, content=b"{}")
        assert traffic.found is not None
        assert traffic.found.start
        assert traffic.found.rule.refuse_late_start
        assert [each.value for each in traffic.learned] == [inner]
        headers = [*JSON, sends(NEMO, {"session_id": inner}, NEMO)]
        assert traffic.call("POST", "/close_session", headers=headers, body=body, reply=JSON) == owner
        assert traffic.found is not None
        assert traffic.found.end
        assert [named.value for named in traffic.found.also] == [inner]
        assert traffic.call("POST", "/close_session", headers=JSON, body=body) == owner


def test_nemo_checkpoint_suspends_the_end() -> None:
    traffic = Traffic(rules("nemo-gym"))
    headers = [sends(NEMO, {"session_id": str(uuid.uuid4())}, NEMO), (b"x-ng-checkpoint-close-follows", b"1")]
    traffic.call("POST", "/verify", headers=headers)
    assert traffic.found is not None
    assert not traffic.found.end


def test_nemo_agents() -> None:
    traffic = Traffic(rules("nemo-gym"))
    for _ in range(6):
        agent, inner = f"agent-session-{uuid.uuid4().hex}", str(uuid.uuid4())
        body = json.dumps({"agent_session_id": agent}).encode()
        payload: dict[str, object] = {"session_id": inner, "agent_session_id": agent}
        reply = [*JSON, *sets(NEMO, payload, NEMO)]
        owner = traffic.call("POST", "/v1/agent_sessions", headers=JSON, body=body, reply=reply, content=b"{}")
        assert traffic.learned == []  # the cookie names the body's ID
        headers = [*JSON, sends(NEMO, payload, NEMO)]
        assert traffic.call("POST", "/v1/responses", headers=headers, body=b"{}", reply=reply) == owner
        assert traffic.found is not None
        assert traffic.found.primary.value == agent
        assert traffic.call("POST", "/v1/agent_sessions/close", headers=JSON, body=body) == owner
        assert traffic.found is not None
        assert traffic.found.end


@pytest.mark.parametrize("path", ["/mcp", "/mcp/x", "/ng-rollout/r1/mcp"])
def test_nemo_token_comes_before_the_cookie_below_mcp(path: str) -> None:
    traffic = Traffic(rules("mcp", "nemo-gym"))
    sid, other = str(uuid.uuid4()), str(uuid.uuid4())
    reply = [*JSON, *sets(NEMO, {"session_id": sid}, NEMO)]
    owner = traffic.call("POST", "/seed_session", headers=JSON, body=b"{}", reply=reply, content=b"{}")
    for _ in range(5):
        # The official client keeps the cookie of its first reply, which names another session.
        headers = [*JSON, sends(NEMO, {"session_id": other}, NEMO), token(sid, tools=["t" * 50] * 20)]
        junk = sets(NEMO, {"session_id": other}, NEMO)
        assert traffic.call("POST", path, headers=headers, body=b"{}", reply=[*JSON, *junk], content=b"{}") == owner
        assert traffic.found is not None
        assert traffic.found.primary.value == sid
        assert traffic.learned == []


def test_nemo_token_without_cookie_elsewhere_and_unknown_token() -> None:
    traffic = Traffic(rules("nemo-gym"))
    sid = str(uuid.uuid4())
    owner = traffic.call("POST", "/increment", headers=[token(sid)])
    assert all(traffic.call("POST", "/increment", headers=[token(sid)]) == owner for _ in range(4))
    forged = (b"x-nemo-gym-session-token", URLSafeSerializer("no", salt="x").dumps({"sid": sid}).encode())
    traffic.call("POST", "/increment", headers=[forged])
    assert traffic.found is None


def test_nemo_times() -> None:
    (rule,) = rules("nemo-gym", context=PresetContext(retry_window=77.0))
    assert (rule.retry_window, rule.idle, rule.has_lifetime) == (77.0, 77.0, True)
