"""Configuration for its readers: a TOML file, data for JSON, and the effective settings for the
management service.

All are generated from the schema, so that they match the accepted settings.
`tools/configuration_page.py` generates the reference page from it too.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from sluicemq.management.broker import SettingView
from sluicemq.model.destination import Address, DestinationSettings, differing
from sluicemq.security.records import USERS_NAME
from sluicemq.server.config import Config
from sluicemq.server.listener_settings import Listener, applies, inherited_limits
from sluicemq.server.loading import SECTIONS, setting_paths
from sluicemq.server.settings import Setting, Unit, format_quantity, plain, settings_of

CONFIGURATION_NAME: Final = "configuration.toml"
MIGRATIONS_NAME: Final = "migrations.log"
"""Names of files in a backup. The second is the log of completed migrations, which prevents
`sluicemq migrate` from repeating one."""


def render(config: Config, origins: Mapping[str, str] | None = None) -> str:
    """Return the configuration as TOML that loads as the same configuration.

    With `origins` each setting is preceded by its description and the source of its value.
    """
    lines: list[str] = []
    setting = settings_of(Config)["insecure_public"]
    lines += _assignment(setting, config.insecure_public, (), origins)
    for path, struct in SECTIONS.items():
        section: Any = attrgetter(".".join(path))(config)
        lines += ["", f"[{'.'.join(path)}]"]
        for setting in settings_of(struct).values():
            if (*path, setting.name) in SECTIONS:
                continue
            value = getattr(section, setting.name)
            assignment = list(_assignment(setting, value, path, origins))
            if struct is DestinationSettings and not _is_given(config, setting):
                # an unset setting keeps the default of the protocol
                assignment[-1:] = [f"# {assignment[-1]}"] if origins is not None else []
            lines += assignment
    origin = f"  # {origins.get('listeners', 'default')}" if origins is not None else ""
    for listener in config.listeners:
        lines += ["", f"[[listeners]]{origin}", f"url = {value_text(listener.url.format())}"]
        inherited = inherited_limits(listener.url, config.limits)
        for setting in applicable_settings(listener):
            value = getattr(listener, setting.name)
            if value != inherited.get(setting.name):
                lines += _assignment(setting, value, (), None)
    for address, settings in config.destinations.items():
        origin = f"  # {origins.get(f'destinations.{address}', '')}" if origins is not None else ""
        lines += ["", f"[destinations.{_quoted(str(address))}]{origin}"]
        default = config.broker.default_destination
        names = differing(settings, default)
        default_names = differing(default) | config.default_fields
        names |= config.explicit.get(address, names) - default_names
        for setting in settings_of(DestinationSettings).values():
            if setting.name in names:
                lines += _assignment(setting, getattr(settings, setting.name), (), None)
    return "\n".join(lines).lstrip("\n") + "\n"


def to_builtins(config: Config) -> dict[str, Any]:
    """Return the configuration as data for JSON, with the names of the file."""
    tree: dict[str, Any] = msgspec.to_builtins(
        {
            name: getattr(config, name)
            for name in ("insecure_public", *dict.fromkeys(path[0] for path in SECTIONS))
        },
        enc_hook=str,
    )
    tree["broker"]["default_destination"] = _settings_tree(config.broker.default_destination)
    tree["listeners"] = [
        {"url": plain(listener.url)}
        | {
            setting.name: plain(getattr(listener, setting.name))
            for setting in applicable_settings(listener)
        }
        for listener in config.listeners
    ]
    tree["destinations"] = {
        str(address): _settings_tree(settings) for address, settings in config.destinations.items()
    }
    return tree


def _settings_tree(settings: DestinationSettings) -> dict[str, Any]:
    return {name: plain(getattr(settings, name)) for name in settings_of(DestinationSettings)}


def _is_given(config: Config, setting: Setting) -> bool:
    """Return whether [broker.default_destination] contains the setting."""
    value = getattr(config.broker.default_destination, setting.name)
    return setting.name in config.default_fields or value != setting.default


def applicable_settings(listener: Listener) -> Iterator[Setting]:
    """Yield the settings that have an effect on a listener, without its URL."""
    for setting in settings_of(Listener).values():
        is_unused = setting.name == "url" or (setting.name == "user" and not listener.user)
        if not is_unused and applies(setting, listener.url):
            yield setting


def _assignment(
    setting: Setting,
    value: Any,
    path: tuple[str, ...],
    origins: Mapping[str, str] | None,
) -> Iterator[str]:
    if origins is not None:
        origin = origins.get(".".join((*path, setting.name)), "default")
        yield f"# {setting.meaning.replace('`', '')}"
        yield f"# from: {origin}"
    if value is None:
        if origins is not None:
            yield f"# {setting.name} is not set"
        return
    yield f"{setting.name} = {value_text(value, setting.unit)}"


def value_text(value: Any, unit: Unit | None = None) -> str:
    """Return a value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum | Path | str):
        return _quoted(str(plain(value)))
    if unit is None:
        return str(value)
    return _quoted(format_quantity(value, unit)) if value or unit is Unit.MODE else "0"


def _quoted(text: str) -> str:
    """Return a TOML basic string: a JSON string with DEL escaped and non-ASCII text unescaped.

    Surrogate escapes of names that are not UTF-8 stay escapes, which no TOML parser accepts.
    """
    quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return quoted.encode("utf-8", "backslashreplace").decode()


# --- Effective configuration ----------------------------------------------------------------------


class EffectiveConfiguration:
    """Configuration of a broker: each setting with its value, default and source, and the paths and
    files that a backup needs besides the journal."""

    def __init__(self, config: Config, origins: Mapping[str, str] | None = None) -> None:
        """Take the source of each setting from `origins`, by dotted name (`LoadedConfig`)."""
        self._config = config
        self._origins = origins or {}

    def settings(self) -> list[SettingView]:
        """Return all settings, then those of each listener."""
        views = []
        for path, setting in setting_paths():
            name = ".".join(path)
            value: Any = attrgetter(name)(self._config)
            views.append(_view(name, setting, value, self._origins.get(name, "default")))
        source = self._origins.get("listeners", "default")
        for index, listener in enumerate(self._config.listeners):
            for setting in (settings_of(Listener)["url"], *applicable_settings(listener)):
                value = getattr(listener, setting.name)
                views.append(_view(f"listeners[{index}].{setting.name}", setting, value, source))
        return views

    def declares(self, address: Address) -> bool:
        """Return whether the configuration declares the destination."""
        return address in self._config.destinations

    @property
    def directory(self) -> Path | None:
        """Directory of the backups (`backup_dir`), or None if none is configured."""
        return self._config.broker.backup_dir

    @property
    def users_file(self) -> Path:
        """Path of the file with the users."""
        return self._config.users_file

    @property
    def configuration(self) -> str:
        """Effective configuration as TOML, without `auth.users_file`: a restored broker has its
        users in its data directory."""
        auth = replace(self._config.auth, users_file=None)
        return render(replace(self._config, auth=auth))

    def sources(self) -> dict[str, bytes]:
        """Return the contents of the files to back up, by name. Raises OSError.

        No file contains secrets: the configuration has only the paths of secret files, and the
        users file has only hashes of passwords.
        """
        contents = {CONFIGURATION_NAME: self.configuration.encode()}
        migrations = self._config.broker.data_dir / MIGRATIONS_NAME
        for name, path in ((USERS_NAME, self.users_file), (MIGRATIONS_NAME, migrations)):
            with suppress(FileNotFoundError):
                contents[name] = path.read_bytes()
        return contents


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
