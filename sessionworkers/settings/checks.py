"""Checks of single values that need more than a type; each raises ValueError with the reason."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

# RFC 6265 section 4.1.1: a cookie's name is an RFC 9110 token.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``", did you mean …?"`` for the closest of ``known``, or an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""


def check_rule(text: str) -> str:
    from sessionworkers.affinity.words import parse_rule

    parse_rule(text, "rule")
    return text


def check_table(table: dict[str, Any]) -> dict[str, Any]:
    from sessionworkers.affinity.words import rule_from_table

    rule_from_table(table)
    return table


def check_preset(name: str) -> str:
    from sessionworkers.affinity.presets import PRESETS

    if name not in PRESETS:
        raise ValueError(f"no preset{did_you_mean(name, PRESETS)} (known: {', '.join(sorted(PRESETS))})")
    return name


def check_preset_or_all(name: str) -> str:
    return name if name == "all" else check_preset(name)


def check_path(path: str) -> str:
    from sessionworkers.affinity.paths import PathTemplate

    if not path.startswith("/"):
        raise ValueError("it does not begin with /")
    PathTemplate(path)
    return path


def check_cookie_name(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ValueError("not the name of a cookie")
    return name


def check_prefix(path: str) -> str:
    if not path.startswith("/") or path.endswith("/") or any(c in path for c in "{}*?#% ") or not path.isascii():
        raise ValueError("not a plain path")
    return path


def check_hook_base(url: str) -> str:
    from sessionworkers.sessions.targets import split_base

    split_base(url)
    return url


def check_hook_allow(entry: str) -> str:
    from sessionworkers.sessions.targets import HookAllow

    HookAllow([entry])
    return entry


def check_request_cost(text: str) -> str:
    from sessionworkers.sessions.costs import parse_cost

    parse_cost(text)
    return text


def check_grant_key(value: str) -> str:
    from sessionworkers.sessions.grants import read_key

    try:
        read_key(value)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    return value


def conflicts(preset: Sequence[str], no_preset: Sequence[str], rule_names: Sequence[str]) -> list[str]:
    """Settings that are each right and cannot be together."""
    problems = [f"preset {name} is both asked for and refused" for name in preset if name in no_preset]
    for name in sorted(name for name in set(rule_names) if rule_names.count(name) > 1):
        problems.append(f"two rules are named {name}; their sessions would be mixed up")
    return problems
