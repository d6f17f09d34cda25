"""Effective settings for the management service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sluicemq.management.broker import SettingView
from sluicemq.model.destination import Address
from sluicemq.server.config import Config
from sluicemq.server.configuration_reference import listener_settings, plain
from sluicemq.server.listener_settings import Listener
from sluicemq.server.loading import setting_paths
from sluicemq.server.settings import Setting, settings_of
from sluicemq.server.units import Unit, format_quantity


class EffectiveConfiguration:
    """Effective configuration: each setting with its value, default and source."""

    def __init__(self, config: Config, origins: Mapping[str, str]) -> None:
        """Take the source of each setting from `origins`, by dotted name (`LoadedConfig`)."""
        self._config = config
        self._origins = origins

    def settings(self) -> list[SettingView]:
        """Return all settings, then those of each listener."""
        return [*self._plain(), *self._listeners()]

    def declares(self, address: Address) -> bool:
        """Return whether the configuration declares the destination."""
        return address in self._config.destinations

    def _plain(self) -> Iterator[SettingView]:
        for path, setting in setting_paths():
            value: Any = self._config
            for name in path:
                value = getattr(value, name)
            dotted = ".".join(path)
            yield _view(dotted, setting, value, self._origins.get(dotted, "default"))

    def _listeners(self) -> Iterator[SettingView]:
        source = self._origins.get("listeners", "default")
        for index, listener in enumerate(self._config.listeners):
            for setting in (settings_of(Listener)["url"], *listener_settings(listener)):
                value = getattr(listener, setting.name)
                yield _view(f"listeners[{index}].{setting.name}", setting, value, source)


def _view(name: str, setting: Setting, value: Any, source: str) -> SettingView:
    default = None if setting.default is msgspec.NODEFAULT else setting.default
    return SettingView(
        name=name,
        value=_display_value(value, setting.unit),
        default=_display_value(default, setting.unit),
        unit=str(setting.unit or "") if setting.unit is not Unit.MODE else "",
        source=source,
        description=setting.meaning,
    )


def _display_value(value: Any, unit: Unit | None) -> bool | int | float | str | None:
    result: bool | int | float | str | None = plain(value)
    return format_quantity(value, unit) if unit is Unit.MODE and value is not None else result
