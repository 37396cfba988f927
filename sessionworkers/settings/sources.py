"""Where settings come from besides the command line, and problems told with the place they came from."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from sessionworkers.settings.checks import did_you_mean
from sessionworkers.settings.option import flag_of, option_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ENV_PREFIX = "SESSIONWORKERS_"
HANDED_DOWN: frozenset[str] = frozenset()
"""Variables under our prefix that one of our processes hands to another; no settings."""

# Kubernetes gives each container variables for every Service of its namespace; for a Service that is itself called
# "sessionworkers" they fall under our prefix (kubernetes.io, "Discovering services", environment variables).
_KUBERNETES = re.compile(r"SERVICE_(HOST|PORT(_.*)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?")


class Source(PydanticBaseSettingsSource):
    """Values by field name, with the place of each, and what could not be used at all."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.problems: list[str] = []

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self.values


class EnvironSource(Source):
    """``SESSIONWORKERS_*`` of ``environ``. An empty variable counts as not set, as docker compose passes unset ones."""

    def __init__(self, settings_cls: type[BaseSettings], environ: Mapping[str, str]) -> None:
        super().__init__(settings_cls)
        known = {ENV_PREFIX + name.upper(): name for name in settings_cls.model_fields}
        for variable, value in sorted(environ.items()):
            if not variable.startswith(ENV_PREFIX) or variable in HANDED_DOWN:
                continue
            name = known.get(variable)
            if name is None:
                if not _KUBERNETES.fullmatch(variable[len(ENV_PREFIX) :]):
                    self.problems.append(f"{variable} in the environment is no setting{did_you_mean(variable, known)}")
            elif value:
                self.values[name] = value
                self.places[name] = f"{variable} in the environment"


class TomlSource(Source):
    """The top level of ``sessionworkers.toml``, or else ``[tool.sessionworkers]`` of ``pyproject.toml``, in ``cwd``.

    The first file wins and the other is then not read (ruff has it so with ``ruff.toml``). Keys may be spelled with
    ``-`` or ``_``.
    """

    def __init__(self, settings_cls: type[BaseSettings], cwd: str) -> None:
        super().__init__(settings_cls)
        for file, table in (("sessionworkers.toml", ()), ("pyproject.toml", ("tool", "sessionworkers"))):
            path = os.path.join(cwd, file)
            try:
                with open(path, "rb") as stream:
                    content: Any = tomllib.load(stream)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:  # a TOML error is a ValueError, so is text that is not UTF-8
                self.problems.append(f"{path} cannot be read: {error}")
                return
            for key in table:
                content = content.get(key, {}) if isinstance(content, dict) else {}
            if isinstance(content, dict):
                self._take(content, path)
            else:
                self.problems.append(f"{'.'.join(table)} in {path} is not a table")
            return

    def _take(self, content: dict[str, Any], path: str) -> None:
        known = self.settings_cls.model_fields
        for key, value in content.items():
            name = key.replace("-", "_")
            if key == "tool" and isinstance(value, dict) and "sessionworkers" in value:
                self.problems.append(f"[tool.sessionworkers] in {path}: in this file the keys stand at the top level")
            elif name not in known:
                hint = did_you_mean(key, [field.replace("_", "-") for field in known])
                self.problems.append(f"{key} in {path} is no setting{hint}")
            elif name in self.values:
                self.problems.append(f"{key} in {path} is there twice, with - and with _")
            else:
                self.values[name] = value
                self.places[name] = f"{key} in {path}"


def problem_texts(
    settings_cls: type[BaseSettings], error: ValidationError, overrides: Mapping[str, Any], sources: Sequence[Source]
) -> list[str]:
    """One sentence for each error: the place, the value (no secrets), the reason, what is allowed."""
    texts = []
    for item in error.errors(include_url=False):
        name = str(item["loc"][0])
        if name not in settings_cls.model_fields:
            known = map(flag_of, settings_cls.model_fields)
            texts.append(f"{flag_of(name)} is no setting{did_you_mean(flag_of(name), known)}")
            continue
        option = option_of(settings_cls.model_fields[name])
        place = flag_of(name)
        if name not in overrides:
            place = next((source.places[name] for source in sources if name in source.places), place)
        cause = item.get("ctx", {}).get("error")
        reason = str(cause) if isinstance(cause, ValueError) else f"not allowed ({item['msg']})"
        value = "(a secret)" if option.secret else repr(item["input"])
        texts.append(f"{place} is {value}: {reason}; allowed: {option.allowed}")
    return texts
