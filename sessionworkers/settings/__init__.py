"""Settings: declared once in :mod:`model`, read from the command line, the environment and TOML.

Nothing is imported before it is asked for: a worker is handed settings that were read and checked, and must not load
pydantic for them (90 ms and 11 MB, measured here).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sessionworkers.settings.handed import settings_from_json
    from sessionworkers.settings.model import Settings
    from sessionworkers.settings.option import Option, flag_of, option_of
    from sessionworkers.settings.sources import ENV_PREFIX, HANDED_DOWN
    from sessionworkers.settings.table import settings_table

__all__ = [
    "ENV_PREFIX",
    "HANDED_DOWN",
    "Option",
    "Settings",
    "flag_of",
    "option_of",
    "settings_from_json",
    "settings_table",
]

_ROOMS = {
    "settings_from_json": "handed",
    "Settings": "model",
    "Option": "option",
    "flag_of": "option",
    "option_of": "option",
    "ENV_PREFIX": "sources",
    "HANDED_DOWN": "sources",
    "settings_table": "table",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
