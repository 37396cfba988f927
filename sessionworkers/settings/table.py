"""The settings as a Markdown table, for the README: ``python -m sessionworkers.settings.table README.md`` renews it."""

from __future__ import annotations

from typing import Any

from sessionworkers.settings.model import Settings
from sessionworkers.settings.option import flag_of, option_of
from sessionworkers.settings.sources import ENV_PREFIX
from sessionworkers.settings.units import size_text

NOTES = """
In a variable, a list is a JSON list (`["…", "…"]`) or its items, one a line or separated by `;` (names of presets also
by commas or spaces; secrets by lines alone, since they may hold anything else). In TOML it is an array. A list from the
command line replaces one from a variable, and that one from a file. An empty variable counts as not set. A variable
`SESSIONWORKERS_…` or a TOML key that is no setting is an error.
"""

BEGIN, END = "<!-- settings -->", "<!-- /settings -->"


def settings_table() -> str:
    """The table: option, variable, TOML key, default, meaning; then how lists are written. Ends with a newline."""
    lines = [
        "| Option | Variable | TOML key | Default | Meaning |",
        "|---|---|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        option = option_of(field)
        flag = f"`{flag_of(name)} {option.metavar}`" if option.cli else "–"
        if option.cli and isinstance(field.default, bool):
            flag = f"`{flag_of(name)}/{flag_of('no_' + name)}`"
        cells = [
            flag,
            f"`{ENV_PREFIX}{name.upper()}`",
            f"`{name.replace('_', '-')}`",
            default_text(option.metavar, field.default),
            f"{field.description} Allowed: {option.allowed}.",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n" + NOTES


def default_text(metavar: str, default: Any) -> str:
    """A default as one would write it: ``64MiB``, ``300``, ``true``; a dash for none."""
    if default is None or default == []:
        return "–"
    if isinstance(default, bool):
        return str(default).lower()
    return size_text(default) if metavar == "SIZE" else f"{default:g}" if isinstance(default, float) else str(default)


def renewed(text: str) -> str:
    """``text`` with what stands between the two marker lines replaced by the table. ValueError without markers."""
    before, begin, rest = text.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no lines {BEGIN} and {END}")
    return before + begin + settings_table() + end + after


if __name__ == "__main__":
    import pathlib
    import sys

    for file in map(pathlib.Path, sys.argv[1:]):
        file.write_text(renewed(file.read_text()))
