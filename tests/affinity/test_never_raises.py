"""Whatever a client or an app sends: nothing raises, and nothing that was looked at is changed."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionworkers.affinity.auto import Auto
from sessionworkers.affinity.ids import valid_id
from sessionworkers.affinity.presets import PRESETS, PresetContext
from sessionworkers.affinity.ruleset import Found, NeedBody, RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import parse_rule

UUID = b"550e8400-e29b-41d4-a716-446655440000"
CONTEXT = PresetContext(cookies=(("session", "s", 100), ("A___b", "A___b", None)))
RULES = [
    parse_rule("path:/v1/sessions/{id} json:session_id header:x-session cookie:sid query:sid", "own"),
    parse_rule("json:a.b token:x-token/sid starlette-cookie:s/f", "more"),
    *(rule for preset in PRESETS.values() for rule in preset.rules(CONTEXT)),
]
names = st.sampled_from(
    [
        b"cookie",
        b"mcp-session-id",
        b"x-session",
        b"x-token",
        b"mcp-method",
        b"mcp-param-x",
        b"content-length",
        b"authorization",
        b"x-nemo-gym-session-token",
        b"x-session-id",
        b"accept",
        b"set-cookie",
        b"location",
        b"content-encoding",
        b"vary",
    ]
)
pieces = st.sampled_from(
    [
        UUID,
        b"session=",
        b"sid=",
        b"A___b=",
        b".",
        b"..",
        b'"',
        b'\\"',
        b"{",
        b"}",
        b'{"session_id":"',
        b'"}',
        b"null",
        b";",
        b"%00",
        b"0",
        b"9" * 30,
        b"\xff",
        b"\\ud800",
        b"[",
        b'{"a":{"b":',
        b"gzip",
        b"eyJhIjoxfQ",
        b"data: ",
        b"\n\n",
        b"\r",
        b"/sessions/",
        b"?",
    ]
)
texts = st.one_of(st.binary(max_size=40), st.lists(pieces, max_size=8).map(b"".join))
kinds = st.sampled_from([b"application/json", b"text/event-stream", b"text/plain", b"text/html", b"a/b", b""])
headers = st.lists(st.tuples(names, texts), max_size=6)
paths = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(
            [
                "/v1",
                "/sessions",
                "/" + UUID.decode(),
                "/call",
                "/queue/join",
                "/stream",
                "/mcp",
                "/seed_session",
                "/_nicegui/client",
                "/heartbeat",
                "//",
                "/socket.io/",
                "/x\x00",
                "/\u00e9",
                "/\ud800",
            ]
        ),
        max_size=6,
    ).map("".join),
)
requests = st.builds(
    lambda method, path, query, head, kind, type_, root: RequestView(
        method, path, query, [*head, (b"content-type", type_)], kind=kind, root_path=root
    ),
    st.sampled_from(["GET", "POST", "DELETE", "HEAD", "BREW"]),
    paths,
    texts,
    headers,
    st.sampled_from(["http", "websocket"]),
    kinds,
    st.sampled_from(["", "/v1", "/"]),
)


def named(found: Found) -> list[str]:
    ids = [found.primary, *found.also, *found.candidates, *(each for _, each in found.joins)]
    return [each.value for each in ids] + (named(found.otherwise) if found.otherwise is not None else [])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests, texts, st.integers(100, 599), headers, kinds, st.lists(texts, max_size=5), st.booleans())
def test_never_raises_and_changes_nothing(
    request_: RequestView,
    body: bytes,
    status: int,
    reply: list[tuple[bytes, bytes]],
    kind: bytes,
    chunks: list[bytes],
    learned_before: bool,
) -> None:
    auto = Auto()
    rule_set = RuleSet(RULES, auto)
    if learned_before:
        auto.announce(UUID.decode())
    before = (request_.method, request_.path, request_.query, copy.copy(request_.headers), request_.root_path)
    found = rule_set.find(request_)
    if isinstance(found, NeedBody):
        request_.body = body
        found = rule_set.find(request_)
    assert not isinstance(found, NeedBody)
    if found is not None:
        assert all(valid_id(value, 1 << 20) for value in named(found))
    rule_set.off(request_)
    rule_set.start_without_id(request_)
    rule_set.start_or_end(request_)
    watching = rule_set.watch(request_, found)
    assert watching is not None
    head = [*reply, (b"Content-Type", kind)]
    kept = copy.copy(head)
    told = list(watching.head(status, head))
    for index, chunk in enumerate(chunks):
        copied = bytes(chunk)
        told += watching.body(chunk, index < len(chunks) - 1)
        assert chunk == copied
    for chunk in chunks:
        told += watching.message(chunk)
        told += watching.message(chunk.decode("latin-1"))
    assert head == kept
    assert before == (request_.method, request_.path, request_.query, request_.headers, request_.root_path)
    assert all(valid_id(each.value, 1 << 20) for each in told)
    assert len({each.key for each in told}) == len(told)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests, texts, st.booleans())
def test_the_cheap_look_misses_no_rule(request_: RequestView, body: bytes, read: bool) -> None:
    auto = Auto()
    auto.announce(UUID.decode())
    rule_set = RuleSet(RULES, auto)
    if read:
        request_.body = body
    everything = rule_set.interest.rules | rule_set.interest.session
    assert rule_set.find(request_) == rule_set._find(request_, everything)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_words_raise_only_value_errors(text: str) -> None:
    try:
        parse_rule(text, "r")
    except ValueError:
        pass


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["header:x", "json:", "path:/a/{id}", "learn=", "start=", "POST:", "/x", "=", "@/", "~[", "idle=1", ":"]
        ),
        max_size=4,
    )
)
def test_half_words_raise_only_value_errors(parts: list[str]) -> None:
    for joiner in ("", " "):
        try:
            parse_rule(joiner.join(parts), "r")
        except ValueError:
            pass
