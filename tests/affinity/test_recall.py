"""What is recalled is what would be found: random requests, each found anew and from memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sessionworkers.affinity.auto import Auto
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.presets import PRESETS, PresetContext
from sessionworkers.affinity.recall import UNKNOWN, Key, Recall
from sessionworkers.affinity.ruleset import Found, NeedBody, RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.affinity.words import parse_rule

IDS = [f"{letter * 6}-0123456789abcdef{letter}" for letter in "abcd"]

RULES: dict[str, list[str]] = {
    "a cookie": ["cookie:sid mint=client"],
    "a header": ["header:x-session"],
    "a query": ["query:session"],
    "a path": ["path:/s/{id}"],
    "a cookie, then a path": ["cookie:sid", "path:/s/{id}"],
    "a path, then a cookie": ["path:/s/{id}", "cookie:sid"],
    "one rule of several carriers": ["header:x-session query:session path:/s/{id} cookie:sid"],
    "starts and ends": ["cookie:sid start=POST:/start end=POST:/end start=GET:/begin", "header:x-session"],
    "some paths only": ["header:x-session only=GET:/s/*", "cookie:sid"],
    "some paths only, last": ["cookie:sid", "header:x-session only=GET:/s/*"],
    "IDs that join": ["cookie:sid", "header:x-session mint=client", "query:session mint=client"],
    "a client's own for some paths": ["cookie:sid", "header:x-session mint=client only=GET:/a"],
    "a body": ["json:session", "cookie:sid"],
}


def rule_sets() -> dict[str, RuleSet]:
    found = {
        name: RuleSet([parse_rule(word, f"r{n}") for n, word in enumerate(words)]) for name, words in RULES.items()
    }
    found |= {f"{name}, and auto": RuleSet(each.rules, Auto()) for name, each in found.items()}
    found["unrouted paths"] = RuleSet(found["a cookie"].rules, no_routing=[PathTemplate("/s/static")])
    context = PresetContext()
    every = [rule for preset in PRESETS.values() for rule in preset.rules(context)]
    found["every preset"] = RuleSet(every, Auto())
    return found


SETS = rule_sets()


def a_request(rng: random.Random) -> dict[str, Any]:
    path = rng.choice(
        ["/", "/a", f"/a/{rng.randrange(99)}", f"/s/{rng.choice(IDS)}", "/s/static", "/begin", "/start", "/mcp"]
    )
    query = rng.choice(
        [
            b"",
            b"n=%d" % rng.randrange(99),
            f"session={rng.choice(IDS)}".encode(),
            b"%73ession=x",
            b"sid=" + IDS[0].encode(),
        ]
    )
    headers = [(b"host", b"here"), (b"x-noise", b"%d" % rng.randrange(99))]
    for chance, name, value in (
        (0.7, b"cookie", f"sid={rng.choice(IDS[:2])}; theme=dark"),
        (0.2, b"cookie", f"session={rng.choice(IDS)}"),
        (0.4, b"x-session", rng.choice(IDS)),
        (0.1, b"mcp-session-id", rng.choice(IDS)),
    ):
        if rng.random() < chance:
            headers.append((name, value.encode()))
    method = rng.choice(["GET", "GET", "GET", "POST", "DELETE"])
    if method == "POST":
        headers += [(b"content-type", b"application/json"), (b"content-length", b"2")]
    return {"type": "http", "method": method, "path": path, "query_string": query, "root_path": "", "headers": headers}


def told(found: Any) -> Any:
    if not isinstance(found, Found):
        return found
    return (
        found.rule.name, found.primary, found.also, found.start, found.end,
        [(rule.name, named) for rule, named in found.joins], found.candidates, told(found.otherwise),
    )  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_recalled_is_found(name: str) -> None:
    rules = SETS[name]
    recall, rng, recalled = Recall(rules), random.Random(name), 0
    kept: dict[Key, Once] = {}
    for _ in range(3_000):
        scope = a_request(rng)
        request = RequestView.from_scope(scope)
        fresh = None if rules.off(request) else rules.find(request)
        key, found = recall.find(scope)
        if found is UNKNOWN:
            if not isinstance(fresh, NeedBody) and not rules.off(request):
                recall.note(key, request, fresh)
        else:
            recalled += 1
            assert told(found) == told(fresh), scope
            once = kept.setdefault(key, Once(key))
            assert told(recall.again(once)) == told(fresh), scope
            assert told(recall.again(once)) == told(fresh), "from memory"
    assert recalled > 100


def test_what_is_kept_is_found_anew_when_it_may_be_another() -> None:
    auto = Auto()
    rules = RuleSet([parse_rule("cookie:sid", "r")], auto)
    recall = Recall(rules)
    nothing = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "root_path": "", "headers": []}
    once = Once(recall.key(nothing))
    assert recall.again(once) is UNKNOWN, "nothing was noted yet"
    assert recall.again(Once(None)) is UNKNOWN
    assert recall.note(recall.key(nothing), RequestView.from_scope(nothing), None)
    assert recall.again(once) is None
    auto.board.add("a session's name that another worker has seen")
    assert recall.again(once) is UNKNOWN
    assert recall.note(recall.key(nothing), RequestView.from_scope(nothing), None)
    assert recall.again(once) is None


class Once:
    """What a host keeps."""

    def __init__(self, key: Key | None) -> None:
        self.key = key
        self.found: Any = UNKNOWN
        self.revision = 0


def test_paths_and_queries_without_meaning_are_not_kept() -> None:
    recall = Recall(SETS["a cookie"])
    headers = [(b"cookie", b"sid=" + IDS[0].encode())]
    for number in range(50):
        scope = {
            "type": "http", "method": "GET", "path": f"/item/{number}", "query_string": b"t=%d" % number,
            "root_path": "", "headers": headers,
        }  # fmt: skip
        key, found = recall.find(scope)
        assert (found is UNKNOWN) == (number == 0)
        if found is UNKNOWN:
            request = RequestView.from_scope(scope)
            fresh = SETS["a cookie"].find(request)
            assert isinstance(fresh, Found)
            recall.note(key, request, fresh)
    assert not recall._known and len(recall._by_headers) == 1
