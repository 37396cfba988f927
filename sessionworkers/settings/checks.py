"""Checks of single values that need more than a type; each raises ValueError with the reason."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
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
    name = table.get("name", "rule")
    if not isinstance(name, str) or not name:
        raise ValueError("has a name that is not a text")
    from sessionworkers.affinity.words import parse_rule

    parse_rule(table_text(table), name)
    return table


def table_text(table: Mapping[str, Any]) -> str:
    """A rule's TOML table as the words of ``--session-id``: lists are repeated keys, ``carriers`` bare words."""
    words: list[str] = []
    for key, value in table.items():
        if key == "name":
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, bool) or not isinstance(item, (str, int, float)):
                raise ValueError(f"has a {key} that is neither a text nor a number")
            words.append(str(item) if key == "carriers" else f"{key.replace('_', '-')}={item}")
    return " ".join(sorted(words, key=lambda word: "=" in word.split(":")[0]))


def check_preset(name: str) -> str:
    from sessionworkers.affinity.presets import PRESETS

    if name not in PRESETS:
        raise ValueError(f"is no preset{did_you_mean(name, PRESETS)} (known: {', '.join(sorted(PRESETS))})")
    return name


def check_preset_or_all(name: str) -> str:
    return name if name == "all" else check_preset(name)


def check_path(path: str) -> str:
    from sessionworkers.affinity.paths import PathTemplate

    if not path.startswith("/"):
        raise ValueError("does not begin with /")
    PathTemplate(path)
    return path


def check_cookie_name(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ValueError("cannot be the name of a cookie")
    return name


def conflicts(preset: Sequence[str], no_preset: Sequence[str]) -> list[str]:
    """Settings that are each right and cannot be together."""
    return [f"preset {name!r} is both asked for and refused" for name in preset if name in no_preset]
