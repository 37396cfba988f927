"""The two ways to write a rule down, as one: words, and the name that the rule goes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table_text(table: Mapping[str, Any]) -> str:
    """A checked rule table as the words of ``--session-id``, which stand under the key ``session_id`` in it."""
    words: list[str] = []
    for key, value in table.items():
        if key != "name":
            key = key.replace("_", "-")
            values = value if isinstance(value, list) else [value]
            words += [str(each) if key == "session-id" else f"{key}={each}" for each in values]
    return " ".join(words)


def rule_texts(session_id: Sequence[str], rules: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, words) of each rule, in order: what ``parse_rule`` takes. Rules without a name go by their number."""
    texts = [(f"session-id-{number}", text) for number, text in enumerate(session_id, 1)]
    return texts + [
        (str(table.get("name", f"rule-{number}")), table_text(table)) for number, table in enumerate(rules, 1)
    ]
