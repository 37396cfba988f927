"""Settings: declared once in :mod:`model`, read from the command line, the environment and TOML."""

from sessionworkers.settings.model import Settings
from sessionworkers.settings.option import Option, flag_of, option_of
from sessionworkers.settings.sources import ENV_PREFIX, HANDED_DOWN
from sessionworkers.settings.table import settings_table

__all__ = ["ENV_PREFIX", "HANDED_DOWN", "Option", "Settings", "flag_of", "option_of", "settings_table"]
