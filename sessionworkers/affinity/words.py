"""One rule in words, as it fits a command line, an environment variable and TOML alike:

    path:/v1/sessions/{id} json:session_id start=POST:/v1/sessions end=DELETE:/v1/sessions/{id} idle=1h

Words with a colon before any ``=`` are carriers (:mod:`sessionworkers.affinity.carriers`). The others:

=====================  =================================================================================================
``learn=WORD``         where replies tell the ID (:mod:`sessionworkers.affinity.learners`); may stand several times.
                       Without it: where the carriers say (same header, cookie, JSON field). ``learn=none``: nowhere
``start=M:/path``      a request that opens a session; ``M`` is a method, ``GET|POST``, ``WS``, or left out for any
``end=M:/path``        a request that closes one
``end-unless=NAME``    a request header that suspends the ends
``only=M:/path``       the requests that the rule reads
``mint=client``        clients make the IDs up: claimed on sight (``app``)
``late-start=refuse``  a start after the end gets 409 (``pass``)
``failed-start=...``   what a refused start leaves: ``keep`` its claim for the window, or ``release`` it
``gone=STATUS``        the answer for a session whose worker died (410); ``gone=404-jsonrpc`` with a JSON-RPC error
``idle=TIME``          how long an unused session keeps its worker; seconds, or with ``s``, ``m``, ``h``, ``d``
``window=TIME``        the retry window
``return=TIME``        how long an ID that was handed out may wait for its first request
``space=NAME``         rules of one space name the same sessions
=====================  =================================================================================================

Paths of starts, ends and ``only`` match whole; ``/**`` at the end takes in everything below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sessionworkers.affinity.carriers import Carrier, parse_carrier
from sessionworkers.affinity.learners import Learner, derived, parse_learner
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.rules import FailedStart, Gone, Mint, RequestPattern, Rule

_KEYS = (
    "learn", "start", "end", "end-unless", "only", "mint", "late-start", "failed-start", "gone", "idle", "window",
    "return", "space",
)  # fmt: skip
_MANY = frozenset({"learn", "start", "end", "only"})
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_KEY = re.compile(r"[a-z\-]+=")
_METHOD = re.compile(r"[A-Z]+(?:\|[A-Z]+)*")
METHODS = frozenset((
    "WS", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY", "ACL", "BIND",
    "CHECKOUT", "COPY", "LINK", "LOCK", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MOVE", "NOTIFY", "PROPFIND",
    "PROPPATCH", "PURGE", "REBIND", "REPORT", "SEARCH", "SOURCE", "SUBSCRIBE", "UNBIND", "UNLINK", "UNLOCK",
    "UNSUBSCRIBE",
))  # fmt: skip
"""Those that uvicorn's HTTP parser lets through, and ``WS``: another one in a rule is a slip of the pen."""
_JSONRPC_BODY = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}'


def parse_rule(
    text: str,
    name: str,
    *,
    retry_window: float = 300.0,
    return_window: float = 300.0,
    idle: float = 86_400.0,
) -> Rule:
    """The rule that ``text`` spells. ValueError that says what is wrong and what is allowed. Times in seconds."""
    carriers: list[Carrier] = []
    given: dict[str, list[str]] = {}
    for word in text.split():
        if _KEY.match(word) is None:
            carriers.append(parse_carrier(word))
            continue
        key, _, value = word.partition("=")
        if key not in _KEYS:
            raise ValueError(f"{key}= is no part of a rule: it may be {', '.join(_KEYS)}")
        if not value:
            raise ValueError(f"{key}= needs a value")
        if key in given and key not in _MANY:
            raise ValueError(f"{key}= stands twice")
        given.setdefault(key, []).append(value)
    if not carriers:
        raise ValueError(
            f"{text!r} names no place of a session ID, such as header:x-session-id or path:/sessions/{{id}}"
        )
    one = {key: values[0] for key, values in given.items()}
    return Rule(
        name,
        tuple(carriers),
        _learners(given["learn"]) if "learn" in given else derived(carriers),
        space=one.get("space", ""),
        only=_patterns(given.get("only", [])),
        starts=_patterns(given.get("start", [])),
        ends=_patterns(given.get("end", [])),
        ends_unless_header=one["end-unless"].lower().encode() if "end-unless" in one else None,
        mint=Mint(_choice("mint", one, ("app", "client"))),
        failed_start=FailedStart(_choice("failed-start", one, ("keep", "release"))),
        refuse_late_start=_choice("late-start", one, ("pass", "refuse")) == "refuse",
        gone=_gone(one.get("gone", "410")),
        retry_window=_time("window", one, retry_window),
        return_window=_time("return", one, return_window),
        idle=_time("idle", one, idle),
    )


def _learners(words: list[str]) -> tuple[Learner, ...]:
    return () if words == ["none"] else tuple(parse_learner(word) for word in words)


def _patterns(words: list[str]) -> tuple[RequestPattern, ...]:
    patterns = []
    for word in words:
        methods, found, path = word.partition(":")
        if not found:
            methods, path = "", word
        elif _METHOD.fullmatch(methods) is None:
            raise ValueError(f"{word!r}: write METHOD:/path, with the method in capitals, or /path for any method")
        for method in methods.split("|") if methods else ():
            if method not in METHODS:
                raise ValueError(f"{word!r}: {method} is no method of HTTP")
        template = PathTemplate(path, exact=True)
        if methods == "WS":
            patterns.append(RequestPattern(template, kind="websocket"))
        else:
            patterns.append(RequestPattern(template, frozenset(methods.split("|")) if methods else frozenset()))
    return tuple(patterns)


def _choice(key: str, given: Mapping[str, str], allowed: tuple[str, str]) -> str:
    value = given.get(key, allowed[0])
    if value not in allowed:
        raise ValueError(f"{key}={value}: it is {allowed[0]} or {allowed[1]}")
    return value


def _time(key: str, given: Mapping[str, str], default: float) -> float:
    if key not in given:
        return default
    match = _TIME.fullmatch(given[key])
    if match is None:
        raise ValueError(f"{key}={given[key]}: write seconds, or a number with s, m, h or d, as in 30m")
    return float(match[1]) * _UNITS[match[2]]


def _gone(text: str) -> Gone:
    status, _, kind = text.partition("-")
    if not status.isdigit() or not 400 <= int(status) <= 599 or kind not in ("", "jsonrpc"):
        raise ValueError(f"gone={text}: write a status from 400 to 599, with -jsonrpc for a JSON-RPC error")
    if kind:
        return Gone(int(status), body=_JSONRPC_BODY, jsonrpc=True)
    return replace(Gone(), status=int(status))


def rule_from_table(table: Mapping[str, Any], **times: float) -> Rule:
    """A rule from a TOML table: the same words as keys, ``session_id`` for the carriers, ``name``. Lists where several
    may stand, ``_`` for ``-``, numbers for times. ValueError as `parse_rule`."""
    words: list[str] = []
    name = table.get("name", "rule")
    if not isinstance(name, str) or not name:
        raise ValueError("name must be a text")
    for key, value in table.items():
        if key == "name":
            continue
        key = key.replace("_", "-")
        values = value if isinstance(value, list) else [value]
        for each in values:
            if isinstance(each, bool) or not isinstance(each, (str, int, float)):
                raise ValueError(f"{key} must be a text, a number or a list of them, not {each!r}")
            if key == "session-id":
                words.append(str(each))
            elif len(str(each).split()) != 1:
                raise ValueError(f"{key}={each}: one word, without spaces")
            else:
                words.append(f"{key}={each}")
    return parse_rule(" ".join(words), name, **times)


def describe(rule: Rule) -> str:
    """``rule`` in words again; what is as by default is left out."""
    plain = Rule(rule.name, rule.carriers)
    words = [carrier.word for carrier in rule.carriers]
    if [each.word for each in rule.learners] != [each.word for each in derived(rule.carriers)]:
        words += [f"learn={learner.word}" for learner in rule.learners] or ["learn=none"]
    for key, patterns in (("only", rule.only), ("start", rule.starts), ("end", rule.ends)):
        words += [f"{key}={_pattern_word(pattern)}" for pattern in patterns]
    if rule.ends_unless_header is not None:
        words.append(f"end-unless={rule.ends_unless_header.decode()}")
    if rule.mint is not Mint.APP:
        words.append(f"mint={rule.mint.value}")
    if rule.failed_start is not FailedStart.KEEP:
        words.append(f"failed-start={rule.failed_start.value}")
    if rule.refuse_late_start:
        words.append("late-start=refuse")
    if rule.gone.status != 410 or rule.gone.jsonrpc:
        words.append(f"gone={rule.gone.status}{'-jsonrpc' if rule.gone.jsonrpc else ''}")
    for key, value, default in (
        ("idle", rule.idle, plain.idle),
        ("window", rule.retry_window, plain.retry_window),
        ("return", rule.return_window, plain.return_window),
    ):
        if value != default:
            words.append(f"{key}={value:g}")
    if rule.space:
        words.append(f"space={rule.space}")
    return " ".join(words)


def _pattern_word(pattern: RequestPattern) -> str:
    method = "WS" if pattern.kind == "websocket" else "|".join(sorted(pattern.methods))
    return f"{method}:{pattern.path.text}" if method else pattern.path.text
