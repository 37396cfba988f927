"""What a setting says about itself beyond its type: read by the command line, the error texts and the table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Option:
    """Metadata of one setting, put into its ``Annotated`` type.

    ``metavar`` stands for the value in the help; ``allowed`` completes "allowed: …"; ``cli`` is False for what has
    no option (secrets would show in the process list); ``secret`` values are never printed.
    """

    metavar: str
    allowed: str
    cli: bool = True
    secret: bool = False


def option_of(field: FieldInfo) -> Option:
    """The Option that ``field`` was declared with. Raises LookupError for a field declared without."""
    for item in field.metadata:
        if isinstance(item, Option):
            return item
    raise LookupError("a setting needs an Option in its type")


def flag_of(name: str) -> str:
    """``session_id`` as the option ``--session-id``."""
    return "--" + name.replace("_", "-")


def splitter(separators: str) -> Callable[[object], object]:
    """A reader of list values: a list stays one, a text is a JSON list or items between any of ``separators``.

    The text form is for environment variables, where a list has no form of its own. Empty items fall away.
    """
    between = re.compile(f"[{re.escape(separators)}]")

    def split(value: object) -> object:
        if not isinstance(value, str):
            return list(value) if isinstance(value, tuple) else value
        if value.lstrip().startswith("["):
            try:
                return json.loads(value)
            except ValueError as error:
                raise ValueError(f"it begins like a JSON list but is none ({error})") from None
        return [item.strip() for item in between.split(value) if item.strip()]

    return split
