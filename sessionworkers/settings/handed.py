"""Settings as a manager hands them to its workers: read and checked already, so without the machinery for that."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from sessionworkers.settings.rules import rule_texts

if TYPE_CHECKING:
    from sessionworkers.settings.model import Settings


class _HandedSettings:
    """Has what :class:`Settings` has to be read: its fields, and ``rule_texts``."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        """A setting that the manager did not know, because it is of an older release: its default."""
        from sessionworkers.settings.model import Settings

        field = Settings.model_fields.get(name)
        if field is None:
            raise AttributeError(name)
        return field.default

    def rule_texts(self) -> list[tuple[str, str]]:
        return rule_texts(self.session_id, self.rules)


def settings_from_json(text: str) -> Settings:
    """Settings of :meth:`Settings.to_json`, taken as they are: for text of our own manager alone."""
    return cast("Settings", _HandedSettings(json.loads(text)))
