"""Rules in words: parsed, printed back, refused with a clear message."""

from __future__ import annotations

import pytest

from sessionworkers.affinity.presets import PRESETS, PresetContext
from sessionworkers.affinity.rules import FailedStart, Mint, Rule
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import describe, parse_rule, rule_from_table

FULL = (
    "path:/v1/sessions/{id} json:session_id learn=json:data.id learn=header:x-id only=/v1/sessions/** "
    "start=POST:/v1/sessions start=WS:/ws end=DELETE|POST:/v1/sessions/{id} end-unless=x-more mint=client "
    "failed-start=release late-start=refuse gone=404-jsonrpc idle=1800 window=60 return=30 space=s"
)


def test_all_words() -> None:
    rule = parse_rule(FULL, "mine")
    assert rule.name == "mine"
    assert [carrier.word for carrier in rule.carriers] == ["path:/v1/sessions/{id}", "json:session_id"]
    assert [learner.word for learner in rule.learners] == ["json:data.id", "header:x-id"]
    assert rule.starts[0].methods == {"POST"}
    assert rule.starts[1].kind == "websocket"
    assert rule.ends[0].methods == {"DELETE", "POST"}
    assert rule.ends[0].path.exact
    assert rule.only[0].matches(RequestView("GET", "/v1/sessions/x/y"))
    assert rule.ends_unless_header == b"x-more"
    assert rule.mint is Mint.CLIENT
    assert rule.failed_start is FailedStart.RELEASE
    assert rule.refuse_late_start
    assert (rule.gone.status, rule.gone.jsonrpc) == (404, True)
    assert (rule.idle, rule.retry_window, rule.return_window, rule.key_space) == (1800, 60, 30, "s")
    assert rule.has_lifetime


def test_defaults() -> None:
    rule = parse_rule("header:x", "r", retry_window=10, return_window=20, idle=30)
    assert (rule.retry_window, rule.return_window, rule.idle) == (10, 20, 30)
    assert (rule.gone.status, rule.mint, rule.failed_start) == (410, Mint.APP, FailedStart.KEEP)
    assert not rule.refuse_late_start
    assert not rule.has_lifetime
    assert rule.key_space == "r"
    assert [learner.word for learner in rule.learners] == ["header:x"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("30m", 1800), ("1h", 3600), ("2d", 172800)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_rule(f"header:x idle={text}", "r").idle == seconds


def test_learn_nothing() -> None:
    assert parse_rule("header:x learn=none", "r").learners == ()


SPELLINGS = [
    "header:x-session",
    "cookie:sid idle=60",
    "starlette-cookie:session/session_id",
    "path:/v1/sessions/{id} json:session_id",
    "query:sid mint=client gone=404",
    "header:x learn=none",
    "json:a@/run,/walk start=POST:/run end=/stop",
    "query:e~[0-9a-f]{32}",
    FULL,
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_rule_is_printed_as_it_was_written(text: str) -> None:
    described = describe(parse_rule(text, "r"))
    assert set(described.replace("DELETE|POST", "").split()) == set(text.replace("DELETE|POST", "").split())
    assert describe(parse_rule(described, "r")) == described


def test_every_preset_can_be_shown() -> None:
    for preset in PRESETS.values():
        for rule in preset.rules(PresetContext()):
            assert rule.carriers[0].word in describe(rule)


WRONG = [
    ("", "names no place of a session ID"),
    ("start=POST:/x", "names no place of a session ID"),
    ("header:x strat=POST:/x", "strat= is no part of a rule: it may be learn, start"),
    ("header:x idle=", "idle= needs a value"),
    ("header:x idle=soon", "write seconds"),
    ("header:x idle=1 idle=2", "stands twice"),
    ("header:x mint=me", "it is app or client"),
    ("header:x late-start=no", "it is pass or refuse"),
    ("header:x failed-start=x", "it is keep or release"),
    ("header:x gone=200", "from 400 to 599"),
    ("header:x gone=404-xml", "from 400 to 599"),
    ("header:x start=post:/x", "method in capitals"),
    ("header:x start=GET|PSOT:/x", "PSOT is no method of HTTP"),
    ("header:x start=POST:x", "begin with a slash"),
    ("header:x learn=path:/a/{id}", "no place in a reply"),
    ("heeder:x", "'heeder' is none of"),
    ("x-session-id", "is no carrier: write header:NAME"),
]


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_rule(text, "r")


def test_tables() -> None:
    table = {
        "name": "mine",
        "session_id": ["path:/v1/sessions/{id}", "json:session_id"],
        "start": "POST:/v1/sessions",
        "end": ["DELETE:/v1/sessions/{id}", "POST:/v1/stop"],
        "late_start": "refuse",
        "gone": 404,
        "idle": 60,
        "window": 1.5,
    }
    rule = rule_from_table(table, idle=10, return_window=7)
    assert isinstance(rule, Rule)
    assert rule.name == "mine"
    assert len(rule.carriers) == 2
    assert len(rule.ends) == 2
    assert (rule.gone.status, rule.idle, rule.retry_window, rule.return_window) == (404, 60, 1.5, 7)
    assert rule_from_table({"session-id": "header:x json:y"}).name == "rule"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "names no place"),
        ({"session_id": "header:x", "name": 7}, "name must be"),
        ({"session_id": "header:x", "idle": True}, "idle must be a text"),
        ({"session_id": {"a": 1}}, "must be a text"),
        ({"session_id": "header:x", "start": "POST:/a end=POST:/b"}, "one word"),
        ({"session_id": "header:x", "foo": "bar"}, "foo= is no part"),
    ],
)
def test_wrong_tables(table: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rule_from_table(table)
