"""The parts without I/O: bodies, envelopes, the table, the meter, costs, grants, where hooks may go."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionworkers.affinity.views import RequestView
from sessionworkers.ledger.answers import Refused
from sessionworkers.sessions import envelope, messages
from sessionworkers.sessions.costs import Costs, ask, parse_cost
from sessionworkers.sessions.grants import GrantKey
from sessionworkers.sessions.meter import Meter
from sessionworkers.sessions.table import ADD, Explicit, Table, mint, minted
from sessionworkers.sessions.targets import HookAllow, parse_target
from tests.sessions import grant_fixture as keys

# the table


def explicit(**values: Any) -> Explicit:
    given: dict[str, Any] = {
        "id": mint(),
        "key": "k",
        "auth": b"",
        "auth_data": None,
        "lifetime": 10.0,
        "cost": 5.0,
        "on_close_route": None,
        "on_close_payload": None,
        "made": 100.0,
        "offset": 1000.0,
    }
    return Explicit(**{**given, **values})


def test_minted_ids_have_a_shape_of_their_own_and_never_repeat() -> None:
    ids = {mint() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(minted(each) and len(each) == 46 for each in ids)
    for other in ("sw_short", "x" * 46, "sw_" + "!" * 43, "sw_" + "a" * 44, 5, None, "SW_" + "a" * 43):
        assert not minted(other)


@pytest.mark.parametrize(
    ("values", "in_use", "last", "deadline"),
    [
        ({}, False, 100.0, 110.0),
        ({}, False, 125.0, 135.0),
        ({}, True, 100.0, math.inf),
        ({"limit": 120.0}, False, 115.0, 120.0),
        ({"limit": 120.0}, True, 115.0, 120.0),
        ({"limit": 120.0}, False, 105.0, 115.0),
    ],
)
def test_the_deadline(values: dict[str, Any], in_use: bool, last: float, deadline: float) -> None:
    assert explicit(**values).deadline(in_use, last) == deadline


def test_add_moves_the_deadline_by_a_lifetime_each_time_and_never_before_the_end_of_a_request() -> None:
    session = explicit(extend=ADD)
    for _ in range(3):
        session.allowed()
    assert session.deadline(False, 101.0) == 140.0
    assert session.deadline(True, 101.0) == math.inf
    assert session.deadline(False, 150.0) == 160.0
    assert session.expiration(False, 101.0, 102.0) == 1140.0


def test_the_table_pops_once_and_sums_what_is_open() -> None:
    table = Table(2)
    one, other = explicit(key="a"), explicit(key="b", cost=7.5)
    table.add(one)
    assert not table.full
    table.add(other)
    assert table.full
    assert (len(table), table.load) == (2, 12.5)
    assert [table.pop(one), table.pop(one)] == [True, False]
    assert (len(table), table.load, table.get("b")) == (1, 7.5, other)
    table.pop(other)
    assert table.load == 0
    assert table.next_deadline() == math.inf
    assert not Table(0).full


# bodies


def test_a_create_is_read() -> None:
    body = {"auth_data": {"cost": 7}, "payload": {"on_close_route": "/x", "on_close_payload": [1]}}
    wanted = messages.parse_create(json.dumps(body).encode(), lifetime=60, max_lifetime=100)
    assert (wanted.lifetime, wanted.cost, wanted.on_close_route, wanted.on_close_payload) == (60, 7, "/x", [1])


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_no_body_is_more_than_a_422(body: bytes) -> None:
    for parse in (
        lambda: messages.parse_create(body, lifetime=60, max_lifetime=100),
        lambda: messages.parse_credentials(body),
    ):
        try:
            parse()
        except Refused as refused:
            assert refused.status == 422


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(_json)
def test_equal_json_has_equal_digests(value: Any) -> None:
    def turned(each: Any) -> Any:
        if isinstance(each, dict):
            return {name: turned(each[name]) for name in reversed(list(each))}
        if isinstance(each, list):
            return [turned(item) for item in each]
        if isinstance(each, int) and not isinstance(each, bool):
            return float(each)
        return each

    assert messages.digest(value) == messages.digest(turned(value))
    assert messages.digest(value) != messages.digest({"other": value})


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (None, {"session_id": "s"}),
        ({"a": 1}, {"a": 1, "session_id": "s"}),
        ({"session_id": "mine"}, {"session_id": "mine"}),
        ([1], {"payload": [1], "session_id": "s"}),
        ("x", {"payload": "x", "session_id": "s"}),
        (0, {"payload": 0, "session_id": "s"}),
    ],
)
def test_the_hooks_body(payload: Any, body: Any) -> None:
    assert json.loads(messages.hook_body(payload, "s")) == body


# envelopes

ID = "sw_" + "iD4_-" * 8 + "xyz"


@pytest.mark.parametrize(
    ("body", "complete", "found"),
    [
        (b'{"auth_data": {"a": 1}, "session_id": "%b", "payload": {}}' % ID.encode(), True, ID),
        (b' \n{"session_id" : "%b" , "payload"' % ID.encode(), False, ID),
        (b'{"auth_data": {"a": 1}, "session_id": "%b", "payload": {"x": "yyy' % ID.encode(), False, ID),
        (b'{"payload": {"a": [1, "}"]}, "session_id": "%b"}' % ID.encode(), True, ID),
        (b'{"payload": {"session_id": "%b"}}' % ID.encode(), True, None),
        (b'{"x": "\\"session_id\\": \\"%b\\""}' % ID.encode(), True, None),
        (b'["session_id", "%b"]' % ID.encode(), True, None),
        (b'{"session_id": "%b", "session_id": 1}' % ID.encode(), True, None),
        (b'{"session_id": null}', True, None),
        (b'{"session_id": "mine"}', True, None),
        (b'{"auth_data": {"a": 1}, "session_id": "mine"}', True, "mine"),
        (b'{"auth_data": "a", "session_id": "mine"}', True, None),
        (b'{"session_id": "sw_cut', False, None),
        (b'\xff{"session_id": 1}', True, None),
        (b"", True, None),
        (b"{" * 5000 + b'"session_id"', False, None),
    ],
)
def test_the_envelope_is_scanned_from_the_front(body: bytes, complete: bool, found: Any) -> None:
    seen = envelope.scan(body, complete)
    assert (seen.session_id if seen.names_session else None) == found


@given(_json, st.integers(0, 200))
def test_the_scan_never_raises_and_reads_what_json_reads(value: Any, cut: int) -> None:
    document = {"auth_data": {"a": value}, "session_id": ID, "payload": value}
    body = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    envelope.scan(body[:cut], False)
    seen = envelope.scan(body, True)
    if "\ud800" <= max(json.dumps(value, ensure_ascii=False)) <= "\udfff":
        return
    assert (seen.session_id, seen.auth_data) == (ID, {"a": value})


def test_a_prefix_cut_within_a_character_is_read() -> None:
    body = b'{"session_id": "%b", "payload": "\xc3' % ID.encode()
    assert envelope.scan(body, False).session_id == ID


def test_the_header_is_read_for_http_and_the_query_for_websockets_alone() -> None:
    query = f"a=1&x-session-id={ID}".encode()
    assert envelope.header_id(RequestView(headers=[(b"x-session-id", ID.encode())])) == ID
    assert envelope.header_id(RequestView(query=query)) is None
    assert envelope.header_id(RequestView(query=query, kind="websocket")) == ID
    assert envelope.header_id(RequestView(headers=[(b"x-session-id", b"mine")])) is None


# the meter


def test_nothing_is_refused_before_throughput_was_measured() -> None:
    meter = Meter(1.0)
    meter.begin(1e9, 0.0)
    assert meter.refuses() is None


def test_wait_is_work_in_flight_over_measured_throughput() -> None:
    meter = Meter(2.0)
    for second in range(5):
        meter.begin(100, float(second))
        meter.finish(100, second + 1.0)
    assert meter.throughput() == pytest.approx(100)
    assert meter.wait() == 0
    for _ in range(3):
        meter.begin(100, 10.0)
    assert meter.wait() == pytest.approx(3)
    assert meter.refuses() == 1
    assert meter.rejected == 1
    meter.finish(100, 11.0)
    assert meter.wait() < 3


def test_idle_time_and_failed_requests_do_not_count_as_throughput() -> None:
    meter = Meter(None)
    meter.begin(100, 0.0)
    meter.finish(100, 1.0)
    meter.begin(100, 1000.0)
    meter.finish(100, 1000.0, served=False)
    assert meter.throughput() == pytest.approx(100)
    assert meter.refuses() is None


@pytest.mark.parametrize("text", ["100", "0", "1.5", "/a=3", "/a/{id}=json:loads", "os.path:join"])
def test_costs_that_can_be(text: str) -> None:
    parse_cost(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "/a", "/a=", "a:b:c", ":x", "a b:c"])
def test_costs_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cost(text)


def test_the_first_path_decides_then_the_default() -> None:
    costs = Costs(["7", "/a=2", "/a/b=3"])
    assert costs.of(RequestView(path="/a/b")) == 2
    assert costs.of(RequestView(path="/x")) == 7
    assert Costs([]).of(RequestView(path="/x")) == 100


@pytest.mark.parametrize(("says", "cost"), [(5, 5), ("6", 6), (-1, 100), (math.nan, 100), (math.inf, 100), (None, 100)])
def test_a_cost_function_that_says_no_cost_means_100(says: Any, cost: float) -> None:
    assert ask(lambda payload: says, {}) == cost


# grants


def test_a_grant_signed_by_the_platform_is_known_by_its_url_alone() -> None:
    for pem in (keys.PUBLIC_PEM, keys.PKCS1_PEM):
        key = GrantKey(pem)
        assert key.signed(keys.SIGNED)
        assert key.signed({"url": keys.SIGNED["url"], "signature": keys.SIGNATURE, "cost": 1e9})


@pytest.mark.parametrize(
    "grant",
    [
        None,
        {},
        "x",
        {**keys.SIGNED, "url": "http://127.0.0.1:8001"},
        {**keys.SIGNED, "url": None},
        {**keys.SIGNED, "signature": keys.SHA1_SIGNATURE},
        {**keys.SIGNED, "signature": keys.PSS_SIGNATURE},
        {**keys.SIGNED, "signature": keys.SIGNATURE[:-8]},
        {**keys.SIGNED, "signature": "A" * 344},
        {**keys.SIGNED, "signature": "!" * 344},
        {**keys.SIGNED, "signature": ""},
        {**keys.SIGNED, "signature": 5},
        {**keys.SIGNED, "url": "\ud800"},
    ],
)
def test_any_other_is_not(grant: Any) -> None:
    assert not GrantKey(keys.PUBLIC_PEM).signed(grant)


def test_every_bit_of_a_signature_counts() -> None:
    key = GrantKey(keys.PUBLIC_PEM)
    import base64

    message = json.dumps({"url": keys.SIGNED["url"]}, indent=4, sort_keys=True).encode()
    good = base64.b64decode(keys.SIGNATURE)
    assert key.verify(message, good)
    for bit in range(0, len(good) * 8, 37):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert not key.verify(message, bytes(bad))
    assert not key.verify(message + b" ", good)
    assert not key.verify(message, b"\0" + good)


@pytest.mark.parametrize(
    "pem", ["", "x", keys.SMALL_PEM, keys.EC_PEM, keys.PUBLIC_PEM[:200], keys.PUBLIC_PEM.replace("M", "!")]
)
def test_a_key_that_is_none_is_told(pem: str) -> None:
    with pytest.raises(ValueError):
        GrantKey(pem)


# where hooks may go

ALLOW = HookAllow(["hooks.example", "only.example:8443", "10.0.0.0/8", "127.0.0.1", "::1"])
NOTHING = HookAllow([])


@pytest.mark.parametrize(
    ("route", "path"),
    [
        ("/x", "/x"),
        ("x", "/x"),
        ("/x?a=1#b", "/x?a=1"),
        ("//evil.example/x", "/evil.example/x"),
        ("/%2e%2e/x", "/%2e%2e/x"),
    ],
)
def test_a_relative_hook_stays_here(route: str, path: str) -> None:
    target = parse_target(route, None, NOTHING)
    assert (target.host, target.path) == (None, path)
    target = parse_target(route, "http://127.0.0.1:8080/base/", NOTHING)
    assert (target.host, target.port, target.path) == ("127.0.0.1", 8080, "/base" + path)


@pytest.mark.parametrize(
    "route",
    [
        "http://hooks.example/x",
        "https://HOOKS.example./x",
        "http://hooks.example:8080/x",
        "https://only.example:8443/",
        "http://10.1.2.3/x",
        "http://127.0.0.1:9/x",
        "http://[::1]/x",
        "http://[::ffff:10.0.0.1]/x",
        "http://unlisted.example/x",  # a name: judged by what it resolves to
    ],
)
def test_an_absolute_hook_to_what_is_listed(route: str) -> None:
    assert parse_target(route, None, ALLOW).host


@pytest.mark.parametrize(
    "route",
    [
        "http://11.0.0.1/x",
        "http://169.254.169.254/latest",
        "http://[::ffff:169.254.169.254]/",
        "http://[fe80::1]/",
        "http://user:pw@hooks.example/x",
        "http://hooks.example@evil.example/x",
        "ftp://hooks.example/x",
        "file:///etc/passwd",
        "unix:/run/x.sock",
        "javascript:x",
        "http:///x",
        "http://:80/x",
        "http://hooks.example:99999/",
        "http://hooks.example\\@evil/",
        "http://hooks .example/",
        "http://h\u00f6oks.example/",
        "/a\r\nX: y",
        "",
        "/" + "x" * 3000,
    ],
)
def test_hooks_that_are_never_posted(route: str) -> None:
    with pytest.raises(ValueError):
        parse_target(route, None, ALLOW)


@pytest.mark.parametrize("route", ["http://hooks.example/x", "http://127.0.0.1/x", "https://[::1]/x"])
def test_absolute_hooks_are_off_by_default(route: str) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        parse_target(route, None, NOTHING)


@pytest.mark.parametrize(
    ("addresses", "allowed"),
    [
        (["10.0.0.1"], True),
        (["10.0.0.1", "10.9.9.9"], True),
        (["10.0.0.1", "8.8.8.8"], False),
        (["::ffff:10.0.0.1"], True),
        (["::1"], True),
        (["fe80::1%eth0"], False),
        ([], False),
    ],
)
def test_a_name_is_judged_by_every_address(addresses: list[str], allowed: bool) -> None:
    assert ALLOW.covers(addresses) is allowed


@pytest.mark.parametrize("entry", ["http://x", "a b", "", "host:0", "host:x", "-x", "*"])
def test_entries_of_the_list_that_are_none(entry: str) -> None:
    with pytest.raises(ValueError):
        HookAllow([entry])
