"""Settings: from those of the source to the configuration file, and users to the user database.

Each source has a table of rules (`SettingRule`) by the name of its settings. A setting is removed
from `SourceSettings` when it is migrated, and those that are left are reported.

Comments in the file state the origin of migrated settings, and the settings that were not migrated
are listed at the end, so that the file documents the migration.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import Damage
from sluicemq.model.destination import differing
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.url import LOOPBACK, is_public
from sluicemq.security.records import USERS_NAME, Database, UserRecord, UserStore, add_user
from sluicemq.server.configuration_reference import value_text
from sluicemq.server.loading import SECTIONS, load
from sluicemq.server.settings import settings_of

ACTOR: Final = "sluicemq migrate"
"""Actor in the audit log."""

ValueT = TypeVar("ValueT")
Option = str | int | bool

_LEVELS: Final = {
    "trace": "debug",
    "debug": "debug",
    "debugmed": "debug",
    "debughigh": "debug",
    "info": "info",
    "information": "info",
    "notice": "info",
    "warning": "warning",
    "error": "error",
    "force": "error",
    "critical": "error",
    "alert": "error",
    "emergency": "error",
    "none": "error",
}
"""Levels of the log, by the names that Open MQ, VibeMQ and PHPMQ have for them."""
_PUBLIC: Final = (
    "no user is migrated, so anyone who reaches the port could read and publish everything. The "
    f"listener is bound to {LOOPBACK}; add users (sluicemq users add) and change the address, or "
    "set insecure_public = true. A protocol without logins, as PHPMQ's, needs the listener's `user`"
)


# --- settings of the source --------------------------------------------------------------------


class SourceSetting(NamedTuple):
    """A setting of the source.

    name   as the source spells it
    value  its text, or the value in a JSON file; None = the default applies
    location  its position, for errors
    label  what the report calls it, if that is not its name
    """

    name: str
    value: Any
    location: str
    label: str = ""


class PartlyMigrated(NamedTuple):
    """Result of a conversion that covers a setting partly: the value, None = none, and the
    reason that the report gives for the rest."""

    value: Option | None
    reason: str


class SettingRule(NamedTuple):
    """How a setting is migrated.

    target   path of the equivalent in the configuration file; the section `listener` is the
             options of listeners, and `default` the settings of destinations created on first use
    convert  converts the value; None = the default applies. Raises ValueError for invalid values
    """

    target: str
    convert: Callable[[Any], Option | PartlyMigrated | None]


class SourceSettings:
    """Settings of a source by key; each is removed when it is migrated.

    options   of the listeners
    defaults  of destinations created on first use
    """

    def __init__(self, plan: Plan, values: dict[str, SourceSetting]) -> None:
        self.plan = plan
        self.values = values
        self.options: dict[str, Option] = {}
        self.defaults: dict[str, Any] = {}

    def take(self, key: str, convert: Callable[[Any], ValueT], default: ValueT) -> ValueT:
        """Remove a setting and return its value; `default` if it is missing or null. Raises
        Damage."""
        setting = self.values.pop(key, None)
        if setting is None or setting.value is None:
            return default
        try:
            return convert(setting.value)
        except ValueError as error:
            raise Damage(f"{setting.location}: {setting.name}={setting.value} {error}") from None

    def apply(self, rules: Mapping[str, SettingRule]) -> None:
        """Migrate the settings that have a rule. Raises Damage."""
        for key, rule in rules.items():
            if (setting := self.values.get(key)) is None:
                continue
            value = self.take(key, rule.convert, None)
            if isinstance(value, PartlyMigrated):
                values = setting.value if isinstance(setting.value, list) else [setting.value]
                text = ",".join(str(element).strip() for element in values)
                self.plan.skip("setting", f"{setting.name}={text}", value.reason)
                value = value.value
            if value is None:
                continue
            section, _, name = rule.target.rpartition(".")
            if section == "listener":
                self.options[name] = value
            elif section == "default":
                self.defaults[name] = value
            else:
                self.plan.settings[rule.target] = value, setting.name

    def url(self, scheme: str, host: str, port: int | str) -> str:
        """Return the URL of a listener. Without users of the plan, which log in, it is bound to
        loopback, and another `host` is reported; "" = all addresses."""
        if not self.plan.users and is_public(host):
            self.plan.skip("listener", f"port {port} on {host or 'all addresses'}", _PUBLIC)
            host = LOOPBACK
        return f"{scheme}://{f'[{host}]' if ':' in host else host or '0.0.0.0'}:{port}"

    def report_unmigrated(self, reasons: Mapping[str, str]) -> None:
        """Report the settings that are left. `reasons` by the beginning of keys, the first of them
        counts; settings with the reason "" are not reported."""
        for key, setting in self.values.items():
            matching_reasons = (
                reason for start, reason in reasons.items() if key.startswith(start)
            )
            if reason := next(matching_reasons, "there is no equivalent"):
                self.plan.skip("setting", setting.label or setting.name, reason)


def number(value: object) -> int:
    """Convert a number, which may be written as text."""
    try:
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise ValueError("is not a number")


def positive(value: object) -> int | None:
    """Convert a number; up to 0 it is a default, or no limit."""
    count = number(value)
    return count if count > 0 else None


def text(value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    return value


def boolean(value: object) -> bool:
    """Convert a boolean, which may be written as text."""
    if str(value).lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return str(value).lower() == "true"


def log_level(value: object) -> str | None:
    """Convert the level of a log."""
    return _LEVELS.get(str(value).strip().lower())


# --- the configuration file ----------------------------------------------------------------------


def render(plan: Plan, data_dir: Path) -> str:
    """Return the file's text."""
    lines = [f"# Migrated from {plan.kind}: {_printable(str(plan.source_path))}"]
    values: dict[str, tuple[object, str]] = {"broker.data_dir": (str(data_dir), "")}
    for name in differing(plan.defaults):
        values[f"broker.default_destination.{name}"] = getattr(plan.defaults, name), ""
    values |= plan.settings
    for path, struct in SECTIONS.items():
        section = ".".join(path)
        setting_lines = []
        for name, setting in settings_of(struct).items():
            value, origin = values.get(f"{section}.{name}", (None, ""))
            if value is not None:
                comment = f"  # {_printable(origin)}" if origin else ""
                setting_lines.append(f"{name} = {value_text(value, setting.unit)}{comment}")
        if setting_lines:
            lines += ["", f"[{section}]", *setting_lines]
    for listener in plan.listeners:
        lines += ["", f"# {_printable(listener.comment)}"]
        lines += ["[[listeners]]", f"url = {value_text(listener.url)}"]
        lines += [f"{name} = {value_text(value)}" for name, value in listener.options.items()]
    if plan.skipped:
        lines += ["", "# Not migrated:"]
        lines += [
            f"#   {_printable(f'{item.what} {item.name}: {item.reason}')}" for item in plan.skipped
        ]
    return "\n".join(lines) + "\n"


def problems(plan: Plan) -> list[str]:
    """Return the problems that would keep a broker from starting with the plan's settings and
    users."""
    with tempfile.TemporaryDirectory() as directory:
        add_users(plan.users, Path(directory, USERS_NAME))
        file = Path(directory, "sluicemq.toml")
        file.write_text(render(plan, Path(directory)), encoding="utf-8")
        try:
            return list(load(file).config.problems())
        except ConfigurationError as error:
            return str(error).replace(str(file), file.name).splitlines()


def add_users(users: Mapping[str, UserRecord], file: Path) -> list[str]:
    """Add users to the user database in `file`; existing users are never changed. Returns the names
    of those added. Raises AccessError, ConfigurationError, OSError."""
    added: list[str] = []

    def add(database: Database) -> Database:
        for name, record in users.items():
            if name not in database.users:
                database = add_user(database, name, record)
                added.append(name)
        return database

    if users:
        UserStore(file).change(add, ACTOR)
    return added


def _printable(text: str) -> str:
    """Return text for a comment: TOML allows no control characters in one."""
    encodable_text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in encodable_text)
